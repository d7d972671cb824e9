"""Yes or no, by one logit: sigmoid, binary cross-entropy; rerankers and reward models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import FRACTION_EACH
from hydrasurgeon.files.decided import DecisionRecord
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.statistics.abstain import Graded, fit_limits
from hydrasurgeon.statistics.metrics import ranking
from hydrasurgeon.statistics.probabilities import (
    TINY,
    entropy,
    true_classes,
    yes_or_no,
)
from hydrasurgeon.statistics.temperature import nll_of_shares, platt
from hydrasurgeon.tasks.base import (
    DOUBTS,
    Certifying,
    Columns,
    Constants,
    Outputs,
    Part,
    Reads,
    Watched,
    digits,
)
from hydrasurgeon.tasks.single_label import ClassPrediction, JudgedClasses, SingleLabel

YES_NO = ("no", "yes")
"""Names of the answers."""


class YesNoPrediction(ClassPrediction):
    """Yes or no, with the probability of yes."""

    @property
    def tally(self) -> Int[ndarray, " klass"]:
        likelier = self.probabilities.argmax(axis=-1)  # limits may answer the other one
        return np.bincount(likelier, minlength=2)

    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        no, yes = np.maximum(self.probabilities, TINY).T
        return {
            "probability": digits(self.probabilities[:, 1]),
            "logit": digits(np.log(yes) - np.log(no)),
            **self.doubts(),
            "answer": self.with_verdict(YES_NO[label] for label in self.labels.tolist()),
        }


@dataclass(frozen=True, kw_only=True)
class JudgedYesNo(JudgedClasses):
    """Answers with the probability of yes and the truth of yes."""

    yes: Float[ndarray, " choice"]
    truth: Float[ndarray, " choice"]

    @property
    def promised(self) -> Float[ndarray, " choice"]:
        return self.yes

    @property
    def outcome(self) -> Float[ndarray, " choice"]:
        return self.truth

    def figures(self) -> dict[str, float | None]:
        return super().figures() | ranking(self.yes, self.truth)


class Binary(SingleLabel):
    """Two classes, no and yes, with the logits 0 and z."""

    name: ClassVar[TaskName] = "binary"
    in_torch = "hydrasurgeon.runtime.kinds:TorchBinary"
    trained_by = "hydrasurgeon.tuning.losses:BinaryLosses"
    labels = FRACTION_EACH
    columns: ClassVar = {
        "probability": "number",
        "logit": "number",
        **DOUBTS,
    }
    numbers = (0.0, 1.0)
    link = "sigmoid"
    lacks: ClassVar = {
        **SingleLabel.lacks,
        "--check": "What it compares, accuracy and ECE, are those of classes; export without it.",
    }
    prediction_type = YesNoPrediction

    def read(self, logits: Float[ndarray, "sample member klass"]) -> ndarray:
        return yes_or_no(logits)

    def outputs(self, outputs: Outputs) -> Outputs:
        labels = None if outputs.labels is None else true_classes(outputs.labels)
        logits, shares = self.read(outputs.logits), outputs.labels
        return replace(outputs, logits=logits, labels=labels, original_labels=shares)

    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> JudgedYesNo:
        plain = super().judged(logits, labels, reading)
        probs, shares = self.chances(reading.answers(logits)), labels.reshape(-1).astype(np.float64)
        logs = np.log(np.maximum(probs, TINY))
        updates = {
            "yes": probs[:, 1],
            "truth": shares,
            "brier": np.square(probs[:, 1] - shares),
            "nll": -(1 - shares) * logs[:, 0] - shares * logs[:, 1],
        }
        return JudgedYesNo(**{**vars(plain), **updates})

    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        risk = None if decision.limits is None else decision.limits.risk
        promises = {} if risk is None else {"risk of yes": risk, "risk of no": risk}
        return Watched(YES_NO, math.log(2), promises)

    def broken(self, row: Mapping[str, Any], truth: str) -> Mapping[str, bool]:
        """Return the broken promises: an answered yes that is a no, and a true yes that is answered
        no.
        """
        broken = {}
        if row.get("answer") == "yes":
            broken["risk of yes"] = truth == "no"
        if truth == "yes":
            broken["risk of no"] = row.get("answer") == "no"
        return broken

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        return [row["answer"]]

    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        return YES_NO[float(row["logit"]) > 0]

    def guessing(self, outputs: Outputs) -> float:
        shares = outputs.truth if outputs.original_labels is None else outputs.original_labels
        yes = shares.astype(np.float64).mean()
        return float(entropy(np.stack([1 - yes, yes])))

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        """Fit Platt's temperature and bias."""
        if outputs.original_labels is None:
            return {**super().fitted(outputs), "bias": None}
        temperature, bias = platt(outputs.logits, outputs.original_labels)
        return {"temperature": temperature, "bias": bias}

    def losses_of(self, outputs: Outputs, constants: Constants) -> dict[str, float]:
        assert outputs.original_labels is not None
        after = constants["temperature"], constants["bias"]
        return {
            "before": nll_of_shares(outputs.logits, outputs.original_labels),
            "temperature": nll_of_shares(outputs.logits, outputs.original_labels, *after),
        }

    def _kept(self, by: Certifying, risk: float) -> dict[str, Any]:
        """Take two limits, of yes and of no."""
        familiar = float(by.parts[0].familiar.mean())
        certifying = [self.graded(part) for part in by.parts]
        limits = fit_limits(self.graded(by.fitting), certifying, risk=risk)
        return {"limits": limits.among(familiar)}

    def graded(self, part: Part) -> Graded:
        """Return familiar answers by the probability of yes, and where yes is true."""
        familiar = part.familiar
        return Graded(part.answers[familiar, 1], part.outputs.truth[familiar].astype(bool))

    def answered_class(
        self, probs: ndarray, record: DecisionRecord
    ) -> Int[ndarray, " choice"] | None:
        if record.limits is None:
            return None
        chance = probs[:, 1]
        limit = math.inf if record.limits.yes is None else record.limits.yes
        yes, no = chance >= limit, chance < record.limits.no
        return np.where(yes | no, yes.astype(np.int64), -1)
