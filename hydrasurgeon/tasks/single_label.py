"""One of several classes: softmax over k logits, cross-entropy.

Yes or no, and each of many labels, are such choices too, between two classes with the logits 0 and
z: `read` converts them, and the metrics of classes then apply.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy import ndarray

from hydrasurgeon.files.decided import FITTED, LOGITS, DecisionRecord
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.files.rows import harmless
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.abstain import Graded, fit_abstention
from hydrasurgeon.statistics.bootstrap import Rows, Selective, Values, summed
from hydrasurgeon.statistics.conformal import fit_conformal, largest, prediction_sets
from hydrasurgeon.statistics.metrics import BINS, bins_of, smooth_ece
from hydrasurgeon.statistics.probabilities import (
    TINY,
    Labels,
    Probs,
    Scores,
    by_pieces,
    entropy,
    falling,
    of_labels,
    surest,
    true_classes,
)
from hydrasurgeon.statistics.temperature import (
    CALIBRATED,
    calibrated,
    mean_logs,
    nll_of,
    temperature_of,
    uncertainties,
)
from hydrasurgeon.tasks import unfit
from hydrasurgeon.tasks.base import (
    DOUBTS,
    Calibration,
    Certifying,
    Columns,
    Constants,
    Judged,
    Outputs,
    Part,
    Prediction,
    Reads,
    Task,
    Watched,
    digits,
)

BIASED = ("ece", "aece")
"""Metrics without an interval: each resample adds its own noise to the errors of the bins, so that
the interval would lie above the truth.
"""
ENOUGH = 1 << 22
"""Number of logits above which training calibrates on an even part of them."""
FEWEST_SURE = 200
"""Minimum number of samples covered by `cov5` for an interval: the ends of a smaller one depend on
a few answers that happen to be wrong.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassPrediction(Prediction):
    """Classes, and how sure they are; entropies in nats: total = aleatoric + epistemic."""

    probabilities: Float[ndarray, "sample klass"]
    labels: Int[ndarray, " sample"]
    """Answered class: `SingleLabel.chosen`."""
    probability: Float[ndarray, " sample"]
    total: Float[ndarray, " sample"]
    aleatoric: Float[ndarray, " sample"]
    epistemic: Float[ndarray, " sample"]
    sets: Bool[ndarray, "sample klass"]
    """Prediction sets; empty without a decision state."""

    @classmethod
    def of(cls, task: SingleLabel, choices: ndarray, constants: Constants) -> ClassPrediction:
        """Return the answers without thresholds."""
        probs = task.answers(choices, constants)
        probability, labels = task.chosen(probs)
        total, aleatoric = task.uncertainties(choices, constants)
        never = np.zeros_like(labels, dtype=bool)
        return cls(
            members_run=np.full_like(labels, choices.shape[1]),
            probabilities=probs,
            labels=labels,
            probability=probability,
            total=total,
            aleatoric=aleatoric,
            epistemic=np.maximum(total - aleatoric, 0.0),
            sets=np.zeros_like(probs, dtype=bool),
            ood_score=np.full_like(probability, np.nan),
            unfamiliar=never,
            abstain=never,
        )

    @property
    def plain_answers(self) -> Sequence[Any]:
        return [called(label, self.names) for label in self.labels.tolist()]

    @property
    def tally(self) -> Int[ndarray, " klass"]:
        return np.bincount(self.labels, minlength=self.probabilities.shape[-1])

    @property
    def uncertainty(self) -> Float[ndarray, " sample"]:
        return self.total

    def doubts(self) -> Columns:
        """Return the columns about certainty and familiarity."""
        entropies = {
            name: digits(getattr(self, name)) for name in ("total", "aleatoric", "epistemic")
        }
        return {**entropies, **self.verdict(), "members_run": self.members_run.tolist()}

    def ranked(
        self, i: int, names: Sequence[str] | None, among: ndarray | None = None
    ) -> list[list[Any]]:
        """Return the classes of a sample with their probabilities, the most probable first."""
        order = falling(self.probabilities[i])
        if among is not None:
            order = order[among[i, order]]
        values = zip(order.tolist(), digits(self.probabilities[i, order]), strict=True)
        return [[called(klass, names), p] for klass, p in values]

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        count = len(self.labels)
        order = falling(self.probabilities)[:, :top]
        values = np.take_along_axis(self.probabilities, order, axis=-1)
        tops = zip(order.tolist(), map(digits, values), strict=True)
        return {
            "label": [called(label, names) for label in self.labels.tolist()],
            "probability": digits(self.probability),
            "top": ([[called(k, names), p] for k, p in zip(*pair, strict=True)] for pair in tops),
            "set": [self.held(i, names) for i in range(count)],
            **self.doubts(),
            "answer": self.with_verdict(called(label, names) for label in self.labels.tolist()),
        }

    def held(self, i: int, names: Sequence[str] | None) -> list[Any] | None:
        """Return the prediction set of a sample, the most probable class first."""
        if not self.decided:
            return None
        return [name for name, _ in self.ranked(i, names, self.sets)]


@dataclass(frozen=True, kw_only=True)
class JudgedClasses(Judged):
    """One row for each choice: for many labels, one for each label of a sample."""

    labels: Int[ndarray, " choice"]
    confidence: Float[ndarray, " choice"]
    predicted: Int[ndarray, " choice"]
    correct: Bool[ndarray, " choice"]
    brier: Float[ndarray, " choice"]
    """Σ_c (p_c − y_c)² of each choice; (p − y)² of a yes or no."""
    nll: Float[ndarray, " choice"]
    mutual_information: Float[ndarray, " choice"]
    disagreement: Float[ndarray, " choice"]
    covered: Bool[ndarray, " choice"] | None = None
    """True if the prediction set contains the truth; None without a decision state that makes
    sets.
    """
    set_size: Float[ndarray, " choice"] | None = None
    answer: Int[ndarray, " choice"] | None = None
    """Answered class, −1 if the answer abstains; None without a promised risk."""

    @property
    def promised(self) -> Float[ndarray, " choice"]:
        """Probability whose calibration is measured: confidence, or the probability of yes."""
        return self.confidence

    @property
    def outcome(self) -> Float[ndarray, " choice"]:
        """Outcome that `promised` predicts."""
        return self.correct.astype(np.float64)

    def choices(self, rows: Rows) -> Int[ndarray, "repeat choice"]:
        """Return the choices that belong to these samples."""
        return rows

    def quality(self, rows: Rows) -> dict[str, Values]:
        """Return accuracy, Brier score, NLL and ECE."""
        rows = self.choices(rows)
        gap, bins = self.outcome - self.promised.astype(np.float64), bins_of(self.promised)
        gaps = summed(bins[rows], gap[rows], BINS + 1)
        return {
            "accuracy": self.correct.astype(np.float64)[rows].mean(axis=1),
            "brier": self.brier.astype(np.float64)[rows].mean(axis=1),
            "nll": self.nll.astype(np.float64)[rows].mean(axis=1),
            "ece": np.abs(gaps).sum(axis=1) / rows.shape[1],
        }

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        selective = Selective(self.confidence, self.correct, self.promised, self.outcome)
        return lambda rows: (
            self.quality(rows) | selective.metrics(self.choices(rows)) | self._promises(rows)
        )

    def _promises(self, rows: Rows) -> dict[str, Values]:
        """Return how well promises were kept: by prediction sets, and by answers."""
        values: dict[str, Values] = {}
        if self.covered is not None and self.set_size is not None:
            values["coverage"] = self.covered.astype(np.float64)[rows].mean(axis=1)
            values["set_size"] = self.set_size[rows].mean(axis=1)
        if self.answer is not None:
            answered = (self.answer >= 0).astype(np.float64)
            count = answered[rows].sum(axis=1)
            values["answered"] = count / rows.shape[1]
            with np.errstate(invalid="ignore"):
                wrong = (answered * (self.answer != self.labels))[rows].sum(axis=1)
                values["wrong"] = wrong / count
        return values

    def figures(self) -> dict[str, float | None]:
        return {"smece": smooth_ece(self.promised, self.outcome)}

    def familiar(self, unfamiliar: Bool[ndarray, " sample"]) -> Self:
        """Apply the rules of `SingleLabel.limited`: the set of a familiar sample is never empty."""
        changed: dict[str, ndarray] = {}
        if self.covered is not None and self.set_size is not None:
            empty = (self.set_size == 0) & ~unfamiliar
            changed["covered"] = np.where(empty, self.correct, self.covered)
            changed["set_size"] = self.set_size + empty
        if self.answer is not None:
            changed["answer"] = np.where(unfamiliar, -1, self.answer)
        return replace(self, **changed)

    def sure(self) -> tuple[Scores, Bool[ndarray, " choice"]]:
        return self.confidence, self.correct

    def diversity(self) -> dict[str, float]:
        return {
            "mi": float(self.mutual_information.mean()),
            "disagreement": float(self.disagreement.mean()),
        }

    def by_class(self) -> Mapping[int, Mapping[str, float | None]]:
        sizes = Counter(self.labels.tolist())
        right = Counter(self.labels[self.correct].tolist())
        return {
            klass: {"samples": size, "accuracy": right[klass] / size}
            for klass, size in sizes.items()
        }

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        if values["cov5"] * self.count < FEWEST_SURE:
            return (*BIASED, "cov5")
        return BIASED


def _brier(probs: Probs, truth: Labels) -> Scores:
    """Return Σ_c (p_c − y_c)²."""
    wrong: ndarray = np.square(probs)
    rows = np.arange(len(probs))
    wrong[rows, truth] = np.square(probs[rows, truth] - 1)
    return wrong.sum(axis=-1)


def called(klass: int, names: Sequence[str] | None) -> str | int:
    return klass if names is None else names[klass]


class SingleLabel(Task):
    """Task of choosing one of several classes."""

    name: ClassVar[TaskName] = "single_label"
    scores: ClassVar[Collection[str]] = LOGITS.keys()
    features: ClassVar[Collection[str]] = FITTED
    columns: ClassVar = {
        "label": "text",
        "probability": "number",
        **dict.fromkeys(("top", "set"), "json"),
        **DOUBTS,
    }
    prediction_type: type[ClassPrediction] = ClassPrediction
    """Class of its predictions."""

    def validated(
        self, logits: Float[ndarray, "sample *member klass"], labels: ndarray
    ) -> dict[str, float]:
        """Return accuracy and NLL, and last the NLL that remains after calibration."""
        if logits.ndim == 2:
            logits = logits[:, None]
        outputs = self.outputs(Outputs(logits, None, labels))
        some = outputs.at(slice(None, None, 1 + logits.size // ENOUGH))
        losses = self.losses_of(outputs, self._roughly(some))
        return {
            "accuracy": float(self._right(outputs).astype(np.float64).mean()),
            "nll": losses["before"],
            "calibrated_nll": losses["temperature"],
        }

    def _roughly(self, outputs: Outputs) -> dict[str, Any]:
        """Return quickly fitted calibration constants."""
        return self.fitted(outputs)

    def _right(self, outputs: Outputs) -> Bool[ndarray, "*choice"]:
        return self._answers(outputs, {}) == outputs.truth

    def read(self, logits: Float[ndarray, "sample member klass"]) -> ndarray:
        return logits

    def constants(self, record: DecisionRecord) -> Constants:
        return {"temperature": record.temperature, "bias": record.bias}

    def answers(self, logits: ndarray, constants: Constants) -> Probs:
        """Return calibrated probabilities: of classes, or of each label."""
        return calibrated(self.read(logits), **constants)

    def chosen(self, probs: Probs) -> tuple[Scores, Labels]:
        """Return the answered class of each choice, here the most probable one, behind its
        probability.
        """
        return surest(probs)

    def uncertainties(self, choices: ndarray, constants: Constants) -> tuple[Scores, Scores]:
        """Return total and aleatoric uncertainty."""
        return uncertainties(choices, **constants)

    def choices(
        self, logits: Float[ndarray, "sample member klass"], labels: ndarray | None = None
    ) -> tuple[ndarray, Labels]:
        return self.read(logits), true_classes(np.zeros(0) if labels is None else labels).flatten()

    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> JudgedClasses:
        probs, (rows, truth) = self.chances(reading.answers(logits)), self.choices(logits, labels)
        confidence, predicted = self.chosen(probs)
        information, disagreement = reading.apart(rows)
        judged = JudgedClasses(
            labels=truth,
            confidence=confidence,
            predicted=predicted,
            correct=predicted == truth,
            brier=_brier(probs, truth),
            nll=-np.log(np.maximum(of_labels(probs, truth), TINY)),
            mutual_information=information,
            disagreement=disagreement,
            answer=self.answered_class(probs, reading.record),
        )
        if reading.conformal is None:
            return judged
        sets = prediction_sets(reading.conformal, probs)
        sizes = sets.sum(axis=-1).astype(np.float64)
        return replace(judged, covered=of_labels(sets, truth), set_size=sizes)

    def plain(self, logits: ndarray, constants: Constants) -> ClassPrediction:
        return self.prediction_type.of(self, self.read(logits), constants)

    def limited(self, decided: Prediction, record: DecisionRecord) -> dict[str, Any]:
        """Return prediction sets and abstentions; an empty set of a familiar sample gets the most
        probable label.
        """
        probs = decided.probabilities
        sets = prediction_sets(record.conformal, probs)
        empty = ~sets.any(axis=-1) & ~decided.unfamiliar
        first = np.arange(sets.shape[-1]) == self.chosen(probs)[1][:, None]
        sets = sets | (first & empty[:, None])
        answer = self.answered_class(probs, record)
        if answer is None:
            return {"sets": sets}
        abstain = answer < 0
        labels = np.where(abstain, decided.labels, answer)
        return {"sets": sets, "abstain": abstain, "labels": labels}

    def answered_class(
        self, probs: Probs, record: DecisionRecord
    ) -> Int[ndarray, " choice"] | None:
        """Return the answered class, −1 where it would not keep the promised risk; None without a
        promise.
        """
        if record.abstain is None:
            return None
        chance, label = self.chosen(probs)
        return np.where(chance >= record.abstain.threshold, label, -1)

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Fit the temperature, and measure the NLL before and after by cross-fitting."""
        constants = self.fitted(fitting)
        losses = self._crossed((constants, certifying), (self.fitted(certifying), fitting))
        right = np.concatenate(
            [self._answers(half, constants) == half.truth for half in (fitting, certifying)]
        )
        return Calibration(constants, float(right.astype(np.float64).mean()), losses)

    def check_labels(self, fitting: Outputs, certifying: Outputs, fit: Calibration) -> None:
        """Refuse labels that do not fit the answers.

        Constants come from all rows, because those of a small part may be far off.
        """
        suggesting, judging = (
            (self._answers(half, fit.constants), half.truth) for half in (fitting, certifying)
        )
        unfit.check_order(suggesting, judging, fitting.logits.shape[-1])
        outputs = fitting.joined(certifying)
        constants, accuracy = self.fitted(outputs), fit.accuracy or 0.0
        unfit.check_fit(
            self.losses_of(outputs, constants)["temperature"],
            self.guessing(outputs),
            accuracy,
            constants["temperature"],
            agreement=unfit.agreement_with_classes(mean_logs(outputs.logits), outputs.truth),
            separated=accuracy == 1,
        )

    def guessing(self, outputs: Outputs) -> float:
        """Return the NLL of answering every sample with the class frequencies."""
        counts = np.bincount(outputs.truth)
        return float(entropy(counts / counts.sum()))

    def _answers(self, outputs: Outputs, constants: Constants) -> Labels:
        """Return the answered class of each sample."""
        return by_pieces(
            lambda rows: self.chosen(calibrated(rows, **constants))[1], outputs.logits, CALIBRATED
        )

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        return {"temperature": temperature_of(outputs.logits, outputs.truth)}

    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        """Return the settings of `monitor`; the maximum uncertainty is that of the uniform
        distribution.
        """
        names = model.labels or range(model.num_classes)
        risk = None if decision.abstain is None else decision.abstain.risk
        return Watched(names, math.log(len(names)), {} if risk is None else {"risk": risk})

    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        return str(row["label"])

    def broken(self, row: Mapping[str, Any], truth: str) -> Mapping[str, bool]:
        if row.get("answer") in ("abstain", "unfamiliar"):
            return {}
        return {"risk": harmless(str(row["label"])) != truth}

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        return [str(row["label"])]

    def losses_of(self, outputs: Outputs, constants: Constants) -> dict[str, float]:
        """Return the NLL `before` calibration and with the `temperature`."""
        logits, labels = outputs.logits, outputs.truth
        return {
            "before": nll_of(logits, labels),
            "temperature": nll_of(logits, labels, constants["temperature"]),
        }

    def _crossed(self, *pairs: tuple[Constants, Outputs]) -> dict[str, float]:
        """Return the mean of `losses_of` over parts, each with the constants of another part."""
        totals: dict[str, float] = {}
        for constants, part in pairs:
            for name, loss in self.losses_of(part, constants).items():
                totals[name] = totals.get(name, 0.0) + len(part.truth) * loss
        count = sum(len(part.logits) for _, part in pairs)
        return {name: total / count for name, total in totals.items()}

    def promised(self, by: Certifying) -> dict[str, Any]:
        """Return prediction sets, and the threshold for abstention."""
        coverage = by.promise.coverage
        sets = largest(
            fit_conformal(part.answers, part.outputs.truth, coverage=coverage) for part in by.parts
        )
        kept = {} if by.promise.risk is None else self._kept(by, by.promise.risk)
        return {"conformal": sets, **kept}

    def _kept(self, by: Certifying, risk: float) -> dict[str, Any]:
        """Return the threshold that keeps a risk among familiar samples, which are the only ones
        answered.
        """
        certifying = [self.graded(part) for part in by.parts]
        abstain = fit_abstention(self.graded(by.fitting), certifying, risk=risk)
        return {"abstain": abstain.among(float(by.parts[0].familiar.mean()))}

    def graded(self, part: Part) -> Graded:
        confidence, label = self.chosen(part.answers[part.familiar])
        return Graded(confidence, label == part.outputs.truth[part.familiar])
