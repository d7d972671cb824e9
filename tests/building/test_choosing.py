"""Candidates are decided by the table's own figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hydrasurgeon.building.budgets import parse_budgets
from hydrasurgeon.building.choosing import MARGIN, ROUNDING, decide
from hydrasurgeon.errors import UsageError


def entry(value: float, members: int = 1, cost: float = 1.0, *, plain: str = "") -> Any:
    """An entry of the table."""
    choice = SimpleNamespace(count=members, name=plain)
    return SimpleNamespace(choice=choice, value=value, cost={"macs": cost}, is_plain=bool(plain))


SINGLE = entry(0.900, plain="single")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # A hydra that is ahead by less than a tenth of a point is not worth its members …
        ([entry(0.9009, 3, 1.4)], SINGLE.value),
        # … and one that is ahead by more is, whatever the standard error.
        ([entry(0.9011, 3, 1.4)], 0.9011),
        # A smaller model must not be worse than a plain rival that the budget could pay,
        ([entry(0.899, 1, 0.5)], 0.900),
        # and is taken where it is not.
        ([entry(0.89995, 1, 0.5)], 0.89995),
        ([entry(0.9, 1, 0.5), entry(0.905, 2, 1.2)], 0.905),
        # Of plain rivals the best, whatever it costs; by a rounding the simpler.
        ([entry(0.905, 3, 3.0, plain="ensemble")], 0.905),
        ([entry(0.90005, 3, 3.0, plain="ensemble")], 0.900),
        # Of equal cost and size the better.
        ([entry(0.9004, plain="mean")], 0.9004),
        # Fewer members first, then less cost.
        ([entry(0.930, 3, 1.2), entry(0.9295, 2, 1.4)], 0.9295),
        ([entry(0.930, 2, 1.2), entry(0.9295, 2, 1.4)], 0.930),
        ([entry(0.930, 2, 1.4), entry(0.9295, 2, 1.2)], 0.9295),
    ],
)
def test_the_simplest_that_is_not_worse(others: list[Any], expected: float) -> None:
    chosen = decide([SINGLE, *others], "macs")
    assert chosen.value == expected


def test_nothing_affordable_is_better() -> None:
    """Of any entries: no plain rival by more than a rounding, no other by more than a tie, and nothing below."""
    random = np.random.default_rng(0)
    for _ in range(300):
        values = random.normal(0.9, 0.002, 6)
        counts, costs = random.integers(1, 4, 6).tolist(), random.uniform(0.5, 2, 6).tolist()
        everyone = [
            entry(value, count, cost, plain="rival" * (at < 2))
            for at, (value, count, cost) in enumerate(zip(values, counts, costs, strict=True))
        ]
        below = entry(0.9, 1, 0.4)
        chosen = decide(everyone, "macs", below)
        assert chosen.value >= max(each.value for each in everyone if each.is_plain) - ROUNDING
        assert chosen.value >= max(values) - MARGIN
        assert chosen.value >= below.value


@pytest.mark.parametrize(
    "text",
    [
        "1.5",
        "macs",
        "macs=",
        "macs=0",
        "macs=-1",
        "macs=1,,2",
        "speed=3",
        "macs=1e99",
        "macs=nan",
        "ms=20",
    ],
)
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        parse_budgets(text)


def test_a_list_of_budgets_is_a_rising_front() -> None:
    budgets = parse_budgets("params=2,1.25,1.25")
    assert [str(budget) for budget in budgets] == ["params=1.25", "params=2"]
