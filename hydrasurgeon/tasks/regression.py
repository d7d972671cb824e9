"""A number: regression, similarity. The first output is its value, an optional second one the
logarithm of its variance.

    value   ŷ = mean of the members' values        spread   v = their standard deviation
    σ²      = a² · u + e² · v²                     u: 1, or the members' mean of exp(second output)
    low, high = ŷ ∓ q σ                            q: the ⌈(n + 1) · coverage⌉-th smallest |y − ŷ| / σ

`a` and `e` have the smallest Gaussian NLL on a third of the validation data; q is taken on the
others (split conformal), so that the interval holds the truth with probability ≥ coverage, whatever
the model. OOD scores are those that features alone fit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import MOST_NUMBER, NUMBER_EACH
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import DecisionRecord, Joint
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.lookup import format_number
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.statistics.bootstrap import Rows, Values
from hydrasurgeon.statistics.conformal import largest, sets_of
from hydrasurgeon.statistics.minimum import minimize
from hydrasurgeon.statistics.probabilities import Scores
from hydrasurgeon.tasks.base import (
    DOUBTS,
    Calibration,
    Certifying,
    Columns,
    Constants,
    Judged,
    Outputs,
    Prediction,
    Reads,
    Task,
    Watched,
    digits,
)
from hydrasurgeon.tasks.unfit import ROUNDING

TINY = 1e-12
"""Smallest variance."""
RANGES = 10
"""Number of ranges in which `monitor` counts values."""
LOSS = "The labels do not fit: check that each belongs to its row, and is on the model's scale."
"""Hint for a model that predicts no better than the mean."""


@dataclass(frozen=True, kw_only=True, repr=False)
class NumberPrediction(Prediction):
    """Numbers, between which bounds they lie, and how far members are apart."""

    value: Float[ndarray, " sample"]
    low: Float[ndarray, " sample"]
    """Lower end of the interval; NaN without a decision state, as `high`."""
    high: Float[ndarray, " sample"]
    spread: Float[ndarray, " sample"]
    deviation: Float[ndarray, " sample"]
    levels: tuple[float, ...] = ()
    """Bounds of the ranges in which `monitor` counts values."""

    @property
    def plain_answers(self) -> Sequence[Any]:
        return digits(self.value)

    @property
    def uncertainty(self) -> Float[ndarray, " sample"]:
        return self.spread

    @property
    def tally(self) -> Int[ndarray, " range"]:
        ranges = np.searchsorted(np.array(self.levels), self.value)
        return np.bincount(ranges, minlength=len(self.levels) + 1)

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        nothing = [None] * len(self.value)
        return {
            "value": digits(self.value),
            "low": digits(self.low) if self.decided else nothing,
            "high": digits(self.high) if self.decided else nothing,
            "spread": digits(self.spread),
            **self.verdict(),
            "answer": self.answer,
        }


@dataclass(frozen=True, kw_only=True)
class JudgedNumbers(Judged):
    """Numbers against the truth."""

    error: Float[ndarray, " sample"]
    nll: Float[ndarray, " sample"]
    """NaN without a decision state, as `covered` and `width`."""
    covered: Float[ndarray, " sample"]
    width: Float[ndarray, " sample"]

    def quality(self, rows: Rows) -> dict[str, Values]:
        error = self.error[rows]
        return {
            "rmse": np.sqrt(np.square(error).mean(axis=1)),
            "mae": np.abs(error).mean(axis=1),
            "nll": self.nll[rows].mean(axis=1),
        }

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        def measured(rows: Rows) -> dict[str, Values]:
            squares = np.square(self.error[rows]).mean(axis=1)
            variance = self.labels[rows].var(axis=1)
            return self.quality(rows) | {
                "r2": 1 - squares / variance,
                "coverage": self.covered[rows].mean(axis=1),
                "width": self.width[rows].mean(axis=1),
            }

        return measured


class Regression(Task):
    """Task of predicting a number."""

    name: ClassVar[TaskName] = "regression"
    in_torch = "hydrasurgeon.runtime.kinds:TorchRegression"
    trained_by = "hydrasurgeon.tuning.losses:RegressionLosses"
    labels = NUMBER_EACH
    one_class = True
    numbers = (-MOST_NUMBER, MOST_NUMBER)
    link = "square"
    scores = ()
    features = ("mds", "maha++", "residual", "knn")
    columns: ClassVar = {
        **dict.fromkeys(("value", "low", "high", "spread", "ood_score"), "number"),
        **{name: DOUBTS[name] for name in ("unfamiliar", "answer", "error")},
    }
    lacks: ClassVar = {
        "--objective ood": "Numbers are chosen by their errors.",
        "predict_proba": "Use predict or decide.",
        **Task.lacks,
        **dict.fromkeys(("--risk", "--cascade"), "Its intervals hold the truth by --coverage."),
        "--method cahp": "It compares samples of one class with those of others.",
        "--method circuit": "It keeps what is right or wrong; give --method taylor.",
        "--check": "What it compares, accuracy and ECE, are those of classes; export without it.",
        "a decision state in a graph": "Export the checkpoint as it was before calibrate.",
        "--html": "Its charts are of classes; --json and --markdown have the numbers.",
        "--shift": "What is measured under shifts is accuracy; give the data as another --data.",
    }

    def validated(
        self, logits: Float[ndarray, "sample *member klass"], labels: ndarray
    ) -> dict[str, float]:
        value = logits[..., 0].reshape(len(labels), -1).mean(axis=1)
        return {"nll": float(np.square(value - labels).astype(np.float64).mean())}

    def read(self, logits: Float[ndarray, "sample member klass"]) -> ndarray:
        return logits[..., :1]

    def constants(self, record: DecisionRecord) -> Constants:
        return {"joint": record.joint, "conformal": record.conformal}

    def answers(self, logits: ndarray, constants: Constants) -> Float[ndarray, "sample 2"]:
        """Return values with their deviations: NaN without calibration."""
        value, variance, unit = _moments(logits)
        joint = constants.get("joint")
        if joint is None:
            return np.stack([value, np.full_like(value, np.nan)], axis=-1)
        square = joint.aleatoric**2 * unit + joint.epistemic**2 * variance
        return np.stack([value, np.sqrt(np.maximum(square, TINY))], axis=-1)

    def plain(self, logits: ndarray, constants: Constants) -> NumberPrediction:
        value, deviation = self.answers(logits, constants).T
        nothing = np.full_like(value, np.nan)
        never = np.zeros_like(value, dtype=bool)
        return NumberPrediction(
            members_run=np.full((len(value),), logits.shape[1]),
            value=value,
            low=nothing,
            high=nothing,
            spread=np.sqrt(_moments(logits)[1]),
            deviation=deviation,
            ood_score=nothing,
            unfamiliar=never,
            abstain=never,
        )

    def limited(self, decided: Prediction, record: DecisionRecord) -> dict[str, Any]:
        half = record.conformal.threshold * decided.deviation
        low, high = decided.value - half, decided.value + half
        return {"low": low, "high": high, "levels": record.levels}

    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        """Return ranges of values that were equally frequent on validation data."""
        return Watched(_ranges(decision))

    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        return _ranges(decision)[bisect_left(decision.levels, float(row["value"]))]

    def unsure(self, row: Mapping[str, Any]) -> float:
        return float(row["spread"])

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Fit the weights of the members' own variance and of their spread by the Gaussian NLL."""
        constants = self.fitted(fitting)
        truth, guess = _truth(certifying), _guess(fitting)
        loss = float(_nll(self.answers(certifying.logits, constants), truth).mean())
        guessing = float(_nll(np.tile(guess, (len(truth), 1)), truth).mean())
        return Calibration(constants, None, {"before": guessing, "joint": loss})

    def check_labels(self, fitting: Outputs, certifying: Outputs, fit: Calibration) -> None:
        """Refuse labels that the values are no nearer to than the mean of the labels is."""
        values = self.answers(certifying.logits, fit.constants)[:, 0]
        error, spread = (
            float(np.square(_truth(certifying) - guesses).mean())
            for guesses in (values, _guess(fitting)[0])
        )
        if error >= spread * (1 - ROUNDING):
            raise DataError(
                "the model predicts no better than the mean of the labels: its mean squared error is "
                f"{format_number(error, 4)}, that of the mean {format_number(spread, 4)}",
                hint=LOSS,
            )

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        return {"joint": _fitted(outputs)}

    def promised(self, by: Certifying) -> dict[str, Any]:
        errors = (
            np.abs(_truth(part.outputs) - part.answers[:, 0]) / part.answers[:, 1]
            for part in by.parts
        )
        sets = largest(sets_of(scores, by.promise.coverage) for scores in errors)
        value = by.parts[0].answers[:, 0]
        levels = np.quantile(value, np.arange(1, RANGES) / RANGES).tolist()
        # As their names have them.
        rounded = tuple(sorted({float(f"{level:g}") for level in levels}))
        return {"conformal": sets, "levels": rounded}

    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> JudgedNumbers:
        answers, truth = reading.answers(logits), labels.astype(np.float64)
        value, deviation = answers.T
        half = np.full_like(value, np.nan)
        if reading.conformal is not None:
            half = reading.conformal.threshold * deviation
        covered = np.where(np.isnan(half), half, (np.abs(truth - value) <= half).astype(np.float64))
        return JudgedNumbers(
            labels=truth,
            error=value - truth,
            nll=_nll(answers, truth),
            covered=covered,
            width=2 * half,
        )


def _ranges(decision: DecisionRecord) -> list[str]:
    bounds = ("lowest", *(format_number(level, 6) for level in decision.levels), "highest")
    return [f"{low} to {high}" for low, high in pairwise(bounds)]


def _moments(logits: Float[ndarray, "sample member klass"]) -> tuple[Scores, Scores, Scores]:
    """Return the members' mean, their variance, and the mean of the variances that they predict."""
    values = logits[..., 0].astype(np.float64)
    variances = np.ones_like(values)
    if logits.shape[-1] == 2:
        variances = np.exp(logits[..., 1].astype(np.float64))
    mean = values.mean(axis=1)
    return mean, np.square(values - mean[:, None]).mean(axis=1), variances.mean(axis=1)


def _guess(outputs: Outputs) -> ndarray:
    """Return the mean and the standard deviation of the labels: the answer without a model."""
    truth = _truth(outputs)
    return np.array([truth.mean(), max(truth.std(), TINY)])


def _truth(outputs: Outputs) -> Scores:
    assert outputs.original_labels is not None
    return outputs.original_labels.astype(np.float64)


def _nll(answers: Float[ndarray, "sample 2"], truth: Scores) -> Scores:
    value, deviation = answers.T
    return (
        np.log(deviation) + np.square((truth - value) / deviation) / 2 + math.log(2 * math.pi) / 2
    )


def _fitted(outputs: Outputs) -> Joint:
    """Fit both weights by L-BFGS over logarithms, starting from the deviation of the errors; one
    member has a closed form.
    """
    value, variance, unit = _moments(outputs.logits)
    squares = np.square(_truth(outputs) - value)
    start = float(np.maximum(np.sqrt((squares / unit).mean()), TINY))
    if outputs.logits.shape[1] == 1:
        return Joint(aleatoric=start, epistemic=1.0)
    floor = math.log(start) - 10

    def loss(point: ndarray) -> tuple[float, ndarray]:
        """Return the loss with its gradient."""
        parts = np.exp(2 * point)[:, None] * np.stack([unit, variance])
        total = np.maximum(parts.sum(axis=0), TINY)
        value = (np.log(total) + squares / total).mean() / 2
        return float(value), (parts * (1 / total - squares / total**2)).mean(axis=1)

    begin = np.clip([math.log(start), 0.0], floor, floor + 20)
    bounds = [(floor, floor + 20)] * 2
    point = minimize(loss, begin, bounds=bounds, change=0, slope=1e-10)
    aleatoric, epistemic = np.exp(point).tolist()
    return Joint(aleatoric=aleatoric, epistemic=epistemic)
