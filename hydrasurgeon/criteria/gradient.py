"""Gradient of a head's mask (Michel et al., 2019, "Are Sixteen Heads Really Better than One?"): the baseline of CAHP.

s_h = mean over samples of |∂L/∂m_h|,    m_h the mask of head h, at 1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.errors import SurgeryError


def score(subject: Subject) -> HeadScores:
    """Average each head's absolute mask gradient over samples."""
    check_reached(subject)
    sites = [site for site in subject.sites if site.heads]
    totals = {(site.tower, site.layer): torch.zeros(len(site.heads)).double() for site in sites}
    subject.module.requires_grad_(False)
    for inputs, labels in subject.batches("gradients of masks"):
        masks = {
            (site.tower, site.layer): torch.ones(
                rows_of(inputs), len(site.heads), device=site.out.weight.device, requires_grad=True
            )
            for site in sites
        }
        with masked(sites, masks):
            loss = subject.losses(subject.module(inputs), labels).sum()
        # A row's mask touches no other row: the gradient of the sum holds each sample's own.
        for place, gradient in zip(
            masks, torch.autograd.grad(loss, [*masks.values()]), strict=True
        ):
            totals[place] += gradient.detach().double().abs().sum(dim=0).cpu()
    scores: HeadScores = {(site.tower, site.layer): [] for site in subject.sites}
    return scores | {place: (total / subject.samples).tolist() for place, total in totals.items()}


def rows_of(inputs: Any) -> int:
    """Return the number of rows of a batch."""
    first: Tensor = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def check_reached(subject: Subject) -> None:
    """Refuse a tower that no data runs through, such as the one that makes a zero-shot classifier."""
    anatomy = subject.checkpoint.family.anatomy(subject.module)
    reached = {block.attention.tower for block in anatomy.blocks}
    beyond = sorted(set(subject.towers) - reached)
    if beyond:
        raise SurgeryError(
            f"--method {subject.key}: no data runs through tower {beyond[0]}",
            hint=f"Use another --method, or --tower {' or '.join(sorted(reached))}.",
        )
