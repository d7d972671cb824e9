"""Algorithm 1 as written: mask each candidate in turn and run the model's own forward pass over all the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.objective import Outcomes, margins
from hydrasurgeon.criteria.circuits.packed import Natural, Record
from hydrasurgeon.criteria.circuits.problem import NextHead, Problem
from hydrasurgeon.heads import Head


class Memory(Record):
    """What a file says that the search knew."""

    evaluations: Natural


class Counts(Memory):
    """What was computed by a search that has ended."""

    layers: Natural
    parts: Natural


class Naive:
    guarantee = "Algorithm 1 itself: every candidate is evaluated on every sample"

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0

    def start(self) -> float:
        return self.problem.objective.value(measure(self.problem, ()))

    def next(self, removed: Sequence[Head]) -> NextHead:
        best, most = None, -1
        left = self.problem.left(removed)
        for done, head in enumerate(left, 1):
            points = measure(self.problem, (*removed, head))
            self.evaluations += 1
            if points > most:
                best, most = head, points
            self.problem.tick(done / len(left))
        assert best is not None
        return NextHead(best, self.problem.objective.value(most))

    def counts(self) -> dict[str, Any]:
        objective = self.problem.objective
        samples = objective.id_rows + (objective.ood_rows if objective.needs_ood else 0)
        layers = len(self.problem.anatomy.blocks)
        return {"evaluations": self.evaluations, "layers": self.evaluations * samples * layers, "parts": 0}

    def resume(self, removed: Sequence[Head], counts: Mapping[str, Any]) -> bool:
        self.evaluations = Counts.model_validate(counts).evaluations
        return True

    def memory(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations}

    def recall(self, memory: dict[str, Any]) -> None:
        self.evaluations = Memory.model_validate(memory).evaluations


def measure(problem: Problem, off: Sequence[Head]) -> int:
    """Points of the model with these heads masked."""
    ((low, _),) = problem.objective.points(outcomes_of(problem, off).one())
    return low


@torch.inference_mode()
def outcomes_of(problem: Problem, off: Sequence[Head]) -> Outcomes:
    """What the model predicts with these heads masked. Processes share the batches."""
    objective = problem.objective
    with ablated(problem.sites, off):
        logits = _logits(problem, problem.id_inputs)
        foreign = torch.zeros(0)
        if objective.needs_ood:
            foreign = objective.familiarity(_logits(problem, problem.ood_inputs))
    return Outcomes(margins(logits, problem.labels), objective.familiarity(logits), foreign)


def _logits(problem: Problem, inputs: Held) -> torch.Tensor:
    world = problem.world
    mine = []
    for number, (_, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            mine.append((number, problem.module(batch).double().cpu()))
    everyone = [pair for part in world.gather(mine) for pair in part]
    return torch.cat([logits for _, logits in sorted(everyone, key=lambda pair: pair[0])])
