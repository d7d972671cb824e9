"""A number: regression, similarity. One output is its value; a second one, where there is one, the
logarithm of its variance.

    value   ŷ = mean of the members' values        spread   v = their standard deviation
    σ²      = a² · u + e² · v²                     u: 1, or the members' mean of exp(second output)
    low, high = ŷ ∓ q σ                            q: the ⌈(n + 1) · coverage⌉-th smallest |y − ŷ| / σ

`a` and `e` have the smallest Gaussian NLL on half of the validation data; q is taken on the other
half (split conformal), so that the interval holds the truth with probability ≥ coverage, whatever
the model. OOD scores are those that features alone fit.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Conformal, Decision, Joint
from hydrasurgeon.files.manifest import Model, ProblemName
from hydrasurgeon.options.deciding import CalibrateOptions
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
    refuse,
)
from hydrasurgeon.problems.unfit import ROUNDING
from hydrasurgeon.statistics.bootstrap import Rows, Values
from hydrasurgeon.statistics.conformal import quantile
from hydrasurgeon.statistics.probabilities import Scores

TINY = 1e-12
"""Smallest variance."""
RANGES = 10
"""Of values, in which `monitor` counts them."""
LOSS = "The labels do not fit: check that each belongs to its row, and is on the model's scale."
"""What to do about a model that predicts no better than the mean."""


@dataclass(frozen=True, kw_only=True, repr=False)
class NumberPrediction(Prediction):
    """Numbers, between which bounds they lie, and how far members are apart."""

    value: Float[Tensor, " sample"]
    low: Float[Tensor, " sample"]
    """NaN without a decision state, as `high`."""
    high: Float[Tensor, " sample"]
    spread: Float[Tensor, " sample"]
    deviation: Float[Tensor, " sample"]
    levels: tuple[float, ...] = ()
    """Between which `monitor` counts them."""

    @property
    def given(self) -> Sequence[Any]:
        return digits(self.value)

    @property
    def uncertainty(self) -> Float[Tensor, " sample"]:
        return self.spread

    @property
    def tally(self) -> Int[Tensor, " range"]:
        ranges = torch.bucketize(self.value.contiguous(), self.value.new_tensor(self.levels))
        return torch.bincount(ranges, minlength=len(self.levels) + 1)

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

    error: Float[Tensor, " sample"]
    nll: Float[Tensor, " sample"]
    """NaN without a decision state, as the two below."""
    covered: Float[Tensor, " sample"]
    width: Float[Tensor, " sample"]

    def quality(self, rows: Rows) -> dict[str, Values]:
        error = self.error[rows]
        return {
            "rmse": error.square().mean(dim=1).sqrt(),
            "mae": error.abs().mean(dim=1),
            "nll": self.nll[rows].mean(dim=1),
        }

    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        def measured(rows: Rows) -> dict[str, Values]:
            squares = self.error[rows].square().mean(dim=1)
            variance = self.labels[rows].var(dim=1, correction=0)
            return self.quality(rows) | {
                "r2": 1 - squares / variance,
                "coverage": self.covered[rows].mean(dim=1),
                "width": self.width[rows].mean(dim=1),
            }

        return measured


class Numbers(Problem):
    """A number for each sample."""

    name: ClassVar[ProblemName] = "number"
    scores = ()
    features = ("mds", "maha++", "residual", "knn")
    doubt = "spread"
    columns: ClassVar = {
        **dict.fromkeys(("value", "low", "high", "spread", "ood_score"), "number"),
        **{name: DOUBTS[name] for name in ("unfamiliar", "answer", "error")},
    }
    lacks: ClassVar = {
        "--method cahp": "It compares samples of one class with those of others.",
        "--method circuit": "It keeps what is right or wrong; give --method taylor.",
        "--check": "What it compares, accuracy and ECE, are those of classes; export without it.",
        "a decision state in a graph": "Export the checkpoint as it was before calibrate.",
        "--html": "Its charts are of classes; --json and --markdown have the numbers.",
        "--shift": "What is measured under shifts is accuracy; give the data as another --data.",
    }

    def known(self, labels: Tensor) -> Bool[Tensor, " sample"]:
        if not labels.is_floating_point():
            return torch.zeros_like(labels, dtype=torch.bool)
        return labels.isfinite()

    def label_shape(self, logits: Tensor) -> tuple[int, ...] | None:
        return (len(logits),)

    def losses(
        self,
        logits: Float[Tensor, "sample klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Scores:
        """Squared errors, or the Gaussian NLL where there is a variance."""
        squares = (logits[:, 0] - labels.to(logits)).square()
        if logits.shape[-1] == 1:
            return squares
        return (logits[:, 1] + squares / logits[:, 1].exp()) / 2

    def distilled(
        self, logits: Float[Tensor, "sample klass"], teachers: Sequence[Tensor], temperature: float
    ) -> Tensor:
        mean = torch.cat([each.to(logits)[..., 0] for each in teachers], dim=1).mean(dim=1)
        return (logits[:, 0] - mean).square().mean()

    def validated(
        self, logits: Float[Tensor, "sample *member klass"], labels: Tensor
    ) -> dict[str, float]:
        value = logits[..., 0].reshape(len(labels), -1).mean(dim=1)
        return {"nll": float((value - labels.to(value)).square().double().mean())}

    def probs(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return logits[..., :1]

    def merged(self, logits: Float[Tensor, "sample member klass"]) -> Float[Tensor, "sample klass"]:
        return logits.float().mean(dim=1)

    def read(self, logits: Float[Tensor, "sample member klass"]) -> Tensor:
        return logits

    def outputs(self, outputs: Outputs) -> Outputs:
        """OOD scores see one class; the numbers are the shares."""
        labels = None
        if outputs.labels is not None:
            labels = torch.zeros(len(outputs.labels), dtype=torch.int64)
        return Outputs(outputs.logits, outputs.features, labels, outputs.labels)

    def classifier(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return weight[:1], bias[:1]

    def width(self, logits: Float[Tensor, "sample member klass"]) -> int:
        return 1

    def constants(self, record: Decision) -> Constants:
        return {"joint": record.joint, "conformal": record.conformal}

    def answers(self, logits: Tensor, constants: Constants) -> Float[Tensor, "sample 2"]:
        """Values, and their deviations: NaN where nothing is calibrated."""
        value, variance, unit = _moments(logits)
        joint = constants.get("joint")
        if joint is None:
            return torch.stack([value, torch.full_like(value, torch.nan)], dim=-1)
        deviation = _deviation(joint.aleatoric, joint.epistemic, variance, unit)
        return torch.stack([value, deviation], dim=-1)

    def said(self, answers: Tensor) -> Float[Tensor, "sample klass"]:
        return answers[:, :1]

    def uncertainty(self, logits: Tensor, constants: Constants) -> Scores:
        return _moments(logits)[1].sqrt()

    def predicted(self, logits: Tensor, constants: Constants | None) -> NumberPrediction:
        value, deviation = self.answers(logits, constants or {}).unbind(dim=-1)
        nothing = torch.full_like(value, torch.nan)
        never = torch.zeros_like(value, dtype=torch.bool)
        return NumberPrediction(
            members_run=torch.full((len(value),), logits.shape[1]),
            value=value,
            low=nothing,
            high=nothing,
            spread=self.uncertainty(logits, {}),
            deviation=deviation,
            ood_score=nothing,
            unfamiliar=never,
            abstain=never,
        )

    def decided(self, prediction: Prediction, record: Decision, score: Scores) -> Prediction:
        assert isinstance(prediction, NumberPrediction)
        half = record.conformal.threshold * prediction.deviation
        return replace(
            prediction,
            low=prediction.value - half,
            high=prediction.value + half,
            ood_score=score,
            unfamiliar=score > record.ood.threshold,
            levels=record.levels,
            decided=True,
        )

    def check(self, promise: CalibrateOptions, name: str) -> None:
        super().check(promise, name)
        flags = (
            ("--risk", promise.risk is not None),
            ("--cascade", promise.cascade),
            (
                f"--ood-score {promise.ood_score}",
                promise.ood_score not in ("auto", *self.features),
            ),
        )
        hint = (
            f"Its intervals hold the truth by --coverage; OOD scores: {', '.join(self.features)}."
        )
        refuse(flags, name, "a model of numbers", hint)

    def classes(self, model: Model, decision: Decision) -> Sequence[str | int]:
        """Ranges of values, each as frequent as the others on validation data."""
        return [f"{low} to {high}" for low, high in pairwise(_bounds(decision))]

    def counted(self, decision: Decision, row: Mapping[str, Any]) -> tuple[str, float]:
        low = bisect_left(decision.levels, float(row["value"]))
        bounds = _bounds(decision)
        return f"{bounds[low]} to {bounds[low + 1]}", float(row["spread"])

    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """How much members' own variance and their spread count, by the Gaussian NLL; the labels fit
        where the values are nearer to them than their mean is.
        """
        joint = _fitted(fitting)
        answers = self.answers(certifying.logits, {"joint": joint})
        truth = _truth(certifying)
        loss = float(_nll(answers, truth).mean())
        mean, deviation = _truth(fitting).mean(), _truth(fitting).std(correction=0)
        guess = torch.stack([mean.expand_as(truth), deviation.clamp_min(TINY).expand_as(truth)], -1)
        guessing = float(_nll(guess, truth).mean())
        error, spread = (
            float((truth - each).square().mean()) for each in (answers[:, 0], guess[:, 0])
        )
        if error >= spread * (1 - ROUNDING):
            raise DataError(
                "the model predicts no better than the mean of the labels: its mean squared error is "
                f"{error:.4g}, that of the mean {spread:.4g}",
                hint=LOSS,
            )
        return Calibration({"joint": joint}, None, {"before": guessing, "joint": loss})

    def promised(
        self,
        answers: Tensor,
        outputs: Outputs,
        promise: CalibrateOptions,
        plan: None = None,
        familiar: Bool[Tensor, " sample"] | None = None,
    ) -> dict[str, Any]:
        value, deviation = answers.unbind(dim=-1)
        threshold = quantile((_truth(outputs) - value).abs() / deviation, promise.coverage)
        sets = Conformal(method="lac", coverage=promise.coverage, threshold=threshold)
        levels = value.quantile(torch.arange(1, RANGES, dtype=value.dtype) / RANGES).tolist()
        # As their names have them.
        rounded = tuple(sorted({float(f"{level:g}") for level in levels}))
        return {"conformal": sets, "levels": rounded}

    def judged(self, logits: Tensor, labels: Tensor, reading: Reads) -> dict[str, Tensor]:
        answers, truth = reading.answers(logits), labels.double()
        value, deviation = answers.unbind(dim=-1)
        half = torch.full_like(value, torch.nan)
        if reading.conformal is not None:
            half = reading.conformal.threshold * deviation
        covered = torch.where(half.isnan(), half, ((truth - value).abs() <= half).double())
        return {
            "labels": truth,
            "error": value - truth,
            "nll": _nll(answers, truth),
            "covered": covered,
            "width": 2 * half,
        }

    def together(
        self, fields: Mapping[str, Tensor], labels: Tensor, groups: Tensor | None
    ) -> JudgedNumbers:
        return JudgedNumbers(**fields, groups=groups)


def _bounds(decision: Decision) -> tuple[str, ...]:
    return ("lowest", *(f"{level:g}" for level in decision.levels), "highest")


def _moments(logits: Float[Tensor, "sample member klass"]) -> tuple[Scores, Scores, Scores]:
    """The members' mean, their variance, and the mean of their own."""
    values = logits[..., 0].double()
    own = torch.ones_like(values)
    if logits.shape[-1] == 2:
        own = logits[..., 1].double().exp()
    mean = values.mean(dim=1)
    return mean, (values - mean[:, None]).square().mean(dim=1), own.mean(dim=1)


def _deviation(
    aleatoric: float | Tensor, epistemic: float | Tensor, variance: Scores, own: Scores
) -> Scores:
    return (aleatoric**2 * own + epistemic**2 * variance).clamp_min(TINY).sqrt()


def _truth(outputs: Outputs) -> Scores:
    assert outputs.shares is not None
    return outputs.shares.double()


def _nll(answers: Float[Tensor, "sample 2"], truth: Scores) -> Scores:
    value, deviation = answers.unbind(dim=-1)
    return deviation.log() + ((truth - value) / deviation).square() / 2 + math.log(2 * math.pi) / 2


def _fitted(outputs: Outputs) -> Joint:
    """By LBFGS over the logarithms, from the deviation of the errors; of one member in one step."""
    value, variance, own = _moments(outputs.logits)
    squares = (_truth(outputs) - value).square()
    start = float((squares / own).mean().sqrt().clamp_min(TINY))
    if outputs.logits.shape[1] == 1:
        return Joint(aleatoric=start, epistemic=1.0)
    with torch.inference_mode(False), torch.enable_grad():
        parts = [part.clone() for part in (variance, own, squares)]
        point = torch.tensor([start, 1.0], dtype=torch.float64).log().requires_grad_()
        optimizer = torch.optim.LBFGS([point], max_iter=100, line_search_fn="strong_wolfe")
        floor = math.log(start) - 10

        def loss() -> Tensor:
            optimizer.zero_grad()
            deviation = _deviation(*point.clamp(floor, floor + 20).exp(), *parts[:2])
            value = (deviation.log() + parts[2] / deviation.square() / 2).mean()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[arg-type]
        aleatoric, epistemic = point.detach().clamp(floor, floor + 20).exp().tolist()
    return Joint(aleatoric=aleatoric, epistemic=epistemic)
