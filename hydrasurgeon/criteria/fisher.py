"""Fisher: Σ over samples of the squared gradient of the loss with respect to a head's mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.anatomy.words import samples_of
from hydrasurgeon.criteria.base import HeadScores, Subject


def score(subject: Subject) -> HeadScores:
    model, sites = subject.load()
    model.requires_grad_(False)
    # Inputs run through the first tower. Another one makes the classifier, the same for all
    # samples.
    first_tower = [s for s in sites if s.tower == next(iter(subject.checkpoint.manifest.towers))]
    sums = {(s.tower, s.layer): torch.zeros(len(s.heads), dtype=torch.float64) for s in sites}
    for inputs, labels in subject.batches("mask gradients"):
        # One mask per sample: its gradient is that sample's own, from one backward pass for the
        # batch.
        masks = _ones(first_tower, labels.device, len(labels))
        shared = _ones([s for s in sites if s not in first_tower], labels.device)
        rows = samples_of(inputs, len(labels))
        with masked(sites, {place: mask[rows] for place, mask in masks.items()} | shared):
            losses = subject.losses(model(inputs), labels)
        if shared:
            for loss in losses:
                gradients = torch.autograd.grad(loss, list(shared.values()), retain_graph=True)
                for place, gradient in zip(shared, gradients, strict=True):
                    sums[place] += gradient.double().cpu().square()
        if masks:
            losses.sum().backward()
        for place, mask in masks.items():
            assert mask.grad is not None
            sums[place] += mask.grad.double().cpu().square().sum(dim=0)
    return {place: squares.tolist() for place, squares in sums.items()}


def _ones(
    sites: Sequence[Attention], device: torch.device, *rows: int
) -> dict[tuple[str, int], Tensor]:
    return {
        (s.tower, s.layer): torch.ones(*rows, len(s.heads), device=device, requires_grad=True)
        for s in sites
        if s.heads
    }
