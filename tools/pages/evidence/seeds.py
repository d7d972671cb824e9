"""Rows of benchmarks/results/quality.json compared with one another, paired by seed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

Rows = dict[str, dict[str, dict[str, Any]]]
"""Row → seed → what was measured."""
SEEDS = 3
"""Without so many there is no verdict."""


@dataclass(frozen=True)
class Gain:
    """How much better one row is than another: the mean over seeds of their differences, and its standard error."""

    mean: float
    error: float
    seeds: int

    @property
    def clear(self) -> bool:
        """By more than its standard error, which one seed does not have."""
        return self.seeds > 1 and self.mean > self.error

    def __str__(self) -> str:
        return f"{100 * self.mean:+.1f} ± {100 * self.error:.1f}"


def gain(rows: Rows, first: str, second: str, measure: str) -> Gain | None:
    """In `measure`, uncalibrated, higher = better for the first; paired by seed; None where one was not measured."""
    pairs = [
        (rows[first][seed], rows[second][seed])
        for seed in rows.get(first, {})
        if seed in rows.get(second, {})
    ]
    if not pairs:
        return None
    sign = -1 if measure.startswith(("nll", "ece", "brier", "shift_brier", "fpr95")) else 1
    values = [sign * (value_of(a, measure) - value_of(b, measure)) for a, b in pairs]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Gain(statistics.mean(values), error, len(values))


def value_of(cell: dict[str, Any], measure: str) -> float:
    return float(cell[measure] if measure in cell else cell["plain"][measure])


def verdict(holds: bool, yes: str, no: str) -> str:
    return f"**{yes if holds else no}**"


def listed(gains: dict[str, Gain | None]) -> str:
    return ", ".join(
        f"{name.removesuffix('_mean').replace('_', ' ')} {value}" for name, value in gains.items()
    )
