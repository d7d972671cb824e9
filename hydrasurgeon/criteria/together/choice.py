"""The members that are worth most together: forward selection, then swaps while they help, within a budget.

A choice from many that is made on few samples finds noise too: the estimate is what two halves of the samples say of
the choice that the other half made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.criteria.together.objective import Answers, Objective

MOST_MEMBERS = 5
"""Members of a hydra whose number is left open."""
SWAPS = 3
"""Rounds of swaps, at most; most choices settle after one."""

RESAMPLES = 20
"""Draws of the samples by which the noise of a difference is told."""

Affordable = Callable[[Sequence[int]], bool]


@dataclass(frozen=True)
class Choice:
    """Some candidates, by their numbers, and what they are worth together."""

    members: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Estimate:
    """What a choice is worth on samples that it was not made on."""

    value: float
    optimism: float
    """How much more it looked to be worth where it was made."""
    choices: tuple[Choice, ...]
    """What each half chose."""


class Pool:
    """All candidates' terms of an objective; sums of them, and what those are worth."""

    def __init__(self, objective: Objective, terms: Sequence[Tensor], labels: Int[Tensor, " sample"]) -> None:
        self.objective = objective
        self.terms = terms
        """For each set [candidate, sample, …]."""
        self.labels = labels

    @classmethod
    def gathered(cls, objective: Objective, candidates: Iterable[Answers], count: int) -> Pool:
        """Of so many candidates, one after another: their logits are not held."""
        terms: list[Tensor] = []
        for at, answers in enumerate(candidates):
            mine = objective.terms(answers)
            if not terms:
                labels = answers.labels
                terms = [torch.empty((count, *term.shape), dtype=term.dtype) for term in mine]
            for held, term in zip(terms, mine, strict=True):
                held[at] = term
        return cls(objective, terms, labels)

    def halves(self) -> tuple[Pool, Pool]:
        """The first half of every set's samples, which come in no order, and the rest; nothing is copied."""

        def part(first: bool) -> Pool:
            def cut(rows: Tensor, axis: int) -> Tensor:
                middle = rows.shape[axis] // 2
                start, length = (0, middle) if first else (middle, rows.shape[axis] - middle)
                return rows.narrow(axis, start, length)

            terms = [cut(term, 1) for term in self.terms]
            return Pool(self.objective, terms, cut(self.labels, 0))

        return part(True), part(False)

    def sums(self, members: Sequence[int]) -> list[Tensor]:
        """Over nothing: zeros."""
        return [term[list(members)].sum(dim=0) for term in self.terms]

    def worth(self, members: Sequence[int]) -> float:
        return self.objective.value(self.sums(members), len(members), self.labels)

    def plainly(self, members: Sequence[int]) -> float:
        """Whatever the objective's guard says."""
        measure = self.objective.plain or self.objective.value
        return measure(self.sums(members), len(members), self.labels)

    def worth_with(self, members: Sequence[int], options: Sequence[int]) -> list[float]:
        """Of these members and one more, for each option."""
        base = self.sums(members)

        def one(option: int) -> float:
            sums = [total + term[option] for total, term in zip(base, self.terms, strict=True)]
            return self.objective.value(sums, len(members) + 1, self.labels)

        # Threads over options beat torch's own over rows; two of each would be in each other's way.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as workers:
                return list(workers.map(one, options))
        finally:
            torch.set_num_threads(threads)

    def difference(self, one: Sequence[int], other: Sequence[int]) -> tuple[float, float]:
        """How much more `one` is worth than `other`, and the standard error of that: both on the same draws of
        samples."""
        drawn = self.redrawn((self.sums(one), self.sums(other)), (len(one), len(other)), repeats=RESAMPLES, seed=0)
        return self.worth(one) - self.worth(other), float(drawn.float().std())

    def redrawn(
        self, sums: tuple[list[Tensor], list[Tensor]], counts: tuple[int, int], *, repeats: int, seed: int
    ) -> Float[Tensor, " repeat"]:
        """How much more the first sums, over so many members, are worth than the second, on draws of the samples."""
        dice = torch.Generator().manual_seed(seed)
        drawn = []
        for _ in range(repeats):
            rows = [torch.randint(len(each), (len(each),), generator=dice) for each in sums[0]]
            if self.objective.behind:
                rows[-1] = rows[0]
            labels = self.labels[rows[0]]
            values = [
                self.objective.value([total[at] for total, at in zip(totals, rows, strict=True)], count, labels)
                for totals, count in zip(sums, counts, strict=True)
            ]
            drawn.append(values[0] - values[1])
        return torch.tensor(drawn, dtype=torch.float64)


def choose(
    pool: Pool, *, pools: Sequence[Sequence[int]], affordable: Affordable, members: int | None = None
) -> Choice | None:
    """The best of all that forward selection and swaps find in each pool; None where nothing is affordable.

    Of choices that the samples cannot tell from the best, it is the one of most members: what one member has by luck,
    an
    average of several has less of. `members` asks for exactly so many.
    """
    most = MOST_MEMBERS if members is None else members
    best: dict[int, Choice] = {}
    for allowed in pools:
        for choice in _forward(pool, allowed, affordable, most):
            size = len(choice.members)
            if size not in best or choice.value > best[size].value:
                best[size] = choice
    if members is not None:
        return best.get(members)
    top = max(best.values(), key=lambda choice: (choice.value, -len(choice.members)), default=None)
    if top is None:
        return None
    for size in sorted(best, reverse=True):
        if size <= len(top.members):
            break
        lost, error = pool.difference(top.members, best[size].members)
        if lost <= error:
            return best[size]
    return top


def _forward(pool: Pool, allowed: Sequence[int], affordable: Affordable, most: int) -> Iterator[Choice]:
    """The best single member, the best two, … each improved by swaps."""
    chosen: list[int] = []
    while len(chosen) < most:
        options = [c for c in allowed if c not in chosen and affordable([*chosen, c])]
        if not options:
            return
        values = pool.worth_with(chosen, options)
        value, at = _best(values)
        chosen.append(options[at])
        chosen, value = _swapped(pool, chosen, value, allowed, affordable)
        yield Choice(tuple(sorted(chosen)), value)


def _swapped(
    pool: Pool, chosen: list[int], value: float, allowed: Sequence[int], affordable: Affordable
) -> tuple[list[int], float]:
    """One member for another as long as that is better."""
    if len(chosen) < 2:
        return chosen, value
    for _ in range(SWAPS):
        before = value
        for place in range(len(chosen)):
            rest = [*chosen[:place], *chosen[place + 1 :]]
            options = [c for c in allowed if c not in chosen and affordable([*rest, c])]
            if not options:
                continue
            better, at = _best(pool.worth_with(rest, options))
            if better > value:
                value, chosen = better, [*rest[:place], options[at], *rest[place:]]
        if value == before:
            break
    return chosen, value


def _best(values: Sequence[float]) -> tuple[float, int]:
    """The highest, and where it stands first."""
    value = max(values)
    return value, values.index(value)


def estimate(
    pool: Pool, *, pools: Sequence[Sequence[int]], affordable: Affordable, members: int | None = None
) -> Estimate | None:
    """What choosing so is worth: each half of the samples judges what the other half chose."""
    halves = pool.halves()
    choices, there, elsewhere = [], [], []
    for here, other in (halves, halves[::-1]):
        choice = choose(here, pools=pools, affordable=affordable, members=members)
        if choice is None:
            return None
        choices.append(choice)
        there.append(here.plainly(choice.members))
        elsewhere.append(other.plainly(choice.members))
    value = sum(elsewhere) / 2
    return Estimate(value, sum(there) / 2 - value, tuple(choices))
