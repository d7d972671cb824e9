"""Bootstrap intervals (Efron's percentiles, seeded): of a measure, and of what differs between two
models.

Resamples are drawn and measured many at a time: rows [repeat, sample] give values [repeat] of each
measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.results import COMPARED
from hydrasurgeon.problems.base import Judged
from hydrasurgeon.statistics.bootstrap import Interval, Ranked, Rows, Values, bootstrap

Judgement = Literal["better", "equal", "worse"]

NEGLIGIBLE = 5e-5
"""What a difference must reach to be one: less reads +0.0000 wherever it is printed, and may be
rounding; of metrics told in points of a hundred, ten times as much: +0.0."""
GROUPS = ("near", "far", "all")
"""Groups of OOD sets that have averages; every set belongs to the last."""


def _ranked(row: Answered) -> list[Ranked]:
    """Each OOD set against the labelled one, by the score in use."""
    return [Ranked(row.scores[row.used], each.scores[row.used]) for each in row.foreign]


def ood_intervals(
    row: Answered, *, level: float, seed: int
) -> tuple[list[dict[str, Interval]], dict[str, dict[str, Interval]]]:
    """The interval of each metric, by OOD set, and by group of the group's mean over its sets."""
    ranked = _ranked(row)
    if not ranked:
        return [], {}
    groups = {
        group: [at for at, each in enumerate(row.foreign) if group in ("all", each.group)]
        for group in GROUPS
    }

    def measure(rows: Rows, *of_sets: Rows) -> dict[str, Values]:
        sets = [each.metrics(rows, chosen) for each, chosen in zip(ranked, of_sets, strict=True)]
        values = {
            f"{at}.{name}": value for at, each in enumerate(sets) for name, value in each.items()
        }
        for group, members in groups.items():
            for name in sets[0] if members else ():
                values[f"{group}.{name}"] = np.stack([sets[at][name] for at in members]).mean(
                    axis=0
                )
        return values

    intervals: dict[str, dict[str, Interval]] = {}
    counts = (row.inside.count, *(len(each.scores[row.used]) for each in row.foreign))
    for name, ends in bootstrap(measure, *counts, level=level, seed=seed).items():
        place, _, metric = name.partition(".")
        intervals.setdefault(place, {})[metric] = ends
    return [intervals.pop(str(at)) for at in range(len(ranked))], intervals


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
        least = 10 * NEGLIGIBLE if metric.points else NEGLIGIBLE
        if self.low <= 0 <= self.high or abs(self.value) < least:
            return "equal"
        return "better" if (self.value > 0) == (metric.better == "higher") else "worse"


def is_paired(row: Answered, reference: Answered) -> bool:
    """Whether both answered for the same labelled samples, as far as labels tell."""
    return np.array_equal(row.inside.labels, reference.inside.labels)


def same_foreign(row: Answered, reference: Answered) -> bool:
    """Whether both were shown as many samples of the same OOD sets."""
    shapes = [
        [(s.name, len(s.scores[each.used])) for s in each.foreign] for each in (row, reference)
    ]
    return bool(row.foreign) and shapes[0] == shapes[1]


def compared(
    row: Answered, reference: Answered, *, level: float = 0.95, seed: int = 0
) -> tuple[Difference, ...]:
    """What differs from the reference, on resamples of the samples that both have answered for."""
    ranked = [_ranked(each) if same_foreign(row, reference) else [] for each in (row, reference)]

    def measures(
        inside: Judged, sets: Sequence[Ranked], rows: Rows, of_sets: Sequence[Rows]
    ) -> dict[str, Values]:
        ood = [each.metrics(rows, chosen) for each, chosen in zip(sets, of_sets, strict=True)]
        means = {
            name: np.stack([each[name] for each in ood]).mean(axis=0)
            for name in ("auroc", "fpr95")
            if ood
        }
        return inside.quality(rows) | means

    def differences(rows: Rows, *of_sets: Rows) -> dict[str, Values]:
        mine, theirs = (
            measures(each.inside, sets, rows, of_sets)
            for each, sets in zip((row, reference), ranked, strict=True)
        )
        return {name: mine[name] - theirs[name] for name in mine}

    counts = [row.inside.count, *(len(each.ood_ranks) for each in ranked[0])]
    ends = bootstrap(differences, *counts, level=level, seed=seed)
    values = differences(*(np.arange(count)[None] for count in counts))
    # What is not a number on any resample has no ends.
    return tuple(Difference(name, values[name].item(), *ends[name]) for name in ends)
