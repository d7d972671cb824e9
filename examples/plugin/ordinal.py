"""Classes in an order, such as stars or grades: a task in a package of its own.

answer   the median class of the calibrated probabilities, which errs by the fewest classes
loss     ranked probability score Σ_k (P(y ≤ k) − 1[y ≤ k])², beside the cross-entropy
set      all classes between the first and the last that the prediction set holds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.statistics.conformal import prediction_sets
from hydrasurgeon.tasks.single_label import JudgedClasses, SingleLabel


def hulls(sets: ndarray) -> ndarray:
    """Fill the gaps of sets."""
    behind = np.flip(np.logical_or.accumulate(np.flip(sets, -1), axis=-1), -1)
    return np.logical_or.accumulate(sets, axis=-1) & behind


@dataclass(frozen=True, kw_only=True)
class JudgedOrdinal(JudgedClasses):
    """With how many classes each answer is off, and its ranked probability score."""

    off: ndarray
    rps: ndarray

    def measures(self) -> Any:
        measured = super().measures()
        measures = {"mae": self.off, "rps": self.rps}
        return lambda rows: (
            measured(rows) | {k: values[rows].mean(axis=1) for k, values in measures.items()}
        )


class Ordinal(SingleLabel):
    """One of several classes in an order."""

    name = "ordinal"
    trained_by = "ordinal_losses:Losses"
    lacks: ClassVar = {
        **SingleLabel.lacks,
        "--risk": "It promises that the likeliest class is right, not the median.",
    }

    def chosen(self, probs: ndarray) -> tuple[ndarray, ndarray]:
        """Return the median: the first class up to which half of the probability lies."""
        labels = (probs.cumsum(axis=-1) < 0.5).sum(axis=-1).clip(max=probs.shape[-1] - 1)
        return np.take_along_axis(probs, labels[:, None], axis=-1)[:, 0], labels

    def limited(self, decided: Any, record: Any) -> dict[str, Any]:
        limits = super().limited(decided, record)
        return {**limits, "sets": hulls(limits["sets"])}

    def judged(self, logits: ndarray, labels: ndarray, reading: Any) -> JudgedOrdinal:
        plain, probs = super().judged(logits, labels, reading), reading.answers(logits)
        behind = np.arange(probs.shape[-1]) >= labels[:, None]
        fields: dict[str, Any] = {
            "off": np.abs(plain.predicted - labels).astype(np.float64),
            "rps": np.square(probs.cumsum(axis=-1) - behind).sum(axis=-1),
        }
        if reading.conformal is not None:
            sets = hulls(prediction_sets(reading.conformal, probs))
            fields["covered"] = np.take_along_axis(sets, labels[:, None], axis=-1)[:, 0]
            fields["set_size"] = sets.sum(axis=-1).astype(np.float64)
        return JudgedOrdinal(**{**vars(plain), **fields})
