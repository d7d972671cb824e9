"""Swaps behind a greedy order: a head comes back, another one goes in its place, and the objective is higher.

The greedy loop never takes a step back, so its set for one amount is rarely the best of that size. First-order effects on the
present circuit name a few heads to bring back and, for each, a few to take instead. Those run against the head that came back, on the
engine and by the bounds of the exact search: a swap is made where it is better in Algorithm 1's own arithmetic, so that the
objective only rises. It ends where none of the named swaps is better, or after half of the evaluations that the greedy loop takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hydrasurgeon.criteria.circuits.attribution import predicted
from hydrasurgeon.criteria.circuits.effects import Effects, check_reached, first_order
from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.naive import measure
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.criteria.circuits.race import Race, Runner
from hydrasurgeon.heads import Head

__all__ = ["NAMED", "RETURNING", "Refined", "allowance", "named_swaps", "refine"]

RETURNING = 8
"""How many heads may come back, of those that would help most."""
NAMED = 8
"""How many may go in the place of each."""


@dataclass
class Refined:
    """The heads that go, and how it came to them."""

    removed: list[Head]
    start: float
    """The objective without the heads that greedy removes,"""
    value: float
    """and without these."""
    swaps: list[tuple[Head, Head, float]] = field(default_factory=list)
    """Who came back, who went instead, and the objective then."""
    evaluations: int = 0
    backward_passes: int = 0

    def record(self) -> dict[str, Any]:
        """For the manifest's settings."""
        return {
            "amount": len(self.removed),
            "start": self.start,
            "value": self.value,
            "swaps": [[list(back), list(gone), value] for back, gone, value in self.swaps],
            "evaluations": self.evaluations,
            "backward_passes": self.backward_passes,
        }


def allowance(candidates: int, amount: int) -> int:
    """Evaluations that may be spent: half of the greedy loop's."""
    return sum(candidates - i for i in range(amount)) // 2


def refine(
    problem: Problem,
    removed: Sequence[Head],
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Refined:
    """Swap heads of one set while that makes it better; as many go as before."""
    check_reached(problem, "--refine swap")
    search = Exact(problem)
    value = problem.objective.value(measure(problem, removed))
    result = Refined(list(removed), value, value)
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


def named_swaps(
    problem: Problem, removed: Sequence[Head], effects: Effects
) -> list[tuple[Head, list[Head]]]:
    """Who may come back, and who may go instead, the most promising first; ties go to the first head."""
    objective, row_of = problem.objective, {h: row for row, h in enumerate(problem.candidates)}
    gone = [head for head in problem.candidates if head in set(removed)]
    there = problem.left(removed)
    alone = predicted(objective, effects, [row_of[head] for head in gone])
    backs = sorted(zip(gone, alone, strict=True), key=lambda pair: -pair[1])[:RETURNING]
    swaps = []
    for back, _ in backs:
        row = row_of[back]
        present = effects.present.map(
            lambda now, change, row=row: now + change[row], effects.change
        )
        points = predicted(objective, Effects(present, effects.change), [row_of[h] for h in there])
        ranked = sorted(zip(there, points, strict=True), key=lambda pair: -pair[1])[:NAMED]
        swaps.append((max(points), back, [head for head, _ in ranked]))
    return [(back, instead) for _, back, instead in sorted(swaps, key=lambda swap: -swap[0])]


@torch.inference_mode()
def _swapped(
    search: Exact, result: Refined, back: Head, instead: Sequence[Head], effects: Effects
) -> bool:
    """Whether one of these is better gone than the head that would come back; the best of them takes its place."""
    problem = search.problem
    others = [head for head in result.removed if head != back]
    search.engine.remove(others)
    runner = Runner(problem, search.engine)
    race = Race(runner, [back, *instead], effects.present, search.tolerance)
    survivors = race.run([back])
    head, _ = search.decide(others, survivors)
    value = problem.objective.value(measure(problem, (*others, head)))
    if head == back or value <= result.value:  # in half precision both can be
        return False
    result.removed, result.value = [*others, head], value
    result.swaps.append((back, head, value))
    return True
