"""build's choice. Members are proposed by fast sums over their answers, and decided by the table.

With separate or equal MLPs a hydra answers exactly as its members do, so p = 1/M Σ_m p_m needs no
model: `propose` finds the best member, the best two, … by forward selection and swaps. `decide`
then compares what these are worth in the table, with each other and with the plain rivals: the
model itself, the mean of the models, their ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.members import Member
from hydrasurgeon.building.table import Choice, Entry, Objective, state_score, values_of
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.temperature import temperature_of

TINY = 1e-30
"""A probability that underflows counts as this in float32."""
PROBABILITIES = "msp"
"""The OOD score that looks at the probabilities alone, of members and of their mean alike."""
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
    """All members' probabilities, each at its own temperature; sums of them, and their worth.

    For OOD data the score that the first member's decision state would use stands in for that of
    every choice.
    """

    def __init__(
        self, objective: Objective, members: Sequence[Member], answers: Iterable[Answers]
    ) -> None:
        self.objective = objective
        self.members = list(members)
        self.numbers = {member.file: number for number, member in enumerate(self.members)}
        self.terms: list[Tensor] = []
        """Probabilities [member, row, class] of the validation set. Then what is large for familiar
        samples of that and of each OOD set; where it is the probabilities, those of the OOD sets.
        """
        self.kind = PROBABILITIES
        for number, each in enumerate(answers):
            if number == 0:
                rows = each.val[:, None]
                self.labels = each.labels
                if objective.name != "rmse":
                    _, self.labels = each.problem.labelled(rows, each.labels)
                if objective.sees_ood and each.ood:
                    self.kind = state_score([each], objective.score)
                if self.kind == "mi":  # of which one member alone has none
                    self.kind = PROBABILITIES
            terms = [each.val[:, :1]]
            if objective.name != "rmse":
                terms = _terms(each, self.kind, sees_ood=objective.sees_ood)
            if not self.terms:
                count = len(self.members)
                self.terms = [torch.empty(count, *term.shape, dtype=term.dtype) for term in terms]
            for place, term in zip(self.terms, terms, strict=True):
                place[number] = term

    def worth(self, members: Sequence[Member]) -> float:
        """Worth of these members together."""
        return self._worth(self._sums(members), len(members))

    def worth_with(self, members: Sequence[Member], options: Sequence[Member]) -> list[float]:
        """Worth of these members and one more, for each option."""
        base = self._sums(members)

        def one(option: Member) -> float:
            number = self.numbers[option.file]
            sums = [total + term[number] for total, term in zip(base, self.terms, strict=True)]
            return self._worth(sums, len(members) + 1)

        return [one(option) for option in options]

    def _sums(self, members: Sequence[Member]) -> list[Tensor]:
        """Over nothing: zeros."""
        numbers = [self.numbers[member.file] for member in members]
        return [term[numbers].sum(dim=0) for term in self.terms]

    def _worth(self, sums: Sequence[Tensor], count: int) -> float:
        probs, *familiar = sums
        if self.objective.name == "rmse":
            errors = probs[:, 0].double() / count - self.labels
            return -float(errors.square().mean().sqrt())
        right = (probs.argmax(dim=-1) == self.labels).double().mean()
        of_truth = probs.gather(-1, self.labels[:, None])[:, 0] / count
        figures = {"accuracy": right, "nll": -of_truth.clamp_min(TINY).log().double().mean()}
        if self.kind == PROBABILITIES and familiar:
            familiar = [*sums]
        if familiar:
            inside, *outside = (-values.amax(dim=-1) for values in familiar)
            areas = [auroc(inside, values) or 0.0 for values in outside]
            figures["auroc"] = torch.tensor(sum(areas) / len(areas), dtype=torch.float64)
        return float(self.objective.value(figures))


def _terms(answers: Answers, kind: str, *, sees_ood: bool) -> list[Tensor]:
    """What is added up over members."""
    problem = answers.problem
    rows, labels = problem.labelled(answers.val[:, None], answers.labels)
    at = temperature_of(rows, labels)
    foreign = [problem.rows(logits[:, None]) for logits in answers.ood]
    probs = [(logits[:, 0] / at).softmax(dim=-1) for logits in (rows, *foreign)]
    if not sees_ood:
        return probs[:1]
    if kind == PROBABILITIES:
        return probs
    sets = range(len(answers.sets))
    familiar = [-values_of(kind, [answers], [answers], number)[:, None] for number in sets]
    return [probs[0], *familiar]


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
    least = max(
        (entry.value - ROUNDING for entry in everyone if entry.is_plain), default=-torch.inf
    )
    if below is not None:
        least = max(least, below.value)
    tied = [entry for entry in everyone if entry.value >= least and _is_tied(entry, best)]

    def effort(entry: Entry) -> tuple[float, ...]:
        return (
            len(entry.choice.members),
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
