"""build's choice. Members are proposed by fast sums over their answers, and decided by the table.

With separate or equal MLPs a hydra answers exactly as its members do, so p = 1/M Σ_m p_m needs no
model: `propose` finds the best member, the best two, … by forward selection and swaps. `decide`
then compares what these are worth in the table, with each other and with the plain rivals: the
model itself, the mean of the models, their ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy import ndarray

from hydrasurgeon.building.members import Member
from hydrasurgeon.building.table import Choice, Entry, Table
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.probabilities import of_labels, softmax
from hydrasurgeon.statistics.temperature import temperature_of

TINY = 1e-30
"""A probability that underflows counts as this in float32."""
MOST_MEMBERS = 5
"""Members of a hydra whose number is left open."""
SWAPS = 3
"""Rounds of swaps, at most; most choices settle after one."""
MARGIN = 1e-3
"""So little is no lead, whatever its standard error: a tenth of a point."""
ROUNDING = 1e-4
"""By so little a choice may be worth less than a plain rival: less than tables show."""
Affordable = Callable[[Sequence[Member]], bool]


class Pool:
    """All members' probabilities, each at its own temperature; sums of them, and their worth. OOD
    data are told by the probabilities, whatever score a decision state would use.
    """

    def __init__(self, table: Table, members: Sequence[Member], half: int | None = None) -> None:
        """Of all samples, or of one half."""
        self.objective, problem = table.objective, table.problem
        self.numbers = {member.file: number for number, member in enumerate(members)}
        each: list[list[ndarray]] = []
        for member in members:
            answers = table.read(member, "torch")
            sets = [answers.val, *answers.ood]
            if half is not None:
                sets = [s.at(halves(len(s.logits), table.seed)[half]) for s in sets]
            if self.objective.name == "rmse":
                self.labels = sets[0].truth
                each.append([sets[0].logits[:, 0]])
                continue
            rows, self.labels = problem.choices(sets[0].logits, sets[0].truth)
            at = temperature_of(rows, self.labels)
            foreign = [problem.choices(s.logits)[0] for s in sets[1:]]
            each.append([softmax(logits[:, 0] / at) for logits in (rows, *foreign)])
        self.terms = [np.stack(terms) for terms in zip(*each, strict=True)]
        """Probabilities [member, row, class] of the validation set and of each OOD set."""

    def worth_with(self, members: Sequence[Member], options: Sequence[Member]) -> list[float]:
        """Worth of these members and one more, for each option."""
        numbers = [self.numbers[member.file] for member in members]
        base = [term[numbers].sum(axis=0) for term in self.terms]

        def one(option: Member) -> float:
            number = self.numbers[option.file]
            sums = [total + term[number] for total, term in zip(base, self.terms, strict=True)]
            return self._worth(sums, len(members) + 1)

        return [one(option) for option in options]

    def _worth(self, sums: Sequence[ndarray], count: int) -> float:
        probs = sums[0]
        if self.objective.name == "rmse":
            errors = probs[:, 0].astype(np.float64) / count - self.labels
            return -float(np.sqrt(np.square(errors).mean()))
        right = (probs.argmax(axis=-1) == self.labels).astype(np.float64).mean()
        of_truth = of_labels(probs, self.labels) / count
        figures = {
            "accuracy": right,
            "nll": -np.log(np.maximum(of_truth, TINY)).mean(dtype=np.float64),
        }
        if self.objective.sees_ood and len(sums) > 1:
            inside, *outside = (-values.max(axis=-1) for values in sums)
            areas = [auroc(inside, values) or 0.0 for values in outside]
            figures["auroc"] = np.array(sum(areas) / len(areas), dtype=np.float64)
        return float(self.objective.value(figures))


def propose(
    pool: Pool,
    pools: Sequence[Sequence[Member]],
    affordable: Affordable,
    members: int | None = None,
) -> dict[int, tuple[Member, ...]]:
    """The best affordable members of each number that forward selection and swaps find in any of
    the pools; `members` asks for exactly so many.
    """
    best: dict[int, tuple[float, tuple[Member, ...]]] = {}
    for allowed in pools:
        for value, chosen in _forward(pool, allowed, affordable, members or MOST_MEMBERS):
            if len(chosen) not in best or value > best[len(chosen)][0]:
                best[len(chosen)] = (value, chosen)
    return {
        count: chosen for count, (_, chosen) in best.items() if members is None or count == members
    }


def _forward(
    pool: Pool, allowed: Sequence[Member], affordable: Affordable, most: int
) -> Iterator[tuple[float, tuple[Member, ...]]]:
    """The best member, the best two, … each improved by one member for another as long as that is
    better.
    """
    chosen: list[Member] = []

    def best(rest: Sequence[Member]) -> tuple[float, Member] | None:
        """The member that is worth most with the rest, the first of several."""
        options = [each for each in allowed if each not in chosen and affordable([*rest, each])]
        if not options:
            return None
        values = pool.worth_with(rest, options)
        place = values.index(max(values))
        return values[place], options[place]

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
        yield value, tuple(sorted(chosen, key=lambda each: pool.numbers[each.file]))


def proposals(
    whole: dict[int, tuple[Member, ...]],
    first: dict[int, tuple[Member, ...]],
    rest: dict[int, tuple[Member, ...]],
) -> list[Choice]:
    """A choice of each number of members that all samples, and each half of them, propose."""
    counts = sorted(whole.keys() & first.keys() & rest.keys())
    return [Choice(whole[count], (first[count], rest[count])) for count in counts]


def decide(entries: Sequence[Entry], unit: str, below: Entry | None = None) -> Entry:
    """The simplest of those that the samples cannot tell from the best: fewest members, then least
    cost.

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
    tied = [entry for entry in everyone if entry.value >= least and _is_tied(entry, best)]

    def effort(entry: Entry) -> tuple[float, ...]:
        return (
            entry.choice.count,
            round(entry.cost[unit], 6),
            -round(entry.value, 9),
            not entry.is_plain,
        )

    return min(tied, key=effort)


def _is_tied(entry: Entry, best: Entry) -> bool:
    """Whether the best is ahead by no more than a standard error, or than `MARGIN`."""
    if entry.value >= best.value - MARGIN:
        return True
    lead, error = best.lead(entry)
    return lead <= error
