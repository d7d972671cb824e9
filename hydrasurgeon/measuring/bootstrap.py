"""What differs between two models, with bootstrap intervals (Efron's percentiles, seeded).

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
"""What a difference must reach to be one: less reads +0.0000 wherever it is printed, and may be
rounding."""


@dataclass(frozen=True)
class Difference:
    """By how much a model's metric lies above the reference's, and between what."""

    metric: str
    value: float
    low: float
    high: float

    @property
    def judgement(self) -> Judgement:
        """Equal where the interval holds 0, or where the difference is none to speak of."""
        metric = COMPARED[self.metric]
        if self.low <= 0 <= self.high or abs(self.value) < NEGLIGIBLE:
            return "equal"
        return "better" if (self.value > 0) == (metric.better == "higher") else "worse"


def is_paired(row: Answered, reference: Answered) -> bool:
    """Whether both answered for the same labelled samples, as far as labels tell."""
    return np.array_equal(row.inside.labels, reference.inside.labels)


def compared(
    row: Answered, reference: Answered, *, level: float = 0.95, seed: int = 0
) -> tuple[Difference, ...]:
    """What differs from the reference, on resamples of the samples that both have answered for."""
    # Where both were shown as many samples of the same OOD sets, these are compared too.
    if [*row.foreign] != [*reference.foreign] or row.counts[1:] != reference.counts[1:]:
        row, reference = (replace(each, foreign={}) for each in (row, reference))

    def differences(*rows: Rows) -> dict[str, Values]:
        mine, theirs = (each.quality(*rows) for each in (row, reference))
        return {name: mine[name] - theirs[name] for name in mine}

    ends = bootstrap(differences, *row.counts, level=level, seed=seed)
    values = differences(*row.everything)
    # What is not a number on any resample has no ends; a plugin's measures say not what is better.
    known = [name for name in ends if name in COMPARED]
    return tuple(Difference(name, values[name].item(), *ends[name]) for name in known)
