"""What a model answered, sample by sample: all that metrics, curves and comparisons need, without the logits.

Logits of [sample, member, class] are gone over once, some rows at a time; what stays are a few numbers for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.probabilities import TINY, Labels, Logits
from hydrasurgeon.measuring import metrics, selective
from hydrasurgeon.measuring.conditions import Conditions
from hydrasurgeon.measuring.intervals import bootstrap
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.reading import Reading
from hydrasurgeon.measuring.report import IdResult
from hydrasurgeon.measuring.smooth import smooth_ece

# Logits that are worked on at a time: 4 MB of them, so that what is made of them stays near the processor.
ELEMENTS = 1 << 20

Values = Float[Tensor, " sample"]
PLAIN = Conditions("msp", calibrated=False)
"""The conditions of answers of which nothing is known."""


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
class Foreign:
    """An OOD set, by every score that was asked for."""

    name: str
    group: Literal["near", "far"]
    scores: Mapping[str, Values]


@dataclass(frozen=True)
class Answered:
    """One row of the report, sample by sample."""

    name: str
    inside: Answers
    scores: Mapping[str, Values] = field(default_factory=dict)
    """The OOD scores of the labelled set; the first is the one in use."""
    foreign: tuple[Foreign, ...] = ()
    classes: int = 0
    conditions: Conditions = PLAIN
    """What a comparison should have alike."""

    @property
    def used(self) -> str:
        """The OOD score in use."""
        return next(iter(self.scores), "msp")


def answered(predictions: Predictions, reading: Reading) -> Answered:
    """What one model said about the labelled set and the foreign ones."""
    kinds = reading.ood_scores
    return Answered(
        predictions.name,
        answers(predictions.logits, predictions.labels, reading),
        {
            kind: reading.foreign(kind, predictions.logits, predictions.scores)
            for kind in kinds
            # Without foreign data there is nothing to tell by it.
            if predictions.ood
        },
        tuple(
            Foreign(s.name, s.group, {kind: reading.foreign(kind, s.logits, s.scores) for kind in kinds})
            for s in predictions.ood
        ),
        predictions.logits.shape[-1],
        Conditions(kinds[0] if predictions.ood else None, reading.is_calibrated, predictions.provenance),
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


def in_pieces(logits: Logits, labels: Labels) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time, so that what is made of them stays small."""
    most = max(1, ELEMENTS // max(1, logits[:1].numel()))
    yield from zip(logits.split(most), labels.split(most), strict=True)


def _piece(logits: Logits, labels: Labels, reading: Reading) -> dict[str, Tensor]:
    probs = reading.probs(logits)
    confidence, predicted = probs.max(dim=-1)
    truth = torch.nn.functional.one_hot(labels, probs.shape[-1])
    of_truth = probs.gather(1, labels[:, None])[:, 0]
    mutual_information, disagreement = reading.apart(logits)
    values = {
        "confidence": confidence,
        "correct": predicted == labels,
        "brier": (probs - truth).square().sum(dim=-1),
        "nll": -of_truth.clamp_min(TINY).log(),
        "mutual_information": mutual_information,
        "disagreement": disagreement,
    }
    if reading.conformal is not None:
        sets = reading.conformal.sets(probs)
        values["covered"] = sets.gather(1, labels[:, None])[:, 0]
        values["set_size"] = sets.sum(dim=-1).double()
    return values


def summary(inside: Answers, reading: Reading) -> IdResult:
    """Quality, calibration and selective risk."""

    def measures(rows: Tensor | slice) -> dict[str, float | None]:
        sure, right = inside.confidence[rows], inside.correct[rows]
        return {
            "accuracy": float(right.double().mean()),
            "brier": float(inside.brier[rows].mean()),
            "nll": float(inside.nll[rows].mean()),
            "ece": metrics.ece_of(sure, right),
            "aece": metrics.aece_of(sure, right),
            "aurc": selective.aurc(sure, right),
            "augrc": selective.augrc(sure, right),
            "cov5": selective.coverage_at_risk(sure, right),
            "mis_auroc": selective.misclassification_auroc(sure, right),
        }

    values: dict[str, object] = {**measures(slice(None))}
    values["smece"] = smooth_ece(inside.confidence, inside.correct)
    if inside.covered is not None and inside.set_size is not None:
        values |= {"coverage": float(inside.covered.double().mean()), "set_size": float(inside.set_size.mean())}
    if reading.ci is not None:
        values["ci"] = bootstrap(measures, len(inside.labels), level=reading.ci, seed=reading.seed)
    return IdResult.model_validate({"n": len(inside.labels), **values})
