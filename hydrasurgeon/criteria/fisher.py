"""Fisher: Σ over samples of the squared gradient of the loss with respect to a head's mask."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.masking import masked

__all__ = ["score"]


def score(subject: Subject) -> HeadScores:
    model, sites = subject.load()
    model.requires_grad_(False)
    totals = {(s.tower, s.layer): torch.zeros(len(s.heads), dtype=torch.float64) for s in sites}
    for inputs, labels in subject.batches("mask gradients"):
        # One mask per sample: its gradient is that sample's own, from one backward pass for the batch.
        masks = {
            (s.tower, s.layer): torch.ones(
                len(labels), len(s.heads), device=labels.device, requires_grad=True
            )
            for s in sites
            if s.heads
        }
        with masked(sites, masks):
            cross_entropy(model(inputs).float(), labels, reduction="sum").backward()
        for place, mask in masks.items():
            assert mask.grad is not None
            totals[place] += mask.grad.double().square().sum(dim=0).cpu()
    return {place: total.tolist() for place, total in totals.items()}
