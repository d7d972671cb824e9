"""Members are proposed as a slow, plain search would, and decided by the table's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drawn_answers import MEMBERS, answers, member

from hydrasurgeon.building.answers import Answers
from hydrasurgeon.building.choosing import MARGIN, Pool, decide, propose
from hydrasurgeon.building.cost import parse_budgets
from hydrasurgeon.building.members import Member
from hydrasurgeon.building.table import Objective, Table
from hydrasurgeon.errors import UsageError
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.probabilities import softmax
from hydrasurgeon.statistics.temperature import temperature_of

EVERYONE = [member(number) for number in range(MEMBERS)]


def pool(name: str, everyone: Sequence[Answers], floor: float = 0.0) -> Pool:
    table = Table(Objective(name, floor), lambda each, engine: everyone[EVERYONE.index(each)])
    return Pool(table, EVERYONE[: len(everyone)])


def worth(summed: Pool, chosen: Sequence[int]) -> float:
    *rest, last = (EVERYONE[number] for number in chosen)
    return summed.worth_with(rest, [last])[0]


def numbers(members: Sequence[Member]) -> tuple[int, ...]:
    return tuple(EVERYONE.index(each) for each in members)


def accuracy(chosen: Sequence[Answers]) -> float:
    """By eval's metrics, in float64, from the logits at each member's temperature."""
    logits = [
        each.val.logits[:, 0].astype(np.float64) / temperature_of(each.val.logits, each.val.truth)
        for each in chosen
    ]
    probs = softmax(np.stack(logits)).mean(axis=0)
    return metrics.accuracy(probs, chosen[0].val.truth)


def test_sums_are_evals_metrics() -> None:
    everyone = answers()
    summed = pool("acc", everyone)
    for chosen in ([2], [0, 5], [1, 2, 6]):
        expected = accuracy([everyone[i] for i in chosen])
        assert worth(summed, chosen) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "seed"), [("avg", 0), ("nll", 1), ("msp", 2)])
def test_what_is_proposed_is_forward_selection_and_swaps(name: str, seed: int) -> None:
    summed = pool(name, answers(seed))

    def affordable(chosen: Sequence[int]) -> bool:
        return sum(1 + i % 3 for i in chosen) <= 6

    chosen: list[int] = []
    best: dict[int, float] = {}
    while len(chosen) < 5:
        options = [i for i in range(MEMBERS) if i not in chosen and affordable([*chosen, i])]
        if not options:
            break
        chosen.append(max(options, key=lambda i: worth(summed, [*chosen, i])))
        improved = len(chosen) > 1
        while improved:
            improved = False
            for place in range(len(chosen)):
                for other in range(MEMBERS):
                    swapped = [*chosen[:place], other, *chosen[place + 1 :]]
                    able = other not in chosen and affordable(swapped)
                    if able and worth(summed, swapped) > worth(summed, chosen) + 1e-9:
                        chosen, improved = swapped, True
        best[len(chosen)] = worth(summed, chosen)
    proposed = propose(summed, [EVERYONE], lambda members: affordable(numbers(members)))
    assert proposed.keys() == best.keys()
    for count, members in proposed.items():
        assert len(members) == count
        assert affordable(numbers(members))
        assert worth(summed, numbers(members)) == pytest.approx(best[count], abs=1e-6)


def entry(value: float, members: int = 1, cost: float = 1.0, *, plain: str = "") -> Any:
    """An entry of the table whose lead over another has a standard error of 0.01."""
    choice = SimpleNamespace(count=members, name=plain)
    made = SimpleNamespace(choice=choice, value=value, cost={"macs": cost}, is_plain=bool(plain))
    made.lead = lambda other: (value - other.value, 0.01)
    return made


SINGLE = entry(0.900, plain="single")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # A hydra that is ahead by less than its error is not worth its members …
        ([entry(0.909, 3, 1.4)], SINGLE.value),
        # … and one that is ahead by more is.
        ([entry(0.911, 3, 1.4)], 0.911),
        # A smaller model must not be worse than a plain rival that the budget could pay,
        ([entry(0.899, 1, 0.5)], 0.900),
        # and is taken where it is not.
        ([entry(0.9, 1, 0.5), entry(0.905, 2, 1.2)], 0.9),
        # Of plain rivals the best, whatever it costs; by a rounding the simpler.
        ([entry(0.905, 3, 3.0, plain="ensemble")], 0.905),
        ([entry(0.90005, 3, 3.0, plain="ensemble")], 0.900),
        # Of equal cost and size the better.
        ([entry(0.9004, plain="mean")], 0.9004),
        # Fewer members first, then less cost.
        ([entry(0.930, 3, 1.2), entry(0.925, 2, 1.4)], 0.925),
        ([entry(0.930, 2, 1.2), entry(0.925, 2, 1.4)], 0.930),
    ],
)
def test_the_simplest_that_is_not_worse(others: list[Any], expected: float) -> None:
    chosen = decide([SINGLE, *others], "macs")
    assert chosen.value == expected
    assert MARGIN < 0.01


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
