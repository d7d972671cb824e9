"""The members that are worth most together: arithmetic on answers that each candidate gave once.

With separate or equal MLPs a hydra answers exactly as its members do, so p = 1/M Σ_m p_m needs no model. Members are
chosen by forward selection, then swaps while they help, within a budget. A choice from many that is made on few samples
finds noise too: the estimate is what two halves of the samples say of the choice that the other half made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.decision.scores.on_logits import entropy, generalized_entropy
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.metrics import auroc

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

    @property
    def sets(self) -> tuple[Rows, ...]:
        return (self.val, *self.foreign)

    def halves(self) -> tuple[Answers, Answers]:
        """The first half of every set, and the rest: samples come in no order."""
        first, rest = zip(*((rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in self.sets), strict=True)
        middle = len(self.val) // 2
        return (Answers(first[0], self.labels[:middle], first[1:]), Answers(rest[0], self.labels[middle:], rest[1:]))


@dataclass(frozen=True)
class Objective:
    """How a sum over members becomes a number, the higher the better."""

    name: str
    terms: Callable[[Answers], Terms]
    value: Callable[[Sequence[Tensor], int, Int[Tensor, " sample"]], float]
    """(sums over members, how many, labels) → what it is worth."""
    plain: Callable[[Sequence[Tensor], int, Int[Tensor, " sample"]], float] | None = None
    """The same without a guard, where `value` has one."""
    behind: bool = False
    """Whether the last of its terms is of the validation samples, as the first is."""


def guarded(objective: Objective, floor: float) -> Objective:
    """The same, less what a hydra is short of an accuracy; for objectives that look at OOD data, and for accuracy.

    What detects OOD data best is sought among those that still know in-distribution data. Where the objective's terms
    are no probabilities, those of the validation set stand behind them.
    """
    if objective.name == "nll":
        return objective
    seen = objective.terms in (_probabilities, _with_entropies)

    def terms(answers: Answers) -> Terms:
        behind = [] if seen else [answers.val.softmax(dim=-1)]
        return [*objective.terms(answers), *behind]

    def plain(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        return objective.value(sums if seen else sums[:-1], members, labels)

    def value(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        classes = sums[0][..., :-1] if objective.terms is _with_entropies else sums[0]
        short = floor - _accuracy([classes if seen else sums[-1]], members, labels)
        return plain(sums, members, labels) - PENALTY * max(0.0, short)

    return replace(objective, terms=terms, value=value, plain=plain, behind=not seen)


def needs_foreign(name: str) -> bool:
    return name not in ("acc", "nll")


def objective_of(name: str) -> Objective:
    """The objective of a name."""
    if name not in OBJECTIVES:
        raise UsageError(
            f"--objective {name}: no such objective{did_you_mean(name, OBJECTIVES)}",
            hint=f"Available: {', '.join(OBJECTIVES)}.",
        )
    if name == "nll":
        return Objective(name, _true_class, _log_likelihood)
    if name == "acc":
        return Objective(name, _probabilities, _accuracy)
    terms, score = SCORES["msp" if name in ("avg", "ood") else name]

    def area(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        """The AUROC against each OOD set, on average."""
        inside, *outside = (score(rows, members) for rows in sums)
        areas = [auroc(inside, each) for each in outside]
        return sum(each for each in areas if each is not None) / len(areas)

    def average(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        return (_accuracy(sums, members, labels) + area(sums, members, labels)) / 2

    return Objective(name, terms, average if name == "avg" else area)


def _probabilities(answers: Answers) -> Terms:
    return [rows.softmax(dim=-1) for rows in answers.sets]


def _with_entropies(answers: Answers) -> Terms:
    """Probabilities, and in a last column their entropy."""
    return [torch.cat([p, entropy(p)[..., None]], dim=-1) for p in _probabilities(answers)]


def _true_class(answers: Answers) -> Terms:
    return [answers.val.softmax(dim=-1).gather(-1, answers.labels[:, None])[:, 0]]


def _log_likelihood(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return float((sums[0] / members).clamp_min(TINY).log().double().mean())


def _accuracy(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return float((sums[0].argmax(dim=-1) == labels).double().mean())


def _mutual_information(rows: Tensor, members: int) -> Tensor:
    return (entropy(rows[..., :-1] / members) - rows[..., -1] / members).clamp_min(0)


SCORES: dict[str, tuple[Callable[[Answers], Terms], Callable[[Tensor, int], Tensor]]] = {
    "msp": (_probabilities, lambda rows, members: -rows.amax(dim=-1)),
    "entropy": (_probabilities, lambda rows, members: entropy(rows / members)),
    "mi": (_with_entropies, _mutual_information),
    "energy": (lambda answers: [-rows.logsumexp(dim=-1) for rows in answers.sets], lambda rows, members: rows),
    "max-logit": (lambda answers: list(answers.sets), lambda rows, members: -rows.amax(dim=-1)),
    "gen": (_probabilities, lambda rows, members: generalized_entropy(rows / members)),
}
"""OOD scores whose AUROC can be an objective, functions of logits: their terms, and the score of a sum over members."""
OBJECTIVES = ("avg", "acc", "nll", "ood", *SCORES)
"""What members can be chosen for: avg is the mean of accuracy and the AUROC of msp, ood the latter."""


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
        """How much more `one` is worth than `other`, and the standard error of that: both on the same draws of
        samples."""
        dice, drawn = torch.Generator().manual_seed(0), []
        sides = [(self.sums(members), len(members)) for members in (one, other)]
        for _ in range(RESAMPLES):
            rows = [torch.randint(len(each), (len(each),), generator=dice) for each in sides[0][0]]
            if self.objective.behind:
                rows[-1] = rows[0]
            labels = self.labels[rows[0]]
            values = [
                self.objective.value([total[at] for total, at in zip(sums, rows, strict=True)], count, labels)
                for sums, count in sides
            ]
            drawn.append(values[0] - values[1])
        return self.worth(one) - self.worth(other), float(torch.tensor(drawn).std())


def choose(
    pool: Pool, *, pools: Sequence[Sequence[int]], affordable: Affordable, members: int | None = None
) -> Choice | None:
    """The best of all that forward selection and swaps find in each pool; None where nothing is affordable.

    Of choices that the samples cannot tell from the best, it is the one of most members: what one member has by luck,
    an average of several has less of. `members` asks for exactly so many.
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
