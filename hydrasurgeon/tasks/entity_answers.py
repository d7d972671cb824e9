"""Entities as answers: tags of words, their columns in rows, and their evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.data.word_tokens import words_of
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.bootstrap import Rows, Selective, Values, counted, summed
from hydrasurgeon.statistics.entities import (
    Entities,
    are_right,
    entities_of,
    joint_chances,
    with_openings,
)
from hydrasurgeon.statistics.metrics import BINS, auroc, bins_of, ece_of
from hydrasurgeon.statistics.probabilities import sums_at, surest
from hydrasurgeon.tasks.base import Columns, Constants, Judged, Prediction, Reads, digits
from hydrasurgeon.tasks.single_label import BIASED

Chances = Float[ndarray, "text word klass"]
WAYS: tuple[Literal["product", "least"], ...] = ("product", "least")
"""Functions that combine the probabilities of words into that of an entity."""
FIELDS = ("start", "end", "text", "label", "probability", "answer")
"""Fields of an entity in a row."""


def tags_of(
    probs: Chances, cover: float | None = None
) -> tuple[Int[ndarray, "text word"], Float[ndarray, "text word"]]:
    """Return each word's tag and its probability; −1 for places without a word.

    The tag is the most probable one. With `cover`, a word belongs to an entity if its probability
    of not being O is at least `cover`, and gets the most probable tag but O. An entity begins at a
    B, behind an O, and where the kind changes: in data an I that continues nothing begins one too,
    and so it does in transformers' pipelines.
    """
    there = (probs > 0).any(axis=-1)
    chances, tags = surest(probs)
    if cover is not None:
        inner, which = surest(probs[..., 1:])
        belongs = not_outside(probs) >= cover
        tags = np.where(belongs, which + 1, 0)
        chances = np.where(belongs, inner, probs[..., 0])
    tags = with_openings(tags)
    return np.where(there, tags, UNLABELLED), chances


def how_of(constants: Constants) -> str:
    """Return the chosen entry of `WAYS`."""
    entities = constants.get("entities")
    return WAYS[0] if entities is None else entities.probability


def not_outside(probs: Chances) -> Float[ndarray, "text word"]:
    """Return the probability that a word belongs to an entity."""
    return probs[..., 1:].sum(axis=-1)


@dataclass(frozen=True, kw_only=True, repr=False)
class TokensPrediction(Prediction):
    """Tags of words, and their probabilities."""

    tags: Int[ndarray, "text word"]
    """Tags that form entities; −1 for places without a word."""
    chances: Float[ndarray, "text word"]
    """Probability of each tag."""
    how: str = "product"
    """Entry of `WAYS` that gives the probability of an entity."""
    least: float = 0.0
    """Minimum probability of an answered entity."""
    kinds: int
    """Number of kinds of entities."""
    texts: Sequence[Any] | None = None
    """Input texts."""

    def about(self, texts: Callable[[], Sequence[Any]]) -> Self:
        return replace(self, texts=texts())

    @property
    def entities(self) -> tuple[Entities, Float[ndarray, " entity"]]:
        """All predicted entities, with their probabilities."""
        entities = entities_of(self.tags)
        return entities, joint_chances(entities, self.chances, self.how)

    @property
    def answered(self) -> Int[ndarray, "text word"]:
        """Tags of the answered entities."""
        entities, chances = self.entities
        owner, text, word = entities.words()
        sure = (chances >= self.least)[owner]
        tags = np.zeros_like(self.tags)
        tags[text[sure], word[sure]] = self.tags[text[sure], word[sure]]
        return tags

    @property
    def plain_answers(self) -> Sequence[Any]:
        return [*self.columns(self.names, 0)["entities"]]

    @property
    def uncertainty(self) -> Float[ndarray, " text"]:
        """Expected number of wrong entities in each text, from their probabilities."""
        entities, chances = self.entities
        return sums_at(entities.text, 1 - chances, len(self.tags))

    @property
    def tally(self) -> Int[ndarray, " kind"]:
        entities, _ = self.entities
        first = np.zeros(len(self.tags), dtype=np.int64)
        # The last that is written stays.
        first[entities.text[::-1]] = 1 + entities.kind[::-1]
        return np.bincount(first, minlength=1 + self.kinds)

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        """Return entities with character positions, or with word numbers if the texts are
        unknown.
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
    """Return the name of a kind of entities, from the names of the tags."""
    return kind if names is None else names[2 * kind + 1].removeprefix("B-")


def placed(entities: Sequence[Mapping[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return entities with character positions instead of word numbers, and with their texts."""
    spans, moved = words_of(text), []
    for entity in entities:
        start, end = spans[entity["start"]][0], spans[entity["end"] - 1][1]
        moved.append({**entity, "start": start, "end": end, "text": str(text[start:end])})
    return [{name: entity[name] for name in FIELDS} for entity in moved]


@dataclass(frozen=True, kw_only=True)
class JudgedTokens(Judged):
    """Tags of words against the truth."""

    tags: Int[ndarray, "text word"]
    right: Bool[ndarray, "text word"]
    """True if the most probable tag is the true one; an I that begins an entity counts as I."""
    confidence: Float[ndarray, "text word"]
    nll: Float[ndarray, "text word"]
    mutual_information: Float[ndarray, "text word"]
    disagreement: Float[ndarray, "text word"]
    chances: Float[ndarray, "text word"]
    """Probability of an entity, at its first word."""
    answered: Int[ndarray, "text word"] | None = None
    """Tags of the answered entities; None without a promise."""
    abstains: bool = False
    """True if some entities may be left unanswered."""

    @property
    def there(self) -> Bool[ndarray, "text word"]:
        """Words that have a label."""
        return self.labels != UNLABELLED

    @cached_property
    def _by_text(self) -> dict[str, ndarray]:
        """Quantities that are summed over texts."""
        predicted, true, there = entities_of(self.tags), entities_of(self.labels), self.there
        right = self.right & there
        hits = predicted.text[are_right(predicted, self.labels)]
        gap = (right.astype(np.float64) - self.confidence.astype(np.float64)) * there
        return {
            "words": there.sum(axis=1).astype(np.float64),
            "right": right.sum(axis=1).astype(np.float64),
            "nll": self.nll.astype(np.float64).sum(axis=1),
            "gaps": summed(bins_of(self.confidence), gap, BINS + 1),
            "hits": np.bincount(hits, minlength=self.count).astype(np.float64),
            "said": predicted.counts(self.count).astype(np.float64),
            "true": true.counts(self.count).astype(np.float64),
        }

    def quality(self, rows: Rows) -> dict[str, Values]:
        """Return F1 of entities; accuracy, NLL and ECE of words."""
        sums = self._sums(rows)
        return {
            "f1": 2 * sums["hits"] / np.maximum(sums["said"] + sums["true"], 1),
            "token_accuracy": sums["right"] / sums["words"],
            "nll": sums["nll"] / sums["words"],
            "ece": np.abs(sums["gaps"]).sum(axis=1) / sums["words"],
        }

    def _sums(self, rows: Rows) -> dict[str, ndarray]:
        # How often each text was drawn, rather than all that were.
        often = counted(rows, self.count).astype(np.float64)
        return {name: often @ values for name, values in self._by_text.items()}

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        def measured(rows: Rows) -> dict[str, Values]:
            sums = self._sums(rows)
            return self.quality(rows) | {
                "precision": sums["hits"] / np.maximum(sums["said"], 1),
                "recall": sums["hits"] / np.maximum(sums["true"], 1),
            }

        return measured

    def figures(self) -> dict[str, float | None]:
        """Return the calibration of entities' probabilities, and how well promises were kept."""
        chances, right = self.sure()
        figures: dict[str, float | None] = {}
        if len(right):
            figures["entity_ece"] = ece_of(chances, right)
        if len(right) > 1:
            kept = right.astype(np.float64)
            selective = Selective(chances, right, chances, kept).metrics(
                np.arange(len(right))[None]
            )
            for name in ("aurc", "augrc", "cov5", "mis_auroc"):
                if np.isfinite(selective[name]).all():
                    figures[name] = selective[name].item()
        if self.answered is not None:
            answered, true = entities_of(self.answered), entities_of(self.labels)
            if self.abstains and len(right):
                figures["answered"] = len(answered) / len(right)
            if len(answered):
                wrong = ~are_right(answered, self.labels)
                figures["wrong"] = float(wrong.astype(np.float64).mean())
            if len(true):
                covered = joint_chances(true, (self.answered > 0).astype(np.float64), "least")
                figures["missed"] = float((covered == 0).astype(np.float64).mean())
        return figures

    def sure(self) -> tuple[ndarray, ndarray]:
        entities = entities_of(self.tags)
        chances = self.chances[entities.text, entities.first]
        return chances, are_right(entities, self.labels)

    def against(self, logits: ndarray, reading: Reads) -> dict[str, float | None]:
        """Return the AUROC of OOD detection by the probability of entities, which should be lower
        in OOD texts.
        """
        tags, chances = tags_of(reading.answers(logits))
        true_chances = joint_chances(entities_of(tags), chances, how_of(reading.constants))
        return {"entity_auroc": auroc(1 - self.sure()[0], 1 - true_chances)}

    def diversity(self) -> dict[str, float]:
        there = self.there
        return {
            "mi": float(self.mutual_information[there].mean()),
            "disagreement": float(self.disagreement[there].mean()),
        }

    def by_class(self) -> Mapping[int, Mapping[str, float | None]]:
        """Return metrics of each type of entities."""
        true, predicted = entities_of(self.labels), entities_of(self.tags)
        size, predicted_size = Counter(true.kind.tolist()), Counter(predicted.kind.tolist())
        right = Counter(predicted.kind[are_right(predicted, self.labels)].tolist())
        return {
            kind: {
                "entities": size[kind],
                "precision": right[kind] / predicted_size[kind] if predicted_size[kind] else None,
                "recall": right[kind] / size[kind] if size[kind] else None,
                "F1": 2 * right[kind] / (predicted_size[kind] + size[kind]),
            }
            for kind in size | predicted_size
        }

    def class_names(self, names: Sequence[str]) -> Sequence[str]:
        return [name.removeprefix("B-") for name in names[1::2]]

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        return BIASED
