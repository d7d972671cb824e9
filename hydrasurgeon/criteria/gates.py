"""Stochastic gates (Voita et al., 2019; hard concrete gates of Louizos et al., 2018): the gating baseline of CAHP.

The model is frozen. Each head's output is multiplied by a gate that is drawn anew for every batch:

    g = min(1, max(0, s (ζ − γ) + γ)),    s = sigmoid((log u − log(1 − u) + log α) / β),    u uniform in (0, 1)

Adam minimises L + λ · (expected fraction of open gates) over log α, in a few passes over the data. The score is log α: heads that the loss needs
stay open.
"""

from __future__ import annotations

import math

import torch

from hydrasurgeon.anatomy.hooks import masked
from hydrasurgeon.criteria.base import HeadScores, Subject
from hydrasurgeon.criteria.gradient import check_reached

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
"""Temperature and stretch of the gates, as in Louizos et al."""
START = 2.0
"""log α of every head at the beginning: gates are open in 88 % of the draws."""
RATE = 0.1
PASSES = 5
PENALTY = 0.5
"""λ, in nats for the fraction of open gates."""


def score(subject: Subject) -> HeadScores:
    """Train a gate for each head, and return log α."""
    check_reached(subject)
    sites = [site for site in subject.sites if site.heads]
    device = sites[0].out.weight.device
    places = [(site.tower, site.layer) for site in sites]
    sizes = [len(site.heads) for site in sites]
    log_alpha = torch.full((sum(sizes),), START, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], lr=RATE)
    random = torch.Generator().manual_seed(subject.run.seed)
    subject.module.requires_grad_(False)
    for number in range(PASSES):
        for inputs, labels in subject.batches(f"gates, pass {number + 1} of {PASSES}"):
            uniform = torch.rand(sum(sizes), generator=random).clamp(1e-6, 1 - 1e-6).to(device)
            noise = uniform.log() - (1 - uniform).log()
            gates = (torch.sigmoid((noise + log_alpha) / BETA) * (ZETA - GAMMA) + GAMMA).clamp(0, 1)
            is_open = torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA)).mean()
            with masked(sites, dict(zip(places, gates.split(sizes), strict=True))):
                loss = subject.losses(subject.module(inputs), labels).mean() + PENALTY * is_open
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    scores: HeadScores = {(site.tower, site.layer): [] for site in subject.sites}
    parts = log_alpha.detach().double().cpu().split(sizes)
    return scores | {place: part.tolist() for place, part in zip(places, parts, strict=True)}
