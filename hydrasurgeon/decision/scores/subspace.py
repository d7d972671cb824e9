"""What of a feature lies outside the space that features fill: residual and vim (Wang et al., CVPR 2022).

residual  |Pᵀ (x − o)|            P: the eigenvectors of 1/n Σ (x − o)(x − o)ᵀ behind the first D, o = −W⁺ b
vim       α |Pᵀ (x − o)| − logsumexp(z)      α = mean max z / mean |Pᵀ (x − o)|, of the samples it is fitted on
"""

from __future__ import annotations

import torch
from torch import Tensor

from hydrasurgeon.decision.probabilities import Scores
from hydrasurgeon.decision.scores.evidence import Evidence, Fit


def principal(width: int) -> int:
    """D, by the authors' rule: 1000 from 2048 dimensions on, 512 from 768 on, half of fewer."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


def fit_residual(evidence: Evidence) -> tuple[Fit, list[str]]:
    origin = -torch.linalg.pinv(evidence.weight) @ evidence.bias
    _, vectors = torch.linalg.eigh(evidence.moments.about(origin))
    width = len(origin)
    return {"origin": origin, "rest": vectors[:, : width - principal(width)].contiguous()}, []


def score_residual(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    apart = features.double() - state["origin"].double()
    return (apart @ state["rest"].double()).norm(dim=-1)


def fit_vim(evidence: Evidence) -> tuple[Fit, list[str]]:
    state, notes = fit_residual(evidence)
    outside = score_residual(state, evidence.features, evidence.logits).mean()
    tiny = torch.finfo(torch.float64).tiny
    return {**state, "alpha": evidence.logits.amax(dim=-1).mean() / outside.clamp_min(tiny)}, notes


def score_vim(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    outside = score_residual(state, features, logits)
    return state["alpha"].double() * outside - logits.double().logsumexp(dim=-1)
