"""How predictions are read, and what a model answered, sample by sample, without the logits.

Logits of [sample, member, class] are gone over once, some rows at a time; what stays are a few
numbers for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.many_labels import probs_of
from hydrasurgeon.decision.problems import SINGLE, Problem
from hydrasurgeon.files.decided import Conformal, Joint, PerLabel
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.measuring.results import Conditions
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.conformal import prediction_sets
from hydrasurgeon.statistics.probabilities import TINY, Logits
from hydrasurgeon.statistics.temperature import calibrated

ELEMENTS = 1 << 20
"""Logits that are worked on at a time: 4 MB, so that what is made of them stays near the processor.
"""
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
    threshold: float | None = None
    """Samples whose score in use is above it are flagged; None where none was fitted."""
    conformal: Conformal | None = None
    ci: float | None = None
    seed: int = 0
    problem: Problem = SINGLE
    bias: float | None = None
    """Of one logit, Platt's."""
    labels: PerLabel | None = None
    """Of many labels, each one's own constants."""

    @property
    def is_calibrated(self) -> bool:
        return (
            self.joint is not None
            or self.temperature != 1.0
            or bool(self.bias)
            or self.labels is not None
        )

    def probs(self, logits: Tensor) -> Tensor:
        if self.labels is not None:  # choices of one sample stand together
            choices = logits.unflatten(0, (-1, len(self.labels.temperatures))).transpose(1, 2)
            yes = probs_of(choices, self.labels.temperatures).flatten()
            return torch.stack([1 - yes, yes], dim=-1)
        return calibrated(logits, self.temperature, self.joint, self.bias)

    def apart(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """How far members are apart on each sample: mutual information, and whether they disagree."""
        return metrics.mutual_information(logits), metrics.disagreements(logits)

    def foreign(self, kind: str, logits: Tensor | None, stored: Mapping[str, Tensor]) -> Tensor:
        """How OOD samples look by one score: one that came with the logits, or a function of them."""
        if kind in stored:
            return stored[kind]
        assert logits is not None  # scores_in
        at = self.temperature if self.score_temperature is None else self.score_temperature
        return torch.cat(
            [
                metrics.ood_score(self.problem.choices(rows), kind, at)
                for (rows,) in in_pieces(logits)
            ]
        )


@dataclass(frozen=True)
class Answers:
    """On a labelled set: a row for each choice, of many labels one for each label of a sample."""

    labels: Int[Tensor, " sample"]
    confidence: Values
    predicted: Int[Tensor, " sample"]
    correct: Bool[Tensor, " sample"]
    brier: Values
    """Σ_c (p_c − y_c)² of each sample; (p − y)² of a yes or no."""
    nll: Values
    mutual_information: Values
    disagreement: Values
    covered: Bool[Tensor, " sample"] | None = None
    """Whether the prediction set holds the truth; None without a decision state that makes such
    sets.
    """
    set_size: Values | None = None
    yes: Values | None = None
    """The probability of yes, where yes or no is the answer."""
    truth: Values | None = None
    """How true yes is."""
    each: int = 1
    """Choices of a sample."""
    groups: Int[Tensor, " sample"] | None = None

    @property
    def count(self) -> int:
        """Samples."""
        return len(self.labels) // self.each

    @property
    def promised(self) -> Values:
        """What calibration is measured of: confidence, or the probability of yes …"""
        return self.confidence if self.yes is None else self.yes

    @property
    def kept(self) -> Values:
        """… and what came true."""
        return self.correct.double() if self.truth is None else self.truth

    def choices(self, rows: Int[Tensor, "repeat sample"]) -> Int[Tensor, "repeat choice"]:
        """The choices of these samples."""
        if self.each == 1:
            return rows
        return (rows[..., None] * self.each + torch.arange(self.each)).flatten(-2)


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
    threshold: float | None = None
    """Of the score in use; None where none was fitted."""

    @property
    def used(self) -> str:
        """The OOD score in use."""
        return next(iter(self.scores), "msp")


def answered(predictions: Predictions, reading: Reading) -> Answered:
    """What one model said about the labelled set and the OOD sets."""
    # Without OOD data there is nothing to detect by a score; a fitted one still says which samples
    # are unfamiliar.
    kinds = reading.ood_scores if predictions.ood else ()
    of_id = kinds or reading.ood_scores[: reading.threshold is not None]
    return Answered(
        answers(predictions.logits, predictions.labels, reading, predictions.groups),
        {kind: reading.foreign(kind, predictions.logits, predictions.scores) for kind in of_id},
        tuple(
            OodSet(
                s.name,
                s.group,
                None,
                {kind: reading.foreign(kind, s.logits, s.scores) for kind in kinds},
            )
            for s in predictions.ood
        ),
        predictions.logits.shape[-1] if reading.problem is SINGLE else 2,
        Conditions(next(iter(kinds), None), reading.is_calibrated, predictions.provenance),
        reading.threshold,
    )


def answers(
    logits: Logits, labels: Tensor, reading: Reading, groups: Tensor | None = None
) -> Answers:
    """Each sample's answer, as it is read."""
    joined: dict[str, Tensor] = {}
    done, each = 0, labels[0].numel() if len(labels) else 1
    for rows, truth in in_pieces(logits, labels):
        piece = _piece(rows, truth, reading)
        # Made at once: small tensors kept from each piece would tear the memory that the next one
        # could use.
        joined = joined or {
            name: values.new_empty(labels.numel(), *values.shape[1:])
            for name, values in piece.items()
        }
        for name, values in piece.items():
            joined[name][done : done + len(values)] = values
        done += truth.numel()
    return Answers(
        labels=reading.problem.truth(labels).flatten(), each=each, groups=groups, **joined
    )


def in_pieces(logits: Logits, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows at a time, so that what is made of them stays small."""
    most = max(1, ELEMENTS // max(1, logits[:1].numel()))
    return zip(*(each.split(most) for each in (logits, *others)), strict=True)


def _piece(logits: Logits, labels: Tensor, reading: Reading) -> dict[str, Tensor]:
    logits, shares, labels = (
        reading.problem.rows(logits),
        labels.flatten(),
        reading.problem.truth(labels).flatten(),
    )
    probs = reading.probs(logits)
    confidence, predicted = probs.max(dim=-1)
    truth = torch.nn.functional.one_hot(labels, probs.shape[-1])
    mutual_information, disagreement = reading.apart(logits)
    values = {
        "confidence": confidence,
        "predicted": predicted,
        "correct": predicted == labels,
        "brier": (probs - truth).square().sum(dim=-1),
        "nll": -probs.gather(1, labels[:, None])[:, 0].clamp_min(TINY).log(),
        "mutual_information": mutual_information,
        "disagreement": disagreement,
    }
    if reading.problem is not SINGLE:
        yes, shares = probs[:, 1], shares.double()
        logs = probs.clamp_min(TINY).log()
        nll = -(1 - shares) * logs[:, 0] - shares * logs[:, 1]
        values |= {"yes": yes, "truth": shares, "brier": (yes - shares).square(), "nll": nll}
        if reading.labels is not None:
            thresholds = torch.tensor(reading.labels.thresholds, dtype=yes.dtype)
            said = (yes.unflatten(0, (-1, len(thresholds))) >= thresholds).flatten().long()
            values |= {"predicted": said, "correct": said == labels}
    if reading.conformal is not None:
        sets = prediction_sets(reading.conformal, probs)
        values["covered"] = sets.gather(1, labels[:, None])[:, 0]
        values["set_size"] = sets.sum(dim=-1).double()
    return values
