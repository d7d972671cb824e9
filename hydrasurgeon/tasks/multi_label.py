"""Decisions on many labels: each has its own temperature and threshold, and sets miss few labels.

    p_l = σ(ℓ_l / T_l),   ℓ_l the log-odds of the members' mean probability of label l

A label is answered from the threshold on that gives it the best F1. The set of a sample is every
label of at least λ, the largest with  n/(n+1) R(λ) + 1/(n+1) ≤ 1 − coverage,  R the mean fraction
of a sample's labels that is missed, over the n samples that have a label: of such samples so much
is missed on average at most (conformal risk control, Angelopoulos et al., ICLR 2024).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import MANY_EACH
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import (
    OF_LABELS,
    Conformal,
    DecisionRecord,
    PerLabel,
)
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.bootstrap import Rows
from hydrasurgeon.statistics.conformal import largest, prediction_sets
from hydrasurgeon.statistics.metrics import labelling
from hydrasurgeon.statistics.probabilities import (
    TINY,
    Labels,
    Scores,
    entropy,
    falling,
    yes_or_no,
)
from hydrasurgeon.statistics.temperature import calibrated, temperature_of, uncertainties
from hydrasurgeon.tasks import unfit
from hydrasurgeon.tasks.base import (
    DOUBTS,
    Calibration,
    Certifying,
    Columns,
    Constants,
    Outputs,
    Prediction,
    Reads,
    Task,
    Watched,
)
from hydrasurgeon.tasks.binary import Binary, JudgedYesNo
from hydrasurgeon.tasks.single_label import ClassPrediction, JudgedClasses

Choices = Float[ndarray, "sample member label 2"]
Chances = Float[ndarray, "sample label"]
EDGE = 1e-12
"""Distance from 0 and 1 within which a threshold means that a label is always or never answered."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelsPrediction(ClassPrediction):
    """Any number of labels."""

    chosen: Bool[ndarray, "sample label"]
    """Answered labels."""

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        count = len(self.labels)
        held = [self.ranked(i, names, self.chosen) for i in range(count)]
        return {
            "labels": held,
            "top": [self.ranked(i, names)[:top] for i in range(count)],
            "set": [self.held(i, names) for i in range(count)],
            **self.doubts(),
            "answer": self.with_verdict([name for name, _ in ranking] for ranking in held),
        }


@dataclass(frozen=True, kw_only=True)
class JudgedLabels(JudgedYesNo):
    """Every label of every sample, sample by sample."""

    per_sample: int
    """Number of labels of a sample."""

    @property
    def count(self) -> int:
        return len(self.labels) // self.per_sample

    def choices(self, rows: Rows) -> Int[ndarray, "repeat choice"]:
        return (rows[..., None] * self.per_sample + np.arange(self.per_sample)).reshape(
            len(rows), -1
        )

    def by_class(self) -> Mapping[int, Mapping[str, float | None]]:
        return {}

    def figures(self) -> dict[str, float | None]:
        shape = (self.count, self.per_sample)
        chosen, holds = (
            self.predicted.astype(bool).reshape(shape),
            self.labels.astype(bool).reshape(shape),
        )
        of_labels = labelling(self.yes.reshape(shape), chosen, holds)
        return JudgedClasses.figures(self) | of_labels


class MultiLabel(Binary):
    """Task of a separate choice for each label."""

    name: ClassVar[TaskName] = "multi_label"
    in_torch = "hydrasurgeon.runtime.kinds:TorchMultiLabel"
    trained_by = "hydrasurgeon.tuning.losses:MultiLabelLosses"
    labels = MANY_EACH
    scores: ClassVar[Collection[str]] = OF_LABELS
    label_axes = ("sample", "class")
    features = ()
    columns: ClassVar = {**dict.fromkeys(("labels", "top", "set"), "json"), **DOUBTS}
    lacks: ClassVar = {
        **Binary.lacks,
        "--objective ood": "Give --objective nll or acc.",
        "--risk": "Its sets miss few labels by --coverage.",
        "--method cahp": "It compares samples of one class with those of others.",
    }

    def read(self, logits: ndarray) -> ndarray:
        return logits if logits.ndim == 4 else yes_or_no(logits[..., None])

    def outputs(self, outputs: Outputs) -> Outputs:
        return Task.outputs(self, outputs)

    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        names = model.labels or range(model.num_classes)
        return Watched(names, len(names) * math.log(2))

    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        """Return the most probable label, which CSV holds in its own column."""
        if "top1" in row:
            return str(row["top1"])
        top = json.loads(row["top"]) if isinstance(row["top"], str) else row["top"]
        return str(top[0][0])

    def answered_class(self, probs: ndarray, record: DecisionRecord) -> None:
        """Return None: no risk is promised of many labels."""

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        return [str(name) for name, _ in row["labels"]]

    def constants(self, record: DecisionRecord) -> Constants:
        return {"labels": record.labels}

    def answers(self, logits: ndarray, constants: Constants) -> Chances:
        return probs_of(self.read(logits), _temperatures(constants))

    def uncertainties(self, choices: Choices, constants: Constants) -> tuple[Scores, Scores]:
        """Return the total and aleatoric uncertainty, summed over labels."""
        total, aleatoric = uncertainties(choices, _column(_temperatures(constants)))
        return total.sum(axis=-1), aleatoric.sum(axis=-1)

    def plain(self, logits: ndarray, constants: Constants) -> LabelsPrediction:
        plain = ClassPrediction.of(self, self.read(logits), constants)
        labels = constants.get("labels")
        chosen = plain.probabilities >= (0.5 if labels is None else _row(labels.thresholds))
        return LabelsPrediction(**vars(plain), chosen=chosen)

    def choices(
        self, logits: Float[ndarray, "sample member label"], labels: ndarray | None = None
    ) -> tuple[ndarray, Labels]:
        choices, truth = super().choices(logits, labels)
        return _apart(choices), truth

    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> JudgedLabels:
        # Its sets promise what they miss, and not to hold one truth.
        fields = vars(super().judged(logits, labels, reading)) | {"covered": None, "set_size": None}
        judged = JudgedLabels(**fields, per_sample=labels.shape[1])
        constants = reading.constants.get("labels")
        if constants is None:
            return judged
        thresholds = np.tile(_row(constants.thresholds), len(labels))
        predicted = (judged.yes >= thresholds).astype(np.int64)
        return replace(judged, predicted=predicted, correct=predicted == judged.labels)

    def chances(self, answers: Chances) -> Float[ndarray, "choice 2"]:
        yes = answers.reshape(-1)
        return np.stack([1 - yes, yes], axis=-1)

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        constants = self.fitted(fitting)
        labels = constants["labels"]
        truth = certifying.truth.astype(np.float64)
        chances = probs_of(certifying.logits, labels.temperatures)
        losses = self.losses_of(certifying, {"temperatures": labels.temperatures})
        right = (chances >= _row(labels.thresholds)) == truth.astype(bool)
        return Calibration(constants, float(right.astype(np.float64).mean()), losses)

    def check_labels(self, fitting: Outputs, certifying: Outputs, fit: Calibration) -> None:
        count = fitting.truth.shape[1]
        correlated = unfit.correlations(_log_odds(fitting.logits), fitting.truth)
        answered, stands_for = np.divmod(np.arange(count * count), count)
        order = unfit.best_order(answered, stands_for, correlated.reshape(-1), count)
        truth = certifying.truth.astype(np.float64)
        unfit.check_columns(_log_odds(certifying.logits), truth, order)
        _check_fit(fitting.joined(certifying), fit.accuracy or 0.0)

    def losses_of(self, outputs: Outputs, constants: Constants) -> dict[str, float]:
        truth = outputs.truth.astype(np.float64)
        ways = {"before": None, "temperature": constants["temperatures"]}
        return {
            name: float(_loss(np.clip(probs_of(outputs.logits, at), TINY, 1.0), truth))
            for name, at in ways.items()
        }

    def _roughly(self, outputs: Outputs) -> dict[str, Any]:
        """Return one temperature for all labels."""
        truth = outputs.truth.astype(np.int64).reshape(-1)
        return {"temperatures": (temperature_of(_apart(outputs.logits), truth),)}

    def _right(self, outputs: Outputs) -> Bool[ndarray, "sample label"]:
        return (probs_of(outputs.logits) > 0.5) == outputs.truth.astype(bool)

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        labels = fit_labels(outputs.logits, outputs.truth.astype(bool))
        return {"temperature": 1.0, "labels": labels}

    def promised(self, by: Certifying) -> dict[str, Any]:
        sets = (
            fit_sets(part.answers, part.outputs.truth.astype(bool), by.promise.coverage)
            for part in by.parts
        )
        return {"conformal": largest(sets)}

    def limited(self, decided: Prediction, record: DecisionRecord) -> dict[str, Any]:
        return {"sets": prediction_sets(record.conformal, decided.probabilities)}


def _temperatures(constants: Constants) -> Sequence[float] | None:
    labels = constants.get("labels")
    if labels is not None:
        return labels.temperatures
    return (constants["temperature"],) if "temperature" in constants else None


def _log_odds(choices: Choices) -> Chances:
    chances = np.clip(probs_of(choices), TINY, 1 - EDGE)
    return np.log(chances / (1 - chances))


def _apart(choices: Choices) -> Float[ndarray, "choice member 2"]:
    """Return each label of a sample as a choice of its own."""
    return np.swapaxes(choices, 1, 2).reshape(-1, choices.shape[1], 2)


def _loss(chances: Chances, truth: Chances) -> float:
    """Return the cross-entropy, with logarithms of at least −100."""
    with np.errstate(divide="ignore"):
        yes, no = (np.maximum(np.log(share), -100.0) for share in (chances, 1 - chances))
    return -float((truth * yes + (1 - truth) * no).mean())


def _check_fit(outputs: Outputs, accuracy: float) -> None:
    """Refuse labels that do not fit, judged by labels that some samples have and others lack;
    constants come from all rows.
    """
    truth = outputs.truth.astype(np.float64)
    shares = truth.mean(axis=0)
    varies = (shares > 0) & (shares < 1)
    choices, truth, shares = outputs.logits[:, :, varies], truth[:, varies], shares[varies]
    temperatures = fit_labels(choices, truth.astype(bool)).temperatures
    chances = np.clip(probs_of(choices, temperatures), TINY, 1.0)
    unfit.check_fit(
        _loss(chances, truth),
        float(entropy(np.stack([1 - shares, shares], axis=-1)).mean()),
        accuracy,
        min(temperatures, default=1.0),
        agreement=unfit.agreement(_log_odds(choices), truth),
        separated=True,
    )


def _row(values: Sequence[float]) -> ndarray:
    return np.array(values, dtype=np.float64)


def probs_of(choices: Choices, temperatures: Sequence[float] | None = None) -> Chances:
    """Return the probability of each label."""
    return calibrated(choices, _column(temperatures))[..., 1]


def _column(temperatures: Sequence[float] | None) -> float | ndarray:
    """Return the temperatures of labels as a column, or one for all."""
    return 1.0 if temperatures is None else _row(temperatures)[:, None]


def fit_labels(choices: Choices, truth: Bool[ndarray, "sample label"]) -> PerLabel:
    """Fit the temperature of each label by NLL and its threshold by F1; a label without both a yes
    and a no keeps 1 and ½.
    """
    temperatures, thresholds = [], []
    for label in range(truth.shape[1]):
        some, holds = choices[:, :, label], truth[:, label]
        varies = bool(holds.any()) and not bool(holds.all())
        temperatures.append(temperature_of(some, holds.astype(np.int64)) if varies else 1.0)
        chances = probs_of(choices[:, :, label : label + 1], temperatures[-1:])[:, 0]
        thresholds.append(best_threshold(chances, holds) if varies else 0.5)
    return PerLabel(temperatures=tuple(temperatures), thresholds=tuple(thresholds))


def best_threshold(chances: Float[ndarray, " sample"], holds: Bool[ndarray, " sample"]) -> float:
    """Return the probability from which on a yes gives the highest F1: halfway to the next lower
    one; the highest of equally good ones.
    """
    order = falling(chances)
    ordered, hits = chances[order], holds[order].cumsum()
    scores = 2 * hits / (np.arange(1, len(hits) + 1) + holds.sum())
    last = np.append(ordered[1:] != ordered[:-1], True)  # equals are answered together
    at = int(np.where(last, scores, -1.0).argmax())
    below = float(ordered[at + 1]) if at + 1 < len(ordered) else 0.0
    return (float(ordered[at]) + below) / 2


def fit_sets(chances: Chances, truth: Bool[ndarray, "sample label"], coverage: float) -> Conformal:
    """Return the largest λ that misses few enough labels, as 1 − λ, so that LAC's rule selects the
    labels of a set.
    """
    # A sample without labels has none to miss, and would pass for one that is answered well.
    labelled = truth.any(axis=1)
    chances, truth = chances[labelled], truth[labelled]
    count, missed = len(truth), 1 - coverage
    if 1 / (count + 1) > missed:
        message = (
            f"{count} rows with a label are too few to certify that at most {missed:g} of the labels "
            "are missed"
        )
        raise DataError(
            message, hint="Give more --data (two thirds of it certify), or a smaller --coverage."
        )
    # What a sample's labels lose as λ passes each of their probabilities.
    weights = truth.astype(np.float64) / truth.sum(axis=1, keepdims=True)
    order = chances[truth].argsort(kind="stable")
    values, lost = chances[truth][order], weights[truth][order].cumsum()
    fine = np.flatnonzero((lost + 1) / (count + 1) <= missed + 1e-12)
    following = int(fine[-1]) + 1 if len(fine) else 0
    # At the next one nothing of it is lost yet; a tie is lost as a whole.
    most = float(values[following]) if following < len(values) else 1.0
    return Conformal(method="lac", coverage=coverage, threshold=1 - most)
