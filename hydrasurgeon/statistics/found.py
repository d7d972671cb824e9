"""Whether anything was found for a query: the score of a group from which its first row is the
answer, such that at most a share r of the first rows that are shown is wrong, with confidence
1 − δ.

    best     the highest probability of yes in the group
    margin   by how much it lies above the second, or above 0 where there is none
    count    Σ p, how many rows are expected to be yes

Each of the three is certified with δ/3 as any abstention is (abstain.py), on whole groups, and the
one that answers most is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Found, GroupScore
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.abstain import Graded, fit_abstention
from hydrasurgeon.statistics.probabilities import YES, falling, runs, sums_at

DECIMALS = 6
"""Decimals of a score: rows of `predict` are rounded, and the group at the threshold is answered."""


@dataclass(frozen=True)
class Groups:
    """The rows of each group, in the order of the groups' numbers."""

    number: Int[ndarray, " group"]
    first: Int[ndarray, " group"]
    """Where the row with the highest probability stands; of equals the first."""
    best: Float[ndarray, " group"]
    second: Float[ndarray, " group"]
    """0 where there is none."""
    expected: Float[ndarray, " group"]
    """The sum of the probabilities."""

    @classmethod
    def of(cls, yes: Float[ndarray, " row"], groups: Int[ndarray, " row"]) -> Groups:
        """Rows with these probabilities, by the number of their group."""
        yes = yes.astype(np.float64)
        order = falling(yes)
        order = order[np.argsort(groups[order], kind="stable")]
        place, counts = runs(groups[order])
        starts = counts.cumsum() - counts
        number = groups[order][starts]
        after = np.minimum(starts + 1, len(order) - 1)
        second = np.where(counts > 1, yes[order[after]], 0.0)
        place = np.repeat(np.arange(len(counts)), counts)
        expected = sums_at(place, yes[order], len(counts))
        return cls(number, order[starts], yes[order[starts]], second, expected)

    def score(self, kind: GroupScore) -> Float[ndarray, " group"]:
        """How sure it is that a group's first row is an answer."""
        scores = {
            "best": self.best,
            "margin": self.best - self.second,
            "count": self.expected,
        }
        return np.round(scores[kind], decimals=DECIMALS)

    def answered(self, rule: Found) -> Bool[ndarray, " group"]:
        """For which groups something was found."""
        return self.score(rule.score) >= rule.threshold


def fit_found(
    yes: Float[ndarray, " row"],
    truth: Float[ndarray, " row"],
    groups: Int[ndarray, " row"],
    *,
    risk: float,
    delta: float,
) -> Found | None:
    """The rule that answers most groups; None where the groups cannot certify any."""
    ranked = Groups.of(yes, groups)
    right = truth[ranked.first] >= YES
    fits = np.arange(len(right)) % 3 == 0
    kinds: tuple[GroupScore, ...] = ("best", "margin", "count")
    rules = []
    for kind in kinds:
        levels, at = np.unique(ranked.score(kind), return_inverse=True)
        with suppress(DataError):
            graded = [Graded(at[part] / len(levels), right[part]) for part in (fits, ~fits)]
            made = fit_abstention(graded[0], graded[1:], risk=risk, delta=delta / len(kinds))
            threshold = float(levels[round(made.threshold * len(levels))])
            rules.append((made, kind, threshold))
    if not rules:
        return None
    made, kind, threshold = max(rules, key=lambda each: each[0].coverage)
    assert made.bound is not None
    return Found(
        score=kind,
        threshold=threshold,
        risk=risk,
        delta=delta,
        bound=made.bound,
        answered=made.coverage,
        groups=len(right),
    )


def measures_of(
    yes: ndarray, truth: ndarray, groups: ndarray, rule: Found
) -> tuple[Callable[[ndarray], dict[str, ndarray]], int]:
    """A function that measures resamples of groups, and how many groups there are; the risk is NaN
    where none is answered.
    """
    ranked = Groups.of(yes, groups)
    answered = ranked.answered(rule).astype(np.float64)
    wrong = answered * (truth[ranked.first] < YES)

    def measures(rows: ndarray) -> dict[str, ndarray]:
        shown = answered[rows].sum(axis=1)
        with np.errstate(invalid="ignore"):
            risk = wrong[rows].sum(axis=1) / shown
        return {"found": shown / rows.shape[1], "found_risk": risk}

    return measures, len(answered)
