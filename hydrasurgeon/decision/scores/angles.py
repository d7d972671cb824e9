"""Angles between a feature and a class: nci and mcm.

nci  −w_c·(x − μ)/|x − μ|, c the predicted class, μ the mean feature      Liu, Qin, CVPR 2025 (its norm term left out)
mcm  1 − max softmax(cos(x, classes)), at temperature 1                   Ming et al., NeurIPS 2022; for CLIP
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hydrasurgeon.decision.probabilities import Scores
from hydrasurgeon.decision.scores.evidence import Evidence, Fit, directions


def fit_nci(evidence: Evidence) -> tuple[Fit, list[str]]:
    return {"mean": evidence.moments.mean, "weight": evidence.weight}, []


def score_nci(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    apart = features.double() - state["mean"].double()
    nearest = state["weight"].double()[logits.argmax(dim=-1)]
    return -(nearest * apart).sum(dim=-1) / apart.norm(dim=-1).clamp_min(torch.finfo(torch.float64).tiny)


def fit_mcm(evidence: Evidence) -> tuple[Fit, list[str]]:
    return {"classes": normalize(evidence.weight, dim=-1)}, []


def score_mcm(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    cosines = directions(features) @ state["classes"].double().T
    return 1 - cosines.softmax(dim=-1).amax(dim=-1)
