"""Differences between two models, with bootstrap intervals (Efron's percentiles, seeded).

Resamples are drawn and measured many at a time: rows [repeat, sample] give values [repeat] of each
measure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hydrasurgeon.measuring.measure import Answered
from hydrasurgeon.measuring.results import COMPARED
from hydrasurgeon.statistics.bootstrap import Rows, Values, bootstrap

Judgement = Literal["better", "equal", "worse"]

NEGLIGIBLE = 5e-5
"""Smallest absolute difference that counts as one: smaller ones print as +0.0000 and may be
rounding.
"""


@dataclass(frozen=True)
class Difference:
    """Difference between a model's metric and the reference's, with the ends of its interval."""

    metric: str
    value: float
    low: float
    high: float

    @property
    def judgement(self) -> Judgement:
        """Equal if the interval contains 0 or the difference is negligible."""
        metric = COMPARED[self.metric]
        if self.low <= 0 <= self.high or abs(self.value) < NEGLIGIBLE:
            return "equal"
        return "better" if (self.value > 0) == (metric.better == "higher") else "worse"


def is_paired(row: Answered, reference: Answered) -> bool:
    """Return True if two models answered the same labelled samples, as far as labels show."""
    return np.array_equal(row.inside.labels, reference.inside.labels)


def compared(
    row: Answered, reference: Answered, *, level: float = 0.95, seed: int = 0
) -> tuple[Difference, ...]:
    """Return the differences from the reference, on resamples of the samples that both models
    answered.
    """
    # Where both were shown as many samples of the same OOD sets, these are compared too.
    if [*row.ood_scores] != [*reference.ood_scores] or row.counts[1:] != reference.counts[1:]:
        row, reference = (replace(answers, ood_scores={}) for answers in (row, reference))

    def differences(*rows: Rows) -> dict[str, Values]:
        row_metrics, reference_metrics = (answers.quality(*rows) for answers in (row, reference))
        return {name: row_metrics[name] - reference_metrics[name] for name in row_metrics}

    ends = bootstrap(differences, *row.counts, level=level, seed=seed)
    values = differences(*row.everything)
    # What is not a number on any resample has no ends; a plugin's measures say not what is better.
    metrics = [name for name in ends if name in COMPARED]
    return tuple(Difference(name, values[name].item(), *ends[name]) for name in metrics)
