"""Taylor: mean |W·G| over a head's q, k and v rows, averaged over the three (paper D.1.1).

With a number of heads to keep, layers are decided one after another: the heads a layer loses are
turned off before the gradients for the next layer are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.heads import Head


def score(subject: Subject) -> HeadScores:
    model, sites = subject.module, subject.sites
    if subject.keep is None:
        _gradients(subject, model, sites, "gradients")
        return {(site.tower, site.layer): _importance(site) for site in sites}
    scores: HeadScores = {}
    removed: list[Head] = []
    for site in sites:
        with ablated(sites, removed):
            _gradients(subject, model, [site], f"gradients of layer {site.layer}")
        layer_scores = scores[site.tower, site.layer] = _importance(site)
        if site.layer in subject.layers:
            lowest = sorted(range(len(layer_scores)), key=lambda i: layer_scores[i])[
                : max(0, len(layer_scores) - subject.keep)
            ]
            removed += [Head(site.tower, site.layer, site.heads[i]) for i in lowest]
    return scores


def _gradients(subject: Subject, model: nn.Module, sites: Sequence[Attention], name: str) -> None:
    """Compute gradients of the mean loss over all samples, for these sites' projections only."""
    model.requires_grad_(False)
    model.zero_grad(set_to_none=True)
    for site in sites:
        for project in site.project:
            project.weight.requires_grad_(True)
    for inputs, labels in subject.batches(name):
        loss = subject.losses(model(inputs), labels).sum() / subject.samples
        loss.backward()
    model.requires_grad_(False)


def _importance(site: Attention) -> list[float]:
    """Return s_h = ⅓ (q_h + k_h + v_h), each the mean of |W·G| over the head's rows."""
    blocks = 3 if len(site.project) == 1 else 1
    parts = []
    for project, rows in zip(site.project, site.rows, strict=True):
        weight, gradient = project.weight.detach(), project.weight.grad
        product = (
            (weight * gradient).abs().double() if gradient is not None else torch.zeros_like(weight)
        )
        parts.append(product.view(blocks, len(site.heads), rows * weight.shape[1]).mean(dim=-1))
    scores: list[float] = torch.cat(parts).mean(dim=0).tolist()
    return scores
