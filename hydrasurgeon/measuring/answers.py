"""How predictions are read, and what a model answered, sample by sample, without the logits.

Logits of [sample, member, class] are gone over once, some rows at a time; what stays are a few numbers for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.conformal import prediction_sets
from hydrasurgeon.decision.probabilities import TINY, Labels, Logits
from hydrasurgeon.decision.temperature import calibrated
from hydrasurgeon.files.decided import Conformal, Joint
from hydrasurgeon.measuring import metrics
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.measuring.results import Conditions

ELEMENTS = 1 << 20
"""Logits that are worked on at a time: 4 MB, so that what is made of them stays near the processor."""
Values = Float[Tensor, " sample"]


@dataclass(frozen=True)
class Reading:
    """How predictions are read: which probabilities they make, and which scores tell the foreign."""

    temperature: float = 1.0
    joint: Joint | None = None
    """Instead of the temperature."""
    ood_scores: tuple[str, ...] = ("msp",)
    """The first is the one in use."""
    score_temperature: float | None = None
    conformal: Conformal | None = None
    ci: float | None = None
    seed: int = 0

    @property
    def is_calibrated(self) -> bool:
        return self.joint is not None or self.temperature != 1.0

    def probs(self, logits: Tensor) -> Tensor:
        return calibrated(logits, self.temperature, self.joint)

    def apart(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """How far members are apart on each sample: mutual information, and whether they disagree."""
        return metrics.mutual_information(logits), metrics.disagreements(logits)

    def foreign(self, kind: str, logits: Tensor | None, stored: Mapping[str, Tensor]) -> Tensor:
        """How OOD samples look by one score: one that came with the logits, or a function of them."""
        if kind in stored:
            return stored[kind]
        assert logits is not None  # scores_in
        at = self.temperature if self.score_temperature is None else self.score_temperature
        return torch.cat([metrics.ood_score(rows, kind, at) for (rows,) in in_pieces(logits)])


@dataclass(frozen=True)
class Answers:
    """On a labelled set."""

    labels: Int[Tensor, " sample"]
    confidence: Values
    correct: Bool[Tensor, " sample"]
    brier: Values
    """Σ_c (p_c − y_c)² of each sample."""
    nll: Values
    mutual_information: Values
    disagreement: Values
    covered: Bool[Tensor, " sample"] | None = None
    """Whether the prediction set holds the truth; None without a decision state that makes such sets."""
    set_size: Values | None = None


@dataclass(frozen=True)
class Answered:
    """One model's answers on all sets."""

    inside: Answers
    scores: Mapping[str, Values] = field(default_factory=dict)
    """The OOD scores of the labelled set; the first is the one in use."""
    foreign: tuple[OodSet, ...] = ()
    """OOD sets without logits, by every score that was asked for."""
    classes: int = 0
    conditions: Conditions = field(default_factory=Conditions)

    @property
    def used(self) -> str:
        """The OOD score in use."""
        return next(iter(self.scores), "msp")


def answered(predictions: Predictions, reading: Reading) -> Answered:
    """What one model said about the labelled set and the OOD sets."""
    # Without OOD data there is nothing to detect by a score.
    kinds = reading.ood_scores if predictions.ood else ()
    return Answered(
        answers(predictions.logits, predictions.labels, reading),
        {kind: reading.foreign(kind, predictions.logits, predictions.scores) for kind in kinds},
        tuple(
            OodSet(s.name, s.group, None, {kind: reading.foreign(kind, s.logits, s.scores) for kind in kinds})
            for s in predictions.ood
        ),
        predictions.logits.shape[-1],
        Conditions(next(iter(kinds), None), reading.is_calibrated, predictions.provenance),
    )


def answers(logits: Logits, labels: Labels, reading: Reading) -> Answers:
    """Each sample's answer, as it is read."""
    joined: dict[str, Tensor] = {}
    done = 0
    for rows, truth in in_pieces(logits, labels):
        piece = _piece(rows, truth, reading)
        # Made at once: small tensors kept from each piece would tear the memory that the next one could use.
        joined = joined or {name: values.new_empty(len(labels), *values.shape[1:]) for name, values in piece.items()}
        for name, values in piece.items():
            joined[name][done : done + len(rows)] = values
        done += len(rows)
    return Answers(labels=labels, **joined)


def in_pieces(logits: Logits, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows at a time, so that what is made of them stays small."""
    most = max(1, ELEMENTS // max(1, logits[:1].numel()))
    return zip(*(each.split(most) for each in (logits, *others)), strict=True)


def _piece(logits: Logits, labels: Labels, reading: Reading) -> dict[str, Tensor]:
    probs = reading.probs(logits)
    confidence, predicted = probs.max(dim=-1)
    truth = torch.nn.functional.one_hot(labels, probs.shape[-1])
    mutual_information, disagreement = reading.apart(logits)
    values = {
        "confidence": confidence,
        "correct": predicted == labels,
        "brier": (probs - truth).square().sum(dim=-1),
        "nll": -probs.gather(1, labels[:, None])[:, 0].clamp_min(TINY).log(),
        "mutual_information": mutual_information,
        "disagreement": disagreement,
    }
    if reading.conformal is not None:
        sets = prediction_sets(reading.conformal, probs)
        values["covered"] = sets.gather(1, labels[:, None])[:, 0]
        values["set_size"] = sets.sum(dim=-1).double()
    return values
