"""build's choice. Members are proposed by what they are worth together on the samples that calibrate
them, and decided by the table.

With separate or equal MLPs a hydra answers exactly as its members do, so that no file is needed:
`propose` finds the best member, the best two, … by forward selection. `decide` compares what these
are worth in the table, with each other and with the plain rivals: the model itself, the mean of the
models, their ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.building.table import Candidate, CandidateTable, Entry

MOST_MEMBERS = 5
"""Members of a hydra."""
MARGIN = 1e-3
"""So little is no lead: a tenth of a point."""
ROUNDING = 1e-4
"""Largest loss of value against a plain rival that still counts as equal; tables do not show it."""
Members = tuple[MemberModel, ...]


def propose(
    table: CandidateTable,
    pools: Sequence[Sequence[MemberModel]],
    affordable: Callable[[Members], bool],
) -> list[Candidate]:
    """Return one choice for each number of members that is affordable on all samples and on each
    half.
    """

    def selected(half: int | None) -> dict[int, Members]:
        """Return, for each number of members, the best that forward selection picks from any pool."""
        worth, best = partial(table.worth, half=half), dict[int, Members]()
        for pool in pools:
            chosen: Members = ()
            while len(chosen) < MOST_MEMBERS:
                options = [
                    tuple(
                        candidate
                        for candidate in pool
                        if candidate in chosen or candidate is member
                    )
                    for member in pool
                    if member not in chosen
                ]
                options = [candidate for candidate in options if affordable(candidate)]
                if not options:
                    break
                chosen = max(options, key=worth)
                best[len(chosen)] = max(best.get(len(chosen), chosen), chosen, key=worth)
        return best

    overall, first, rest = map(selected, (None, 0, 1))
    counts = sorted(overall.keys() & first.keys() & rest.keys())
    return [Candidate(overall[count], (first[count], rest[count])) for count in counts]


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
