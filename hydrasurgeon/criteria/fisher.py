"""Fisher: Σ over samples of the squared gradient of the loss with respect to a head's mask.

Beside it the products of the gradients of every two heads of a layer, which `prune --rearrange`
goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.criteria.base import Subject, Verdict
from hydrasurgeon.criteria.rearrange import INFORMATION


def score(subject: Subject) -> Verdict:
    model, sites = subject.load()
    model.requires_grad_(False)
    # Inputs run through the first tower. Another one makes the classifier, the same for all
    # samples.
    first_tower = [s for s in sites if s.tower == next(iter(subject.checkpoint.manifest.towers))]
    together = {
        (s.tower, s.layer): torch.zeros(len(s.heads), len(s.heads), dtype=torch.float64)
        for s in sites
    }
    for inputs, labels in subject.batches("mask gradients"):
        # One mask per sample: its gradient is that sample's own, from one backward pass for the
        # batch.
        masks = _ones(first_tower, labels.device, len(labels))
        shared = _ones([s for s in sites if s not in first_tower], labels.device)
        with masked(sites, masks | shared):
            losses = subject.losses(model(inputs), labels)
        if shared:
            for loss in losses:
                each = torch.autograd.grad(loss, list(shared.values()), retain_graph=True)
                for place, gradient in zip(shared, each, strict=True):
                    together[place] += torch.outer(*(gradient.double().cpu(),) * 2)
        if masks:
            losses.sum().backward()
        for place, mask in masks.items():
            assert mask.grad is not None
            gradients = mask.grad.double().cpu()
            together[place] += gradients.T @ gradients
    scores = {place: matrix.diagonal().tolist() for place, matrix in together.items()}
    return Verdict(scores, {INFORMATION: _by_original_number(subject, sites, together)})


def _by_original_number(
    subject: Subject, sites: Sequence[Attention], together: Mapping[tuple[str, int], Tensor]
) -> dict[str, list[list[list[float]]]]:
    """tower → [layer][head][head] of the original model; heads that are gone have 0."""
    information: dict[str, list[list[list[float]]]] = {tower: [] for tower in subject.towers}
    for site in sites:
        heads = subject.checkpoint.manifest.towers[site.tower].heads
        whole = torch.zeros(heads, heads, dtype=torch.float64)
        at = torch.tensor(site.heads, dtype=torch.long)
        matrix = together[site.tower, site.layer]
        # Products may sum up in another order on the other side.
        whole[at[:, None], at] = (matrix + matrix.T) / 2
        information[site.tower].append(whole.tolist())
    return information


def _ones(
    sites: Sequence[Attention], device: torch.device, *rows: int
) -> dict[tuple[str, int], Tensor]:
    return {
        (s.tower, s.layer): torch.ones(*rows, len(s.heads), device=device, requires_grad=True)
        for s in sites
        if s.heads
    }
