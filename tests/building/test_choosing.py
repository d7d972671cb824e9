"""Candidates are decided by the table's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hydrasurgeon.building.budgets import Size, parse_budgets
from hydrasurgeon.building.choosing import MARGIN, ROUNDING, decide
from hydrasurgeon.building.members import WHOLE, MemberModel
from hydrasurgeon.building.search_space import SearchSpace
from hydrasurgeon.building.table import Candidate
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


def space(values: dict[str, float], mean: str = "", size: Size | None = None) -> Any:
    """A search space of models, of which one may be the mean, with what each is worth alone."""
    members = {
        name: MemberModel(name, Path(f"{name}.safetensors"), WHOLE, size=size) for name in values
    }
    means = (members.pop(mean),) if mean else ()
    search: Any = SimpleNamespace(
        models=[*members.values()], mean=means, plain=[], _value_of=lambda each: values[each.label]
    )
    search.members = [*search.models, *means]
    return search


def labels(members: Sequence[MemberModel]) -> list[str]:
    return [each.label for each in members]


def test_a_hydra_has_the_best_models_of_one_size() -> None:
    search = space({"a": 0.1, "b": 0.3, "c": 0.2, "the mean": 0.9}, mean="the mean")
    cut = space({"a, cut": 0.5, "b, cut": 0.4}, size=Size(2, 0.5))
    search.members += cut.models
    worth = search._value_of
    search._value_of = lambda each: (worth if each.size is None else cut._value_of)(each)
    search.plain = [Candidate.of(*search.models, name="ensemble of 3")]
    found = SearchSpace.candidates.fget(search)  # type: ignore[attr-defined]
    assert [each.name for each in found] == ["ensemble of 3", *[""] * (len(found) - 1)]
    assert [labels(each.members) for each in found[1:]] == [
        *(["a"], ["b"], ["c"], ["the mean"], ["a, cut"], ["b, cut"]),
        ["b", "c"],
        ["a, cut", "b, cut"],
    ]


@pytest.mark.parametrize(
    ("worth", "mean", "expected"),
    [
        ({"a": 0.1, "b": 0.3, "the mean": 0.3}, "the mean", ["the mean"]),
        ({"a": 0.1, "b": 0.3, "the mean": 0.2}, "the mean", ["a", "b"]),
        ({"a": 0.1, "b": 0.3}, "", ["a", "b"]),
    ],
)
def test_the_mean_is_cut_unless_a_model_is_better(
    worth: dict[str, float], mean: str, expected: list[str]
) -> None:
    found = SearchSpace._uncut.fget(space(worth, mean))  # type: ignore[attr-defined]
    assert labels(found) == expected
