"""An order from one backward pass: the greedy loop over answers that are predicted, not measured.

    S(circuit without R) ≈ S(answers of the whole model + Σ_{h ∈ R} first-order effect of h)

Effects are added sample by sample and scored as points are, so that a head whose loss only hurts
samples that are lost anyway goes early. Nothing is promised: a head is a large step, and what two
heads do for each other is not seen. Of the order that comes out every prefix is measured, so that
its trace is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.circuits.objective import (
    Objective,
    Outcomes,
    Problem,
    margins,
    measure,
    over_batches,
)
from hydrasurgeon.criteria.circuits.search import Search
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Head


def first_order(problem: Problem) -> tuple[Outcomes, Outcomes]:
    """Return the full model's answers, and their change without each head ([candidate, sample])."""
    problem.module.requires_grad_(False)
    parts = over_batches(problem, lambda batch, labels: _of_batch(problem, batch, labels))
    margin, familiar, margin_change, familiar_change = parts[:4]
    ood_score, ood_change = parts[4:] or (torch.zeros(0), torch.zeros(len(margin_change), 0))
    changes = Outcomes(-margin_change, -familiar_change, -ood_change)
    return Outcomes(margin, familiar, ood_score), changes


def _of_batch(problem: Problem, batch: Any, labels: Tensor | None) -> list[Tensor]:
    """Return answers and gradients of one batch.

    OOD samples have no labels; their only answer is how familiar they look.
    """
    rows = len(next(iter(batch.values())) if isinstance(batch, Mapping) else batch)
    objective, device = problem.objective, problem.id_inputs.device
    factors = {
        (site.tower, site.layer): torch.ones(
            rows, len(site.heads), device=device, requires_grad=True
        )
        for site in problem.sites
        if site.heads
    }
    heads = [Head(site.tower, site.layer, at) for site in problem.sites for at in site.heads]
    columns = {head: column for column, head in enumerate(heads)}
    chosen = [columns[head] for head in problem.candidates]

    def by_candidate(answer: Float[Tensor, " sample"]) -> Float[Tensor, "candidate sample"]:
        gradients = torch.autograd.grad(answer.sum(), list(factors.values()), retain_graph=True)
        return torch.cat(gradients, dim=1)[:, chosen].T.float().cpu()

    with torch.enable_grad(), masked(problem.sites, factors):
        logits = problem.module(batch).double().cpu()
        answers = [objective.familiarity(logits)]
        needs_change = [objective.needs_ood]
        if labels is not None:
            answers = [margins(logits, labels), *answers]
            needs_change = [objective.per_answer > 0, *needs_change]
        changes = [
            by_candidate(answer) if has_change else torch.zeros(len(problem.candidates), rows)
            for answer, has_change in zip(answers, needs_change, strict=True)
        ]
    return [*(answer.detach() for answer in answers), *changes]


ROWS = 1 << 22
"""Predicted answers that are held at a time, of all circuits together: 100 MB with what sorting
them takes.
"""


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
                f"--search attribution: no data runs through tower {beyond[0]}, so its heads cannot "
                "be scored",
                hint=f"Give --tower {' or '.join(sorted(reached))}, or another --search.",
            )
        super().__init__(problem)
        order = predicted_order(problem.objective, *first_order(problem))
        self.ranking = [problem.candidates[row] for row in order]

    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        head = next(head for head in self.ranking if head not in removed)
        return head, self.problem.objective.value(measure(self.problem, (*removed, head)))


def predicted_order(objective: Objective, present: Outcomes, change: Outcomes) -> list[int]:
    """Return all candidates (rows of the changes) in the order of removal by predicted points.

    Ties go to the first.
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
    """Predict to first order the points of the present circuit after each of these changes."""
    size = max(1, ROWS // (2 * objective.id_rows + objective.ood_rows))
    points: list[int] = []
    for at in range(0, len(rows), size):
        some = list(rows[at : at + size])
        seen = present.map(lambda now, by, some=some: now + by[some], change)
        points += [low for low, _ in objective.points(seen)]
    return points
