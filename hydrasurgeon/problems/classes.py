"""One of several classes: softmax over k logits, cross-entropy.

Yes or no, and each of many labels, are such choices too, between two classes with the logits 0 and
z: `choices` makes them so, and what is measured of classes then holds for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, one_hot

from hydrasurgeon.files.decided import FITTED, LOGITS, Decision
from hydrasurgeon.files.manifest import ProblemName
from hydrasurgeon.files.rows import harmless
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems import unfit
from hydrasurgeon.problems.base import (
    DOUBTS,
    Calibration,
    Columns,
    Constants,
    Judged,
    Outputs,
    Prediction,
    Problem,
    Reads,
    digits,
)
from hydrasurgeon.statistics.abstain import fit_abstention
from hydrasurgeon.statistics.bootstrap import Rows, Selective, Values
from hydrasurgeon.statistics.conformal import coverage_that_helps, fit_conformal, prediction_sets
from hydrasurgeon.statistics.metrics import BINS, bins_of, smooth_ece
from hydrasurgeon.statistics.probabilities import TINY, Labels, Probs, Scores, by_pieces, entropy
from hydrasurgeon.statistics.temperature import (
    CALIBRATED,
    calibrated,
    mean_logs,
    nll_of,
    temperature_of,
    uncertainties,
)

BIASED = ("ece", "aece")
"""Measures without an interval: each resample adds its own noise to the errors of the bins, so that
the interval would lie above the truth.
"""
ENOUGH = 1 << 22
"""Of so many logits training takes all to calibrate by, of more an even part."""
FEWEST_SURE = 200
"""Samples that `cov5` must cover to have an interval: the ends of a smaller one are where a few
answers happen to be wrong.
"""


@dataclass(frozen=True, kw_only=True, repr=False)
class ClassPrediction(Prediction):
    """Classes, and how sure they are; entropies in nats: total = aleatoric + epistemic."""

    probabilities: Float[Tensor, "sample klass"]
    labels: Int[Tensor, " sample"]
    """The most probable class."""
    probability: Float[Tensor, " sample"]
    total: Float[Tensor, " sample"]
    aleatoric: Float[Tensor, " sample"]
    epistemic: Float[Tensor, " sample"]
    sets: Bool[Tensor, "sample klass"]
    """Prediction sets; empty without a decision state."""

    @classmethod
    def of(cls, problem: Classes, choices: Tensor, constants: Constants) -> ClassPrediction:
        """What is said without thresholds."""
        probs = problem.answers(choices, constants)
        probability, labels = probs.max(dim=-1)
        total, aleatoric = problem.uncertainties(choices, constants)
        never = torch.zeros_like(labels, dtype=torch.bool)
        return cls(
            members_run=torch.full_like(labels, choices.shape[1]),
            probabilities=probs,
            labels=labels,
            probability=probability,
            total=total,
            aleatoric=aleatoric,
            epistemic=(total - aleatoric).clamp_min(0.0),
            sets=torch.zeros_like(probs, dtype=torch.bool),
            ood_score=torch.full_like(probability, torch.nan),
            unfamiliar=never,
            abstain=never,
        )

    @property
    def given(self) -> Sequence[Any]:
        return [called(label, self.names) for label in self.labels.tolist()]

    @property
    def tally(self) -> Int[Tensor, " klass"]:
        likeliest = self.probabilities.argmax(dim=-1)
        return torch.bincount(likeliest, minlength=self.probabilities.shape[-1])

    @property
    def uncertainty(self) -> Float[Tensor, " sample"]:
        return self.total

    def doubts(self) -> Columns:
        """How sure it is, and whether it knows such inputs."""
        entropies = {
            name: digits(getattr(self, name)) for name in ("total", "aleatoric", "epistemic")
        }
        return {**entropies, **self.verdict(), "members_run": self.members_run.tolist()}

    def ranked(
        self, i: int, names: Sequence[str] | None, among: Tensor | None = None
    ) -> list[list[Any]]:
        """The classes of a sample and their probabilities, the most probable first."""
        order = self.probabilities[i].argsort(descending=True, stable=True)
        if among is not None:
            order = order[among[i, order]]
        values = zip(order.tolist(), digits(self.probabilities[i, order]), strict=True)
        return [[called(klass, names), p] for klass, p in values]

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        count = len(self.labels)
        values, order = self.probabilities.topk(min(top, self.probabilities.shape[-1]), dim=-1)
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
        """The prediction set of a sample, the most probable class first."""
        if not self.decided:
            return None
        return [name for name, _ in self.ranked(i, names, self.sets)]


@dataclass(frozen=True, kw_only=True)
class JudgedClasses(Judged):
    """A row for each choice, of many labels one for each label of a sample."""

    labels: Int[Tensor, " choice"]
    confidence: Float[Tensor, " choice"]
    predicted: Int[Tensor, " choice"]
    correct: Bool[Tensor, " choice"]
    brier: Float[Tensor, " choice"]
    """Σ_c (p_c − y_c)² of each choice; (p − y)² of a yes or no."""
    nll: Float[Tensor, " choice"]
    mutual_information: Float[Tensor, " choice"]
    disagreement: Float[Tensor, " choice"]
    covered: Bool[Tensor, " choice"] | None = None
    """Whether the prediction set holds the truth; None without a decision state that makes such
    sets.
    """
    set_size: Float[Tensor, " choice"] | None = None

    @property
    def promised(self) -> Float[Tensor, " choice"]:
        """What calibration is measured of: confidence, or the probability of yes."""
        return self.confidence

    @property
    def kept(self) -> Float[Tensor, " choice"]:
        """What came true of it."""
        return self.correct.double()

    def choices(self, rows: Rows) -> Int[Tensor, "repeat choice"]:
        """The choices of these samples."""
        return rows

    def quality(self, rows: Rows) -> dict[str, Values]:
        """Accuracy, Brier score, NLL and ECE."""
        rows = self.choices(rows)
        gap, bins = self.kept - self.promised.double(), bins_of(self.promised)
        gaps = torch.zeros(len(rows), BINS + 1, dtype=torch.float64).scatter_add_(
            1, bins[rows], gap[rows]
        )
        return {
            "accuracy": self.correct.double()[rows].mean(dim=1),
            "brier": self.brier.double()[rows].mean(dim=1),
            "nll": self.nll.double()[rows].mean(dim=1),
            "ece": gaps.abs().sum(dim=1) / rows.shape[1],
        }

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        selective = Selective(self)
        return lambda rows: self.quality(rows) | selective.metrics(self.choices(rows))

    def figures(self) -> dict[str, float | None]:
        figures: dict[str, float | None] = {"smece": smooth_ece(self.promised, self.kept)}
        if self.covered is not None and self.set_size is not None:
            figures["coverage"] = float(self.covered.double().mean())
            figures["set_size"] = float(self.set_size.mean())
        return figures

    def without_empty_sets(self, unfamiliar: Bool[Tensor, " sample"]) -> JudgedClasses:
        """As `filled` answers."""
        if self.covered is None or self.set_size is None or len(unfamiliar) != len(self.covered):
            return self
        empty = (self.set_size == 0) & ~unfamiliar
        return replace(
            self,
            covered=torch.where(empty, self.correct, self.covered),
            set_size=self.set_size + empty,
        )

    def sure(self) -> tuple[Scores, Bool[Tensor, " choice"]]:
        return self.confidence, self.correct

    def same(self, other: Any) -> float:
        return float((self.predicted == other.predicted).double().mean())

    def diversity(self) -> dict[str, float]:
        return {
            "mi": float(self.mutual_information.mean()),
            "disagreement": float(self.disagreement.mean()),
        }

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        if values["cov5"] * self.count < FEWEST_SURE:
            return (*BIASED, "cov5")
        return BIASED


def filled(
    sets: Bool[Tensor, "sample klass"], probs: Probs, unfamiliar: Bool[Tensor, " sample"]
) -> Bool[Tensor, "sample klass"]:
    """No familiar sample has an empty set: it holds the most probable label then."""
    empty = ~sets.any(dim=-1) & ~unfamiliar
    first = one_hot(probs.argmax(dim=-1), sets.shape[-1]).bool()
    return sets | (first & empty[:, None])


def called(klass: int, names: Sequence[str] | None) -> str | int:
    return klass if names is None else names[klass]


class Classes(Problem):
    """One of several classes."""

    name: ClassVar[ProblemName] = "single_label"
    scores: ClassVar[Collection[str]] = LOGITS.keys()
    features: ClassVar[Collection[str]] = FITTED
    columns: ClassVar = {
        "label": "text",
        "probability": "number",
        **dict.fromkeys(("top", "set"), "json"),
        **DOUBTS,
    }
    made: type[ClassPrediction] = ClassPrediction
    """What it answers with."""
    made_of: type[JudgedClasses] = JudgedClasses
    """What its answers are judged as."""

    def choices(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        """Logits of choices between classes [..., class], or [..., k, class] of many labels."""
        return logits

    def truth(self, labels: Tensor) -> Int[Tensor, "*any"]:
        """The number of the class that each choice should have made."""
        return labels

    def losses(
        self,
        logits: Float[Tensor, "sample klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Scores:
        if labels.is_floating_point():  # probabilities of classes
            labels = labels.to(logits)
        return cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")

    def distilled(
        self, logits: Float[Tensor, "sample klass"], teachers: Sequence[Tensor], temperature: float
    ) -> Tensor:
        """T²·KL(mean of the teachers' members ‖ model), a mean over samples and labels."""
        warmed = [self.choices(each.to(logits) / temperature).softmax(dim=-1) for each in teachers]
        mean = torch.cat(warmed, dim=1).mean(dim=1)
        logs = self.choices(logits / temperature).log_softmax(dim=-1)
        return temperature**2 * kl_div(logs, mean, reduction="none").sum(dim=-1).mean()

    def validated(
        self, logits: Float[Tensor, "sample *member klass"], labels: Tensor
    ) -> dict[str, float]:
        """The NLL too that is left once it is calibrated."""
        if logits.dim() == 2:
            logits = logits[:, None]
        outputs = self.outputs(Outputs(logits, None, labels))
        some = outputs.at(slice(None, None, 1 + logits.numel() // ENOUGH))
        losses = self.losses_of(outputs, self._roughly(some))
        return {
            "accuracy": float(self._right(outputs).double().mean()),
            "nll": losses["before"],
            "calibrated_nll": losses["temperature"],
        }

    def _roughly(self, outputs: Outputs) -> dict[str, Any]:
        """What calibrates, found in a moment."""
        return self.fitted(outputs)

    def _right(self, outputs: Outputs) -> Bool[Tensor, "*choice"]:
        return self._answers(outputs, {}) == outputs.truth

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return self.choices(logits).softmax(dim=-1)

    def read(self, logits: Float[Tensor, "sample member klass"]) -> Tensor:
        return self.choices(logits)

    def constants(self, record: Decision) -> Constants:
        return {"temperature": record.temperature, "bias": record.bias}

    def answers(self, logits: Tensor, constants: Constants) -> Probs:
        """Calibrated probabilities: of classes, or of each label."""
        return calibrated(self.read(logits), **constants)

    def uncertainty(self, logits: Tensor, constants: Constants) -> Scores:
        return self.uncertainties(self.read(logits), constants)[0]

    def uncertainties(self, choices: Tensor, constants: Constants) -> tuple[Scores, Scores]:
        """Total and aleatoric uncertainty."""
        return uncertainties(choices, **constants)

    def rows(self, logits: Float[Tensor, "sample member klass"]) -> Tensor:
        """[choice, member, class]: each label of a sample is a choice of its own."""
        return self.choices(logits)

    def temperature(self, logits: Float[Tensor, "sample member klass"], labels: Tensor) -> float:
        """The one that fits labelled samples best."""
        return temperature_of(self.rows(logits), self.truth(labels).flatten())

    def judged(self, logits: Tensor, labels: Tensor, reading: Reads) -> dict[str, Tensor]:
        probs, rows = self.chances(reading.answers(logits)), self.rows(logits)
        truth = self.truth(labels).flatten()
        confidence, predicted = probs.max(dim=-1)
        information, disagreement = reading.apart(rows)
        fields = {
            "labels": truth,
            "confidence": confidence,
            "predicted": predicted,
            "correct": predicted == truth,
            "brier": (probs - one_hot(truth, probs.shape[-1])).square().sum(dim=-1),
            "nll": -probs.gather(1, truth[:, None])[:, 0].clamp_min(TINY).log(),
            "mutual_information": information,
            "disagreement": disagreement,
        }
        if reading.conformal is not None:
            sets = prediction_sets(reading.conformal, probs)
            fields["covered"] = sets.gather(1, truth[:, None])[:, 0]
            fields["set_size"] = sets.sum(dim=-1).double()
        return fields

    def together(
        self, fields: Mapping[str, Tensor], labels: Tensor, groups: Tensor | None
    ) -> JudgedClasses:
        return self.made_of(**fields, groups=groups)

    def predicted(self, logits: Tensor, constants: Constants | None) -> ClassPrediction:
        return self.made.of(self, self.read(logits), constants or {})

    def decided(self, prediction: Prediction, record: Decision, score: Scores) -> Prediction:
        plain = cast(ClassPrediction, prediction)
        changes: dict[str, Any] = {}
        unfamiliar = score > record.ood.threshold
        sets = prediction_sets(record.conformal, plain.probabilities)
        if not self.several:
            sets = filled(sets, plain.probabilities, unfamiliar)
        if record.abstain is not None:
            changes["abstain"] = plain.probability < record.abstain.threshold
        return type(plain)(
            **{
                **vars(plain),
                **changes,
                "sets": sets,
                "ood_score": score,
                "unfamiliar": unfamiliar,
                "decided": True,
            }
        )

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Temperature, and the NLL before and after, cross-fitted."""
        constants, losses = self._cross_fitted(fitting, certifying)
        answers, others = (self._answers(half, constants) for half in (fitting, certifying))
        classes = fitting.logits.shape[-1]
        pairs, counts = (answers * classes + fitting.truth).unique(return_counts=True)
        order = unfit.best_order(pairs // classes, pairs % classes, counts, classes)
        unfit.check_order(others, certifying.truth, order)
        right = torch.cat([answers == fitting.truth, others == certifying.truth])
        accuracy = float(right.double().mean())
        self._check_fit(fitting.joined(certifying), accuracy)
        return Calibration(constants, accuracy, losses)

    def _check_fit(self, outputs: Outputs, accuracy: float) -> None:
        """By constants of all rows: those of a half may be far off where it is small."""
        constants = self.fitted(outputs)
        unfit.check_fit(
            self.losses_of(outputs, constants)["temperature"],
            self.guessing(outputs),
            accuracy,
            constants["temperature"],
            agreement=unfit.agreement_with_classes(mean_logs(outputs.logits), outputs.truth),
            separated=accuracy == 1,
        )

    def guessing(self, outputs: Outputs) -> float:
        """The NLL of answering every sample with the shares of the classes."""
        counts = outputs.truth.bincount().double()
        return float(entropy(counts / counts.sum()))

    def _answers(self, outputs: Outputs, constants: Constants) -> Labels:
        """The most probable class of each sample."""
        return by_pieces(
            lambda rows: calibrated(rows, **constants).argmax(dim=-1), outputs.logits, CALIBRATED
        )

    def _cross_fitted(
        self, fitting: Outputs, certifying: Outputs
    ) -> tuple[dict[str, Any], dict[str, float]]:
        constants = self.fitted(fitting)
        return constants, self._crossed((constants, certifying), (self.fitted(certifying), fitting))

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        return {"temperature": temperature_of(outputs.logits, outputs.truth)}

    def counted(self, decision: Decision, row: Mapping[str, Any]) -> tuple[str, float]:
        return str(row["label"]), float(row["total"])

    def promises(self, decision: Decision) -> Mapping[str, float]:
        risk = None if decision.abstain is None else decision.abstain.risk
        return {} if risk is None else {"risk": risk}

    def broken(self, row: Mapping[str, Any], truth: str) -> Mapping[str, bool]:
        if row.get("answer") in ("abstain", "unfamiliar"):
            return {}
        return {"risk": harmless(str(row["label"])) != truth}

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        return [str(row["label"])]

    def least_sure(self, classes: int) -> float:
        """No distribution over the classes is less certain than the uniform one."""
        return math.log(classes)

    def losses_of(self, outputs: Outputs, constants: Constants) -> dict[str, float]:
        """NLL `before`, and by `temperature`."""
        logits, labels = outputs.logits, outputs.truth
        return {
            "before": nll_of(logits, labels),
            "temperature": nll_of(logits, labels, constants["temperature"]),
        }

    def _crossed(self, *pairs: tuple[Constants, Outputs]) -> dict[str, float]:
        """The mean of `losses_of`: each part with constants that another one gave."""
        totals: dict[str, float] = {}
        for constants, part in pairs:
            for name, loss in self.losses_of(part, constants).items():
                totals[name] = totals.get(name, 0.0) + len(part.truth) * loss
        count = sum(len(part.logits) for _, part in pairs)
        return {name: total / count for name, total in totals.items()}

    def promised(
        self,
        answers: Probs,
        outputs: Outputs,
        promise: CalibrateOptions,
        plan: None = None,
        familiar: Bool[Tensor, " sample"] | None = None,
    ) -> dict[str, Any]:
        """Prediction sets, and when to abstain: a promise about familiar samples, which alone are
        answered.
        """
        sets = fit_conformal(answers, outputs.truth, coverage=promise.coverage)
        if promise.risk is None:
            return {"conformal": sets}
        rows = slice(None) if familiar is None else familiar
        kept = self.risk(answers, outputs, promise.risk, rows)
        return {"conformal": sets, **kept}

    def risk(
        self, probs: Probs, outputs: Outputs, risk: float, familiar: Tensor | slice
    ) -> dict[str, Any]:
        """When to abstain."""
        confidence, label = probs.max(dim=-1)
        right = label == outputs.truth
        made = fit_abstention(confidence[familiar], right[familiar], risk=risk)
        return {"abstain": made.among(len(confidence[familiar]) / len(confidence))}

    def advice(
        self,
        answers: Probs,
        outputs: Outputs,
        accuracy: float,
        promise: CalibrateOptions,
    ) -> Iterator[str]:
        if self.says_yes or accuracy <= promise.coverage:
            return
        helps = coverage_that_helps(answers, outputs.truth, promise.coverage)
        how = (
            "more samples would have to certify a higher --coverage"
            if helps is None
            else (f"from --coverage {helps:g} on some hold two or more")
        )
        yield (
            f"accuracy {accuracy:.3f} exceeds --coverage {promise.coverage:g}: sets hold one label, "
            f"and say no more than the answer; {how}"
        )
