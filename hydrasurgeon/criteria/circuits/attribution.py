"""An order from one backward pass: the greedy loop over answers that are predicted, not measured.

    S(circuit without R) ≈ S(answers of the whole model + Σ_{h ∈ R} first-order effect of h)

Effects are added sample by sample and scored as points are, so that a head whose loss only hurts samples that are lost
anyway goes
early. Nothing is promised: a head is a large step, and what two heads do for each other is not seen. Of the order that
comes
out every prefix is measured, so that its trace is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrasurgeon.criteria.circuits.effects import Effects, check_reached, first_order
from hydrasurgeon.criteria.circuits.engine import Engine, Work
from hydrasurgeon.criteria.circuits.objective import Objective
from hydrasurgeon.criteria.circuits.packed import HeadRow, Natural, Record, these
from hydrasurgeon.criteria.circuits.problem import NextHead, Problem
from hydrasurgeon.criteria.circuits.race import Runner
from hydrasurgeon.heads import Head

ROWS = 1 << 22
"""Predicted answers that are held at a time, of all circuits together: 100 MB with what sorting them takes."""


class Counts(Record):
    """What was computed before the search was interrupted."""

    evaluations: Natural
    backward_passes: Natural
    layers: Natural
    parts: Natural


class Memory(Record):
    """What a file says that the search knew."""

    counts: Counts
    ranking: tuple[HeadRow, ...]


class Attribution:
    guarantee = (
        "none; assumed: what heads do to a sample is linear in each head's output and adds up over heads; "
        "the objective after each removal is measured"
    )

    def __init__(self, problem: Problem) -> None:
        check_reached(problem)
        self.problem = problem
        self.engine = Engine(problem.anatomy, together=problem.together)
        self.ranking: list[Head] = []
        self.tally = {"evaluations": 0, "backward_passes": 0}

    def start(self) -> float:
        self._rank()
        return self._measured(())

    def _rank(self) -> None:
        order = predicted_order(self.problem.objective, first_order(self.problem), len(self.problem.candidates))
        self.ranking = [self.problem.candidates[row] for row in order]
        self.tally["backward_passes"] += 1

    def resume(self, removed: Sequence[Head], counts: Mapping[str, Any]) -> bool:
        recorded = Counts.model_validate(counts)
        self._rank()
        if self.ranking[: len(removed)] != list(removed):
            return False
        self.tally["evaluations"] += recorded.evaluations
        self.tally["backward_passes"] += recorded.backward_passes
        self.engine.work = Work(recorded.layers, recorded.parts)
        return True

    def next(self, removed: Sequence[Head]) -> NextHead:
        head = self.ranking[len(removed)]
        self.tally["evaluations"] += 1
        return NextHead(head, self._measured((*removed, head)))

    @torch.inference_mode()
    def _measured(self, removed: Sequence[Head]) -> float:
        self.engine.remove(removed)
        seen = Runner(self.problem, self.engine).present()
        ((points, _),) = self.problem.objective.points(seen.one())
        return self.problem.objective.value(points)

    def counts(self) -> dict[str, Any]:
        work = self.engine.work
        return {**self.tally, "layers": work.layers, "parts": work.parts}

    def memory(self) -> dict[str, Any]:
        return {"counts": self.counts(), "ranking": self.ranking}

    def recall(self, memory: dict[str, Any]) -> None:
        recorded = Memory.model_validate(memory)
        ranking = these(recorded.ranking, self.problem.candidates)
        if len(ranking) != len(self.problem.candidates):
            raise ValueError(f"ranks {len(ranking)} heads of {len(self.problem.candidates)}")
        self.ranking, counts = ranking, recorded.counts
        self.tally = {"evaluations": counts.evaluations, "backward_passes": counts.backward_passes}
        self.engine.work = Work(counts.layers, counts.parts)


def predicted_order(objective: Objective, effects: Effects, amount: int) -> list[int]:
    """The first so many candidates (as rows of the effects) to go, by predicted points; ties go to the first."""
    present, order = effects.present, list[int]()
    left = list(range(len(effects.change.margin)))
    while len(order) < amount:
        points = predicted(objective, Effects(present, effects.change), left)
        row = left.pop(points.index(max(points)))
        order.append(row)
        present = present.map(lambda now, change, row=row: now + change[row], effects.change)
    return order


def predicted(objective: Objective, effects: Effects, rows: Sequence[int]) -> list[int]:
    """Points of the present circuit after each of these changes, by what they do to first order."""
    size = max(1, ROWS // (2 * objective.id_rows + objective.ood_rows))
    points: list[int] = []
    for at in range(0, len(rows), size):
        some = list(rows[at : at + size])
        seen = effects.present.one().map(lambda now, change, some=some: now + change[some], effects.change)
        points += [low for low, _ in objective.points(seen)]
    return points
