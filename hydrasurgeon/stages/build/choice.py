"""The members that are worth most together: arithmetic on answers that each candidate gave once.

With separate or equal MLPs a hydra answers exactly as its members do, so p = 1/M Σ_m p_m needs no
model. Members are chosen by forward selection, then swaps while they help, within a budget. A
choice from many that is made on few samples finds noise too: the estimate is what two halves of the
samples say of the choice that the other half made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.statistics.metrics import accuracy, auroc
from hydrasurgeon.statistics.scores.on_logits import FUNCTIONS

PENALTY = 10.0
"""What a point of accuracy below the floor costs, in points of the objective."""
TINY = 1e-30
"""A probability that underflows counts as this in float32."""

MOST_MEMBERS = 5
"""Members of a hydra whose number is left open."""
SWAPS = 3
"""Rounds of swaps, at most; most choices settle after one."""

RESAMPLES = 20
"""Draws of the samples by which the noise of a difference is told."""

Affordable = Callable[[Sequence[int]], bool]
Rows = Float[Tensor, "sample klass"]
Terms = list[Tensor]
"""What is added up over members: for every set one tensor, of probabilities, logits or scalars."""


@dataclass(frozen=True)
class Answers:
    """One candidate's logits on the validation set and on OOD sets."""

    val: Rows
    labels: Int[Tensor, " sample"]
    foreign: tuple[Rows, ...] = ()
    each: int = 1
    """Rows of a sample: of many labels one for each, which stand together."""

    @property
    def sets(self) -> tuple[Rows, ...]:
        return (self.val, *self.foreign)

    def halves(self) -> tuple[Answers, Answers]:
        """The first half of every set, and the rest: samples come in no order."""
        middles = (len(rows) // (2 * self.each) * self.each for rows in (*self.sets, self.labels))
        parts = zip((*self.sets, self.labels), middles, strict=True)
        halves = zip(*(torch.tensor_split(rows, [middle]) for rows, middle in parts), strict=True)
        first, rest = (
            Answers(val, labels, tuple(foreign), self.each) for val, *foreign, labels in halves
        )
        return first, rest


@dataclass(frozen=True)
class Objective:
    """How a sum over members becomes a number, the higher the better."""

    name: str
    floor: float | None = None
    """An accuracy: each point below it costs `PENALTY` points."""

    @property
    def behind(self) -> bool:
        """Whether validation probabilities stand behind its terms, which are no probabilities
        themselves.
        """
        return self.floor is not None and LOGITS[self.score].terms in ("energy", "logits")

    @property
    def score(self) -> str:
        """The OOD score whose AUROC counts."""
        return self.name if self.name in LOGITS else "msp"

    def terms(self, answers: Answers) -> Terms:
        if self.name == "nll":
            return [answers.val.softmax(dim=-1).gather(-1, answers.labels[:, None])[:, 0]]
        terms, _ = FUNCTIONS[self.score]
        behind = [answers.val.softmax(dim=-1)] if self.behind else []
        return [*(terms(rows, 1.0) for rows in answers.sets), *behind]

    def plain(self, sums: Sequence[Tensor], members: int, labels: Int[Tensor, " sample"]) -> float:
        """What sums over so many members are worth, whatever the floor."""
        if self.name == "nll":
            return float((sums[0] / members).clamp_min(TINY).log().double().mean())
        if self.name == "acc":
            return accuracy(sums[0], labels)
        _, score = FUNCTIONS[self.score]
        inside, *outside = (score(rows / members) for rows in (sums[:-1] if self.behind else sums))
        areas = [area for each in outside if (area := auroc(inside, each)) is not None]
        mean = sum(areas) / len(areas)  # against each OOD set, on average
        return (accuracy(sums[0], labels) + mean) / 2 if self.name == "avg" else mean

    def value(self, sums: Sequence[Tensor], members: int, labels: Int[Tensor, " sample"]) -> float:
        """What they are worth, less what they are short of the floor."""
        worth = self.plain(sums, members, labels)
        if self.floor is None or self.name == "nll":
            return worth
        probs = sums[-1] if self.behind else sums[0][..., :-1] if self.name == "mi" else sums[0]
        return worth - PENALTY * max(0.0, self.floor - accuracy(probs, labels))


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

    def __init__(
        self, objective: Objective, terms: Sequence[Tensor], labels: Int[Tensor, " sample"]
    ) -> None:
        self.objective = objective
        self.terms = terms
        """For each set [candidate, sample, …]."""
        self.labels = labels

    @classmethod
    def gathered(cls, objective: Objective, candidates: Iterable[Answers], count: int) -> Pool:
        """The pool of so many candidates, one after another, without holding their logits."""
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
        """The first half of every set's samples, which come in no order, and the rest; nothing is
        copied.
        """
        middle = len(self.labels) // 2
        parts = [term.tensor_split([term.shape[1] // 2], dim=1) for term in self.terms]
        labels = self.labels[:middle], self.labels[middle:]
        first, rest = (
            Pool(self.objective, [part[half] for part in parts], labels[half]) for half in (0, 1)
        )
        return first, rest

    def sums(self, members: Sequence[int]) -> list[Tensor]:
        """Over nothing: zeros."""
        return [term[list(members)].sum(dim=0) for term in self.terms]

    def worth(self, members: Sequence[int]) -> float:
        return self.objective.value(self.sums(members), len(members), self.labels)

    def plainly(self, members: Sequence[int]) -> float:
        """The same without the floor."""
        return self.objective.plain(self.sums(members), len(members), self.labels)

    def worth_with(self, members: Sequence[int], options: Sequence[int]) -> list[float]:
        """Worth of these members and one more, for each option."""
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
        """How much more `one` is worth than `other`, and its standard error, both on the same draws
        of samples.
        """
        dice, drawn = torch.Generator().manual_seed(0), []
        sides = [(self.sums(members), len(members)) for members in (one, other)]
        for _ in range(RESAMPLES):
            rows = [torch.randint(len(each), (len(each),), generator=dice) for each in sides[0][0]]
            if self.objective.behind:
                rows[-1] = rows[0]
            labels = self.labels[rows[0]]
            values = [
                self.objective.value(
                    [total[at] for total, at in zip(sums, rows, strict=True)], count, labels
                )
                for sums, count in sides
            ]
            drawn.append(values[0] - values[1])
        return self.worth(one) - self.worth(other), float(torch.tensor(drawn).std())


def choose(
    pool: Pool,
    *,
    pools: Sequence[Sequence[int]],
    affordable: Affordable,
    members: int | None = None,
) -> Choice | None:
    """The best of all that forward selection and swaps find in each pool; None where nothing is
    affordable.

    Of choices that the samples cannot tell from the best, it is the one of most members: what one
    member has by luck, an average of several has less of. `members` asks for exactly so many.
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


def _forward(
    pool: Pool, allowed: Sequence[int], affordable: Affordable, most: int
) -> Iterator[Choice]:
    """The best single member, the best two, … each improved by one member for another as long as
    that is better.
    """
    chosen: list[int] = []

    def best(rest: Sequence[int]) -> tuple[float, int] | None:
        """The member that is worth most beside the rest, the first of several."""
        options = [c for c in allowed if c not in chosen and affordable([*rest, c])]
        values = pool.worth_with(rest, options)
        return (max(values), options[values.index(max(values))]) if options else None

    while len(chosen) < most and (addition := best(chosen)) is not None:
        value, member = addition
        chosen.append(member)
        for _ in range(SWAPS if len(chosen) > 1 else 0):
            before = value
            for place in range(len(chosen)):
                other = best([*chosen[:place], *chosen[place + 1 :]])
                if other is not None and other[0] > value:
                    value, chosen[place] = other
            if value == before:
                break
        yield Choice(tuple(sorted(chosen)), value)


def estimate(
    pool: Pool,
    *,
    pools: Sequence[Sequence[int]],
    affordable: Affordable,
    members: int | None = None,
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
