"""build's choice between candidates, by the figures of the table: with each other and with the plain
rivals, which are the model itself, a probe, the mean of the models and their ensemble.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hydrasurgeon.building.table import Entry

MARGIN = 1e-3
"""So little is no lead: a tenth of a point."""
ROUNDING = 1e-4
"""Largest loss of value against a plain rival that still counts as equal; tables do not show it."""


def decide(entries: Sequence[Entry], unit: str, below: Entry | None = None) -> Entry:
    """Return the entry that is worth most; of those within `MARGIN` of it the simplest: fewest
    members, then least cost. A choice between two models is no test of significance, so standard
    errors do not count.

    It is never worth less than a plain rival among them, nor than what was decided for a smaller
    budget.
    """
    everyone = [*entries]
    if below is not None:
        everyone.append(below)
    best = max(everyone, key=lambda entry: entry.value)
    least = max((entry.value - ROUNDING for entry in everyone if entry.is_plain), default=-np.inf)
    if below is not None:
        least = max(least, below.value)
    tied = [entry for entry in everyone if entry.value >= max(least, best.value - MARGIN)]

    def effort(entry: Entry) -> tuple[float, ...]:
        return (
            entry.choice.count,
            round(entry.cost[unit], 6),
            -round(entry.value, 9),
            not entry.is_plain,
        )

    return min(tied, key=effort)
