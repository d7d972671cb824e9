"""Swaps behind a greedy order: a head comes back, another one goes in its place, and the objective is higher.

The greedy loop never takes a step back, so its set for one amount is rarely the best of that size. First-order effects
on the
present circuit name a few heads to bring back and, for each, a few to take instead. Those run against the head that
came back, on the
engine and by the bounds of the exact search: a swap is made where it is better in Algorithm 1's own arithmetic by more
than the
samples' chance, so that the objective only rises. It ends where none of the named swaps is, or after half of the
evaluations that the
greedy loop takes.

Chance is the paired standard error of the gain. Each sample contributes its answer and its pairs, before and after the
swap; with d the
differences, scaled so that their mean over a set is the gain that the set brings, the variance is var(d_ID)/n +
var(d_OOD)/m (DeLong et
al. 1988, for the AUROC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hydrasurgeon.criteria.circuits.attribution import predicted
from hydrasurgeon.criteria.circuits.effects import Effects, check_reached, first_order
from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.naive import outcomes_of
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes, contributions
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.criteria.circuits.race import Race, Runner
from hydrasurgeon.heads import Head

RETURNING = 8
"""How many heads may come back, of those that would help most."""
NAMED = 8
"""How many may go in the place of each."""
SURE = 1.96
"""How many standard errors a swap must gain: its two-sided interval of 95 % leaves 0 out."""


@dataclass
class Refined:
    """The heads that go, and how it came to them."""

    removed: list[Head]
    start: float
    """The objective without the heads that greedy removes,"""
    value: float
    """and without these."""
    present: Outcomes
    """What the model predicts without them."""
    swaps: list[tuple[Head, Head, float]] = field(default_factory=list)
    """Who came back, who went instead, and the objective then."""
    unsure: int = 0
    """Swaps that looked better and may have been so by chance: they were not made."""
    evaluations: int = 0
    backward_passes: int = 0

    def record(self) -> dict[str, Any]:
        """For the manifest's settings."""
        return {
            "amount": len(self.removed),
            "start": self.start,
            "value": self.value,
            "swaps": [[list(back), list(gone), value] for back, gone, value in self.swaps],
            "unsure": self.unsure,
            "evaluations": self.evaluations,
            "backward_passes": self.backward_passes,
        }


def allowance(candidates: int, amount: int) -> int:
    """Evaluations that may be spent: half of the greedy loop's."""
    return sum(candidates - i for i in range(amount)) // 2


def refine(
    problem: Problem, removed: Sequence[Head], *, progress: Callable[[str, int, int], None] | None = None
) -> Refined:
    """Swap heads of one set while that makes it better; as many go as before."""
    check_reached(problem, "--refine swap")
    search = Exact(problem)
    present = outcomes_of(problem, removed)
    value = _value(problem, present)
    result = Refined(list(removed), value, value, present)
    most = allowance(len(problem.candidates), len(removed))
    better = True
    while better and result.evaluations < most:
        effects = first_order(problem, result.removed)
        result.backward_passes += 1
        better = False
        for back, instead in named_swaps(problem, result.removed, effects):
            if result.evaluations + 1 + len(instead) > most:
                return result
            if progress is not None and problem.world.is_main:
                what = f"{len(result.swaps)} swaps, {problem.objective.kind} {result.value:.4f}"
                progress(what, result.evaluations, most)
            result.evaluations += 1 + len(instead)
            if better := _swapped(search, result, back, instead, effects):
                break
    return result


def named_swaps(problem: Problem, removed: Sequence[Head], effects: Effects) -> list[tuple[Head, list[Head]]]:
    """Who may come back, and who may go instead, the most promising first; ties go to the first head."""
    objective, row_of = problem.objective, {h: row for row, h in enumerate(problem.candidates)}
    gone = [head for head in problem.candidates if head in set(removed)]
    there = problem.left(removed)
    alone = predicted(objective, effects, [row_of[head] for head in gone])
    backs = sorted(zip(gone, alone, strict=True), key=lambda pair: -pair[1])[:RETURNING]
    swaps = []
    for back, _ in backs:
        row = row_of[back]
        present = effects.present.map(lambda now, change, row=row: now + change[row], effects.change)
        points = predicted(objective, Effects(present, effects.change), [row_of[h] for h in there])
        ranked = sorted(zip(there, points, strict=True), key=lambda pair: -pair[1])[:NAMED]
        swaps.append((max(points), back, [head for head, _ in ranked]))
    return [(back, instead) for _, back, instead in sorted(swaps, key=lambda swap: -swap[0])]


@torch.inference_mode()
def _swapped(search: Exact, result: Refined, back: Head, instead: Sequence[Head], effects: Effects) -> bool:
    """Whether one of these is better gone than the head that would come back; the best of them takes its place."""
    problem = search.problem
    others = [head for head in result.removed if head != back]
    search.engine.remove(others)
    runner = Runner(problem, search.engine)
    race = Race(runner, [back, *instead], effects.present, search.tolerance)
    survivors = race.run([back])
    head, _ = search.decide(others, survivors)
    swapped = outcomes_of(problem, (*others, head))
    value = _value(problem, swapped)
    if head == back or value <= result.value:  # in half precision both can be
        return False
    if value - result.value <= SURE * chance(problem.objective, result.present, swapped):
        result.unsure += 1
        return False
    result.removed, result.value, result.present = [*others, head], value, swapped
    result.swaps.append((back, head, value))
    return True


def _value(problem: Problem, outcomes: Outcomes) -> float:
    ((points, _),) = problem.objective.points(outcomes.one())
    return problem.objective.value(points)


def chance(objective: Objective, before: Outcomes, after: Outcomes) -> float:
    """The standard error of how much the objective rises from one circuit to another, on samples like these."""
    sides = [contributions(objective, each.one(), each.one())[0] for each in (before, after)]
    change = (sides[1] - sides[0]) / objective.total
    parts = [change[: objective.id_rows], change[objective.id_rows :]]
    # As means over a set: a point of n samples is n points of one.
    return math.sqrt(sum(len(part) * float(part.var()) for part in parts if len(part) > 1))
