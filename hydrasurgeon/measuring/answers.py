"""How predictions are read, and what a model answered, sample by sample, without the logits.

Logits of [sample, member, class] are gone over once, some rows at a time; what stays are a few
numbers for each sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import Conformal, Decision, Found
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.measuring.results import Conditions
from hydrasurgeon.problems import SINGLE, unfit
from hydrasurgeon.problems.base import Constants, Judged, Problem
from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.probabilities import Logits
from hydrasurgeon.statistics.scores.fitted import check_score, scores_of

ELEMENTS = 1 << 20
"""Logits that are worked on at a time: 4 MB, so that what is made of them stays near the processor.
"""
ROWS = 1 << 16
"""Rows that are worked on at a time, however few logits they have."""
Values = Float[ndarray, " sample"]


@dataclass(frozen=True)
class Reading:
    """How predictions are read: which probabilities they make, and which scores detect OOD data."""

    temperature: float = 1.0
    calibration: Constants | None = None
    """A decision state's, instead of the temperature."""
    ood_scores: tuple[str, ...] = ("msp",)
    """The first is the one in use."""
    score_temperature: float | None = None
    threshold: float | None = None
    """Samples whose score in use is above it are flagged; None where none was fitted."""
    conformal: Conformal | None = None
    record: Decision | None = None
    """Whose thresholds say when to abstain; None where nobody does."""
    found: Found | None = None
    """When something was found for a group; None where nothing says so."""
    ci: float | None = None
    seed: int = 0
    problem: Problem = SINGLE

    @property
    def constants(self) -> Constants:
        """What calibrates."""
        return self.calibration or {"temperature": self.temperature}

    @property
    def is_calibrated(self) -> bool:
        return self.calibration is not None or self.temperature != 1.0

    def answers(self, logits: ndarray) -> ndarray:
        """Calibrated."""
        return self.problem.answers(logits, self.constants)

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """How far members are apart: mutual information, and whether they disagree."""
        return metrics.mutual_information(choices), metrics.disagreements(choices)

    def foreign(self, kind: str, logits: ndarray | None, stored: Mapping[str, ndarray]) -> ndarray:
        """How OOD samples look by one score: one that came with the logits, or a function of them."""
        if kind in stored:
            return stored[kind]
        assert logits is not None  # scores_in
        at = self.temperature if self.score_temperature is None else self.score_temperature
        check_score(kind, self.problem.scores)
        read = (self.problem.read(rows) for (rows,) in in_pieces(logits))
        scores = np.concatenate([scores_of(kind, rows, None, None, at) for rows in read])
        return np.round(scores, decimals=metrics.DIGITS)  # equal up to rounding is equal


@dataclass(frozen=True)
class Answered:
    """One model's answers on all sets."""

    inside: Judged
    scores: Mapping[str, Values] = field(default_factory=dict)
    """The OOD scores of the labelled set; the first is the one in use."""
    foreign: tuple[OodSet, ...] = ()
    """OOD sets without logits, by every score that was asked for."""
    classes: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    threshold: float | None = None
    """Of the score in use; None where none was fitted."""

    @property
    def choices(self) -> JudgedClasses:
        """The answers of problems that choose between classes."""
        assert isinstance(self.inside, JudgedClasses)
        return self.inside

    @property
    def used(self) -> str:
        """The OOD score in use."""
        return next(iter(self.scores), "msp")


def answered(predictions: Predictions, reading: Reading) -> Answered:
    """What one model said about the labelled set and the OOD sets."""
    # Without OOD data there is nothing to detect by a score; a fitted one still says which samples
    # are unfamiliar.
    kinds = reading.ood_scores if predictions.ood else ()
    if predictions.ood and not kinds:
        raise UsageError(
            f"--ood: {predictions.name} has no OOD score", hint="Run calibrate on it first."
        )
    inside = answers(predictions.logits, predictions.labels, reading, predictions.groups)
    if reading.problem is SINGLE and isinstance(inside, JudgedClasses):
        _check_order(inside, predictions.logits.shape[-1], predictions.name)
    of_id = kinds or reading.ood_scores[: reading.threshold is not None]
    scores = {kind: reading.foreign(kind, predictions.logits, predictions.scores) for kind in of_id}
    if reading.threshold is not None and isinstance(inside, JudgedClasses):
        inside = inside.without_empty_sets(scores[of_id[0]] > reading.threshold)
    return Answered(
        inside,
        scores,
        tuple(
            OodSet(
                s.name,
                s.group,
                None,
                {kind: reading.foreign(kind, s.logits, s.scores) for kind in kinds},
            )
            for s in predictions.ood
        ),
        reading.problem.read(predictions.logits[:1]).shape[-1],
        Conditions(next(iter(kinds), None), reading.is_calibrated),
        reading.threshold,
    )


def _check_order(inside: JudgedClasses, classes: int, name: str) -> None:
    """Refuse labels that fit far better with the classes in another order: one that half of the rows
    suggests, measured on the others.
    """
    pairs, counts = np.unique((inside.predicted * classes + inside.labels)[::2], return_counts=True)
    order = unfit.best_order(pairs // classes, pairs % classes, counts, classes)
    try:
        unfit.check_order(inside.predicted[1::2], inside.labels[1::2], order)
    except DataError as error:
        raise DataError(f"{name}: {error.message}", hint=error.hint) from None


def answers(
    logits: Logits, labels: ndarray, reading: Reading, groups: ndarray | None = None
) -> Judged:
    """Each sample's answer, as it is read."""
    joined: dict[str, ndarray] = {}
    done = 0
    for rows, truth in in_pieces(logits, labels):
        part = reading.problem.judged(rows, truth, reading)
        fields = {name: each for name, each in vars(part).items() if isinstance(each, ndarray)}
        for name, values in fields.items():
            each = len(values) // len(truth)  # of many labels a sample has several
            if name not in joined:
                # Made at once: small arrays kept from each piece would tear the memory that the
                # next one could use.
                joined[name] = np.empty((each * len(labels), *values.shape[1:]), values.dtype)
            joined[name][each * done : each * done + len(values)] = values
        done += len(truth)
    return replace(part, **joined, groups=groups)


def in_pieces(logits: Logits, *others: ndarray) -> Iterator[tuple[ndarray, ...]]:
    """Some rows at a time, so that what is made of them stays small."""
    most = max(1, min(ROWS, ELEMENTS // max(1, logits[:1].size)))
    parts = (probabilities.in_pieces(each, most) for each in (logits, *others))
    return zip(*parts, strict=True)
