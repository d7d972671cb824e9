"""An order from one backward pass: the greedy loop over answers that are predicted, not measured.

    S(circuit without R) ≈ S(answers of the whole model + Σ_{h ∈ R} first-order effect of h)

Effects are added sample by sample and scored as points are, so that a head whose loss only hurts
samples that are lost anyway goes early. Nothing is promised: a head is a large step, and what two
heads do for each other is not seen. Of the order that comes out every prefix is measured, so that
its trace is true.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.circuits.engine import Engine
from hydrasurgeon.criteria.circuits.greedy import HeadRow, Search, these
from hydrasurgeon.criteria.circuits.objective import Held, Objective, Outcomes, Problem, margins
from hydrasurgeon.criteria.circuits.race import Runner
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.decided import Record
from hydrasurgeon.heads import Head


def first_order(problem: Problem) -> tuple[Outcomes, Outcomes]:
    """Answers of the whole model, and what one head less does to each ([candidate, sample]).
    Processes share the batches.
    """
    objective = problem.objective
    problem.module.requires_grad_(False)
    margin, familiar, margin_change, familiar_change = _gradients(
        problem, problem.id_inputs, foreign=False
    )
    foreign, foreign_change = torch.zeros(0), torch.zeros(len(problem.candidates), 0)
    if objective.needs_ood:
        foreign, foreign_change = _gradients(problem, problem.ood_inputs, foreign=True)
    changes = Outcomes(margin_change, familiar_change, foreign_change).map(lambda part: -part)
    return Outcomes(margin, familiar, foreign), changes


def _gradients(problem: Problem, inputs: Held, *, foreign: bool) -> list[Tensor]:
    """Answers of all samples, then their gradients by each candidate's factor."""
    world, mine = problem.world, []
    for number, (index, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            labels = None if foreign else problem.labels[index]
            mine.append((number, _of_batch(problem, batch, len(index), labels)))
    everyone = sorted(
        (pair for part in world.gather(mine) for pair in part), key=lambda one: one[0]
    )
    return [
        torch.cat(parts, dim=-1) for parts in zip(*(parts for _, parts in everyone), strict=True)
    ]


def _of_batch(problem: Problem, batch: object, rows: int, labels: Tensor | None) -> list[Tensor]:
    """Answers and gradients of one batch; of OOD samples, which have no labels, how familiar they
    look alone.
    """
    objective, device = problem.objective, problem.id_inputs.device
    factors = {
        (site.tower, site.layer): torch.ones(
            rows, len(site.heads), device=device, requires_grad=True
        )
        for site in problem.sites
        if site.heads
    }
    with torch.enable_grad(), masked(problem.sites, factors):
        logits = problem.module(batch).double().cpu()
        answers = [objective.familiarity(logits)]
        wanted = [objective.needs_ood]
        if labels is not None:
            answers = [margins(logits, labels), *answers]
            wanted = [objective.per_answer > 0, *wanted]
        changes = [
            _by_candidate(problem, factors, answer)
            if needed
            else torch.zeros(len(problem.candidates), rows)
            for answer, needed in zip(answers, wanted, strict=True)
        ]
    return [*(answer.detach() for answer in answers), *changes]


def _by_candidate(
    problem: Problem, factors: dict[tuple[str, int], Tensor], answer: Float[Tensor, " sample"]
) -> Float[Tensor, "candidate sample"]:
    gradients = torch.autograd.grad(answer.sum(), list(factors.values()), retain_graph=True)
    places = [(site, number) for site in problem.sites for number in site.heads]
    columns = torch.cat(gradients, dim=1)
    at = {
        Head(site.tower, site.layer, number): column for column, (site, number) in enumerate(places)
    }
    return columns[:, [at[head] for head in problem.candidates]].T.float().cpu()


ROWS = 1 << 22
"""Predicted answers that are held at a time, of all circuits together: 100 MB with what sorting
them takes.
"""


class Memory(Record):
    """What a file says that the search knew."""

    ranking: tuple[HeadRow, ...]


class Attribution(Search):
    """The order of predicted answers."""

    guarantee = (
        "none; assumed: what heads do to a sample is linear in each head's output and adds up "
        "over heads; "
        "the objective after each removal is measured"
    )

    def __init__(self, problem: Problem) -> None:
        reached = {block.attention.tower for block in problem.anatomy.blocks}
        beyond = sorted({head.tower for head in problem.candidates} - reached)
        if beyond:  # its heads have one factor for all samples
            raise SurgeryError(
                f"--search attribution: samples do not run through tower {beyond[0]}, so one "
                "backward pass does not"
                " tell what its heads do to each",
                hint=f"Give --tower {' or '.join(sorted(reached))}, or another --search.",
            )
        engine = Engine(problem.anatomy, together=problem.together)
        super().__init__(problem, engine, "evaluations", "backward_passes")
        self.ranking: list[Head] = []

    def start(self) -> float:
        self._rank()
        return self._measured(())

    def _rank(self) -> None:
        order = predicted_order(self.problem.objective, *first_order(self.problem))
        self.ranking = [self.problem.candidates[row] for row in order]
        self.tally["backward_passes"] += 1

    def resume(self, removed: Sequence[Head]) -> bool:
        self._rank()
        return self.ranking[: len(removed)] == list(removed)

    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        head = self.ranking[len(removed)]
        self.tally["evaluations"] += 1
        return head, self._measured((*removed, head))

    @torch.inference_mode()
    def _measured(self, removed: Sequence[Head]) -> float:
        self.engine.remove(removed)
        seen = Runner(self.problem, self.engine).present()
        ((points, _),) = self.problem.objective.points(seen.one())
        return self.problem.objective.value(points)

    def memory(self) -> dict[str, Any]:
        return {"ranking": self.ranking}

    def recall(self, memory: dict[str, Any]) -> None:
        self.ranking = these(Memory.model_validate(memory).ranking, self.problem.candidates)
        if len(self.ranking) != len(self.problem.candidates):
            raise ValueError(f"ranks {len(self.ranking)} heads of {len(self.problem.candidates)}")


def predicted_order(objective: Objective, present: Outcomes, change: Outcomes) -> list[int]:
    """All candidates (as rows of the changes) in the order in which they go by predicted points;
    ties to the first.
    """
    order, left = list[int](), list(range(len(change.margin)))
    while left:
        points = predicted(objective, present, change, left)
        row = left.pop(points.index(max(points)))
        order.append(row)
        present = present.map(lambda now, by, row=row: now + by[row], change)
    return order


def predicted(
    objective: Objective, present: Outcomes, change: Outcomes, rows: Sequence[int]
) -> list[int]:
    """Points of the present circuit after each of these changes, by what they do to first order."""
    size = max(1, ROWS // (2 * objective.id_rows + objective.ood_rows))
    points: list[int] = []
    for at in range(0, len(rows), size):
        some = list(rows[at : at + size])
        seen = present.one().map(lambda now, by, some=some: now + by[some], change)
        points += [low for low, _ in objective.points(seen)]
    return points
