"""What every head does to every sample, to first order: one backward pass for all heads at once.

With a factor m_h on each head's output (1 while it is there, 0 once it is gone) a sample's answer changes by
about

    −∂answer/∂m_h        answer: its margin, or how familiar it looks

Each sample has factors of its own, so the gradient of the sum over a batch holds every sample's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.objective import Outcomes, margins
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.errors import SurgeryError


@dataclass(frozen=True)
class Effects:
    """Answers of the model, and what one head less does to each."""

    present: Outcomes
    change: Outcomes
    """[candidate, sample]"""


def check_reached(problem: Problem) -> None:
    """Refuse heads whose effect differs between samples only behind another tower: they have one factor for all
    samples."""
    reached = {block.attention.tower for block in problem.anatomy.blocks}
    beyond = sorted({head.tower for head in problem.candidates} - reached)
    if beyond:
        raise SurgeryError(
            f"--search attribution: samples do not run through tower {beyond[0]}, so one backward pass does not tell"
            " what its heads do to each",
            hint=f"Give --tower {' or '.join(sorted(reached))}, or another --search.",
        )


def first_order(problem: Problem) -> Effects:
    """Effects of every candidate on the whole model. Processes share the batches."""
    objective = problem.objective
    problem.module.requires_grad_(False)
    margin, familiar, margin_change, familiar_change = _gradients(problem, problem.id_inputs, foreign=False)
    foreign, foreign_change = torch.zeros(0), torch.zeros(len(problem.candidates), 0)
    if objective.needs_ood:
        foreign, foreign_change = _gradients(problem, problem.ood_inputs, foreign=True)
    return Effects(
        Outcomes(margin, familiar, foreign),
        Outcomes(margin_change, familiar_change, foreign_change).map(lambda part: -part),
    )


def _gradients(problem: Problem, inputs: Held, *, foreign: bool) -> list[Tensor]:
    """Answers of all samples, then their gradients by each candidate's factor."""
    world, mine = problem.world, []
    for number, (index, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            labels = None if foreign else problem.labels[index]
            mine.append((number, _of_batch(problem, batch, len(index), labels)))
    everyone = sorted((pair for part in world.gather(mine) for pair in part), key=lambda one: one[0])
    return [torch.cat(parts, dim=-1) for parts in zip(*(parts for _, parts in everyone), strict=True)]


def _of_batch(problem: Problem, batch: object, rows: int, labels: Tensor | None) -> list[Tensor]:
    """Answers and gradients of one batch; of OOD samples, which have no labels, how familiar they look alone."""
    objective, device = problem.objective, problem.id_inputs.device
    factors = {
        (site.tower, site.layer): torch.ones(rows, len(site.heads), device=device, requires_grad=True)
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
            _by_candidate(problem, factors, answer) if needed else torch.zeros(len(problem.candidates), rows)
            for answer, needed in zip(answers, wanted, strict=True)
        ]
    return [*(answer.detach() for answer in answers), *changes]


def _by_candidate(
    problem: Problem, factors: dict[tuple[str, int], Tensor], answer: Float[Tensor, " sample"]
) -> Float[Tensor, "candidate sample"]:
    gradients = torch.autograd.grad(answer.sum(), list(factors.values()), retain_graph=True)
    by_place = dict(zip(factors, gradients, strict=True))
    heads = {(site.tower, site.layer): site.heads for site in problem.sites}
    columns = [
        by_place[head.tower, head.layer][:, heads[head.tower, head.layer].index(head.number)]
        for head in problem.candidates
    ]
    return torch.stack(columns).float().cpu()
