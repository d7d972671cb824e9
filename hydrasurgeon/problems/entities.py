"""Entities as answers: tags of words, what rows say of them, and how they are judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.data.words import words_of
from hydrasurgeon.problems.base import Columns, Judged, Prediction, digits
from hydrasurgeon.problems.classes import BIASED
from hydrasurgeon.statistics.bootstrap import Rows, Selective, Values, counted
from hydrasurgeon.statistics.entities import (
    Entities,
    are_right,
    begun,
    entities_of,
    joint_chances,
)
from hydrasurgeon.statistics.metrics import BINS, bins_of, ece_of

Chances = Float[Tensor, "text word klass"]
FIELDS = ("start", "end", "text", "label", "probability", "answer")
"""What a row says of an entity."""


def tags_of(
    probs: Chances, cover: float | None = None
) -> tuple[Int[Tensor, "text word"], Float[Tensor, "text word"]]:
    """Each word's most probable tag, and its probability; −1 where there is no word.

    With `cover`, a word belongs to an entity from this probability of not being O on, by the most
    probable tag but O. An entity begins at a B, behind an O, and where the kind changes: in data an
    I that continues nothing begins one too, and so it does in transformers' pipelines.
    """
    there = (probs > 0).any(dim=-1)
    chances, tags = probs.max(dim=-1)
    if cover is not None:
        others, which = probs[..., 1:].max(dim=-1)
        belongs = not_outside(probs) >= cover
        tags = torch.where(belongs, which + 1, 0)
        chances = torch.where(belongs, others, probs[..., 0])
    tags = begun(tags)
    return torch.where(there, tags, UNLABELLED), chances


def not_outside(probs: Chances) -> Float[Tensor, "text word"]:
    """The probability that a word belongs to an entity."""
    return probs[..., 1:].sum(dim=-1)


@dataclass(frozen=True, kw_only=True, repr=False)
class TokensPrediction(Prediction):
    """Tags of words, and their probabilities."""

    tags: Int[Tensor, "text word"]
    """Those that entities are made of; −1 where there is no word."""
    chances: Float[Tensor, "text word"]
    """The probability of each tag."""
    how: str = "product"
    """How those of an entity's words make its own."""
    least: float = 0.0
    """From which probability on an entity is answered."""
    kinds: int
    """Kinds of entities."""

    @property
    def entities(self) -> tuple[Entities, Float[Tensor, " entity"]]:
        """All that were found, and their probabilities."""
        entities = entities_of(self.tags)
        return entities, joint_chances(entities, self.chances, self.how)

    @property
    def answered(self) -> Int[Tensor, "text word"]:
        """Tags of the entities that are answered."""
        entities, chances = self.entities
        owner, text, word = entities.words()
        sure = (chances >= self.least)[owner]
        tags = torch.zeros_like(self.tags)
        tags[text[sure], word[sure]] = self.tags[text[sure], word[sure]]
        return tags

    @property
    def given(self) -> Sequence[Any]:
        return [*self.columns(self.names, 0)["entities"]]

    @property
    def uncertainty(self) -> Float[Tensor, " text"]:
        """How many of a text's entities are wrong, as far as their probabilities tell."""
        entities, chances = self.entities
        return chances.new_zeros(len(self.tags)).index_add(0, entities.text, 1 - chances)

    @property
    def tally(self) -> Int[Tensor, " kind"]:
        entities, _ = self.entities
        first = torch.zeros(len(self.tags), dtype=torch.int64)
        # The last that is written stays.
        first[entities.text.flip(0)] = 1 + entities.kind.flip(0)
        return torch.bincount(first, minlength=1 + self.kinds)

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        """Entities by the characters of the texts, where these are known; else by the numbers of
        their words.
        """
        entities, chances = self.entities
        rows: list[list[dict[str, Any]]] = [[] for _ in self.tags]
        fields = (entities.text, entities.first, entities.last, entities.kind, chances)
        for (text, first, last, kind, chance), shown in zip(
            zip(*(field.tolist() for field in fields), strict=True), digits(chances), strict=True
        ):
            label = called_kind(kind, names)
            rows[text].append(
                {
                    "start": first,
                    "end": last + 1,
                    "label": label,
                    "probability": shown,
                    "answer": label if chance >= self.least else "abstain",
                }
            )
        if self.texts is not None:
            rows = [*map(placed, rows, self.texts)]
        return {"entities": rows, **self.verdict()}


def called_kind(kind: int, names: Sequence[str] | None) -> str | int:
    """The name of a kind of entities, by those of the tags."""
    return kind if names is None else names[2 * kind + 1].removeprefix("B-")


def placed(entities: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """Entities with their characters in place of the numbers of words, and what stands there."""
    spans, made = words_of(text), []
    for entity in entities:
        start, end = spans[entity["start"]][0], spans[entity["end"] - 1][1]
        made.append({**entity, "start": start, "end": end, "text": str(text[start:end])})
    return [{name: entity[name] for name in FIELDS} for entity in made]


@dataclass(frozen=True, kw_only=True)
class JudgedTokens(Judged):
    """Tags of words against the truth."""

    tags: Int[Tensor, "text word"]
    right: Bool[Tensor, "text word"]
    """Whether the most probable tag is the true one, be it an I that begins an entity or not."""
    confidence: Float[Tensor, "text word"]
    nll: Float[Tensor, "text word"]
    mutual_information: Float[Tensor, "text word"]
    disagreement: Float[Tensor, "text word"]
    chances: Float[Tensor, "text word"]
    """At the first word of an entity its probability."""
    answered: Int[Tensor, "text word"] | None = None
    """Tags of the entities that are answered; None where nothing is promised."""

    @property
    def there(self) -> Bool[Tensor, "text word"]:
        """Words that have a label."""
        return self.labels != UNLABELLED

    @cached_property
    def _by_text(self) -> dict[str, Tensor]:
        """What is summed over texts."""
        said, true, there = entities_of(self.tags), entities_of(self.labels), self.there
        right = self.right & there
        hits = said.text[are_right(said, self.labels)]
        gap = (right.double() - self.confidence.double()) * there
        gaps = torch.zeros(len(there), BINS + 1, dtype=torch.float64)
        return {
            "words": there.sum(dim=1).double(),
            "right": right.sum(dim=1).double(),
            "nll": self.nll.double().sum(dim=1),
            "gaps": gaps.scatter_add(1, bins_of(self.confidence), gap),
            "hits": torch.bincount(hits, minlength=self.count).double(),
            "said": said.counts(self.count).double(),
            "true": true.counts(self.count).double(),
        }

    def quality(self, rows: Rows) -> dict[str, Values]:
        """F1 of entities; accuracy, NLL and ECE of words."""
        sums = self._sums(rows)
        return {
            "f1": 2 * sums["hits"] / (sums["said"] + sums["true"]).clamp_min(1),
            "token_accuracy": sums["right"] / sums["words"],
            "nll": sums["nll"] / sums["words"],
            "ece": sums["gaps"].abs().sum(dim=1) / sums["words"],
        }

    def _sums(self, rows: Rows) -> dict[str, Tensor]:
        # How often each text was drawn, rather than all that were.
        often = counted(rows, self.count).double()
        return {name: often @ values for name, values in self._by_text.items()}

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        def measured(rows: Rows) -> dict[str, Values]:
            sums = self._sums(rows)
            return self.quality(rows) | {
                "precision": sums["hits"] / sums["said"].clamp_min(1),
                "recall": sums["hits"] / sums["true"].clamp_min(1),
            }

        return measured

    def figures(self) -> dict[str, float | None]:
        """What entities' probabilities are worth, and what came of promises."""
        chances, right = self.sure()
        figures: dict[str, float | None] = {}
        if len(right):
            figures["entity_ece"] = ece_of(chances, right)
        if len(right) > 1:
            selective = Selective(_Promises(chances, right)).metrics(torch.arange(len(right))[None])
            for name in ("aurc", "augrc", "cov5", "mis_auroc"):
                if selective[name].isfinite():
                    figures[name] = float(selective[name])
        if self.answered is not None:
            answered, true = entities_of(self.answered), entities_of(self.labels)
            if len(answered):
                wrong = ~are_right(answered, self.labels)
                figures["wrong"] = float(wrong.double().mean())
            if len(true):
                whole = joint_chances(true, (self.answered > 0).double(), "least")
                figures["missed"] = float((whole == 0).double().mean())
        return figures

    def sure(self) -> tuple[Tensor, Tensor]:
        entities = entities_of(self.tags)
        chances = self.chances[entities.text, entities.first]
        return chances, are_right(entities, self.labels)

    def same(self, other: Any) -> float:
        return float((self.tags == other.tags)[self.there].double().mean())

    def diversity(self) -> dict[str, float]:
        there = self.there
        return {
            "mi": float(self.mutual_information[there].mean()),
            "disagreement": float(self.disagreement[there].mean()),
        }

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        return BIASED


@dataclass(frozen=True)
class _Promises:
    """Entities by how sure they are."""

    confidence: Tensor
    correct: Tensor

    @property
    def promised(self) -> Tensor:
        return self.confidence

    @property
    def kept(self) -> Tensor:
        return self.correct.double()
