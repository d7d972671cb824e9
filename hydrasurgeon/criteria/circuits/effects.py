"""What every head does to every sample, to first order: one backward pass for all heads at once.

With a factor m_h on each head's output (1 while it is there, 0 once it is gone) a sample's answer changes by about

    −∂answer/∂m_h  when h goes,    +∂answer/∂m_h  when h comes back,    answer: its margin, or how familiar it looks

Each sample has factors of its own, so the gradient of the sum over a batch holds every sample's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.criteria.circuits.inputs import Held
from hydrasurgeon.criteria.circuits.objective import Outcomes, margins
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.heads import Head


@dataclass(frozen=True)
class Effects:
    """Answers of the present circuit, and what one head more or less does to each."""

    present: Outcomes
    change: Outcomes
    """[candidate, sample]: of taking away those that are there, of bringing back those that are gone."""


def check_reached(problem: Problem, option: str) -> None:
    """Refuse heads whose effect differs between samples only behind another tower: they have one factor for all
    samples."""
    reached = {block.attention.tower for block in problem.anatomy.blocks}
    beyond = sorted({head.tower for head in problem.candidates} - reached)
    if beyond:
        raise SurgeryError(
            f"{option}: samples do not run through tower {beyond[0]}, so one backward pass does not tell what its heads"
            " do to each",
            hint=f"Give --tower {' or '.join(sorted(reached))}, or leave out {option}.",
        )


def first_order(problem: Problem, removed: Sequence[Head] = ()) -> Effects:
    """Effects of every candidate on the circuit without these heads. Processes share the batches."""
    objective = problem.objective
    problem.module.requires_grad_(False)
    inside = _gradients(problem, problem.id_inputs, removed, foreign=False)
    outside = [torch.zeros(0), torch.zeros(len(problem.candidates), 0)]
    if objective.needs_ood:
        outside = _gradients(problem, problem.ood_inputs, removed, foreign=True)
    gone = set(removed)
    signs = torch.tensor([[1.0 if head in gone else -1.0] for head in problem.candidates])
    margin, familiar, margin_change, familiar_change = inside
    foreign, foreign_change = outside
    return Effects(
        Outcomes(margin, familiar, foreign),
        Outcomes(margin_change, familiar_change, foreign_change).map(lambda part: signs * part),
    )


def _gradients(problem: Problem, inputs: Held, removed: Sequence[Head], *, foreign: bool) -> list[Tensor]:
    """Answers of all samples, then their gradients by each candidate's factor."""
    world, mine = problem.world, []
    for number, (index, batch) in enumerate(inputs.batches(problem.batch_size)):
        if number % world.size == world.rank:
            labels = None if foreign else problem.labels[index]
            mine.append((number, _of_batch(problem, batch, len(index), labels, removed)))
    everyone = sorted((pair for part in world.gather(mine) for pair in part), key=lambda one: one[0])
    return [torch.cat(parts, dim=-1) for parts in zip(*(parts for _, parts in everyone), strict=True)]


def _of_batch(
    problem: Problem, batch: object, rows: int, labels: Tensor | None, removed: Sequence[Head]
) -> list[Tensor]:
    """Of OOD samples, which have no labels: how familiar they look alone."""
    objective = problem.objective
    masks = _factors(problem.sites, rows, problem.id_inputs.device, removed)
    with torch.enable_grad(), masked(problem.sites, masks):
        logits = problem.module(batch).double().cpu()
        answers = [objective.familiarity(logits)]
        wanted = [objective.needs_ood]
        if labels is not None:
            answers = [margins(logits, labels), *answers]
            wanted = [objective.per_answer > 0, *wanted]
        changes = [
            _by_candidate(problem, masks, answer) if needed else torch.zeros(len(problem.candidates), rows)
            for answer, needed in zip(answers, wanted, strict=True)
        ]
    return [*(answer.detach() for answer in answers), *changes]


def _factors(
    sites: Sequence[Attention], rows: int, device: torch.device, removed: Sequence[Head]
) -> dict[tuple[str, int], Tensor]:
    gone = set(removed)
    factors = {}
    for site in sites:
        present = [float(Head(site.tower, site.layer, h) not in gone) for h in site.heads]
        if present:
            factor = torch.tensor(present, device=device).repeat(rows, 1)
            factors[site.tower, site.layer] = factor.requires_grad_()
    return factors


def _by_candidate(
    problem: Problem, masks: dict[tuple[str, int], Tensor], answer: Float[Tensor, " sample"]
) -> Float[Tensor, "candidate sample"]:
    gradients = torch.autograd.grad(answer.sum(), list(masks.values()), retain_graph=True)
    by_place = dict(zip(masks, gradients, strict=True))
    heads = {(site.tower, site.layer): site.heads for site in problem.sites}
    columns = [
        by_place[head.tower, head.layer][:, heads[head.tower, head.layer].index(head.number)]
        for head in problem.candidates
    ]
    return torch.stack(columns).float().cpu()
