"""OOD scores that are fitted on features; higher = more unfamiliar.

    mds        min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c)                    Lee et al., NeurIPS 2018
    rmds       min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c) − (x − μ)ᵀ Σ₀⁻¹ (x − μ)
                                                                 Ren et al., arXiv 2106.09022
    maha++     mds of x/|x|                                      Mueller, Hein, ICML 2025
    residual   |Pᵀ (x − o)|                                      Wang et al., CVPR 2022
    vim        α |Pᵀ (x − o)| − logsumexp(z)                     the same
    knn        the distance of x/|x| to its kth nearest neighbour among features that are kept
                                                                 Sun et al., ICML 2022
    mcm        1 − max softmax(cos(x, classes)), at temperature 1; for CLIP
                                                                 Ming et al., NeurIPS 2022

P are the eigenvectors of 1/n Σ (x − o)(x − o)ᵀ behind the first D, o = −W⁺ b, and
α = mean max z / mean |Pᵀ (x − o)|.
Σ is the covariance about the class means, Σ₀ that about the mean μ. Stored are whitened class
means: W with Σ⁻¹ = W Wᵀ makes every distance a plain one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hydrasurgeon.statistics.probabilities import Scores
from hydrasurgeon.statistics.scores.evidence import Evidence, Fit, Moments, directions, whitening

K = 50
"""The authors' k for CIFAR, OpenOOD's, and that of older states."""


def fit_mds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("mds")
    return _gaussian(evidence.moments, evidence.features, evidence.labels)


def score_mds(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    return _nearest(state, features.double())


def fit_rmds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("rmds")
    state, notes = _gaussian(evidence.moments, evidence.features, evidence.labels)
    factor, shrunk = whitening(evidence.moments.total, evidence.features - evidence.moments.mean)
    return {**state, "background": factor}, [*notes, *_shrunk("about the mean", shrunk)]


def score_rmds(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    apart = features.double() - state["centre"].double()
    return _nearest(state, features.double()) - (apart @ state["background"].double()).square().sum(
        dim=-1
    )


def fit_directions(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("maha++")
    return _gaussian(evidence.directions, directions(evidence.features), evidence.labels)


def score_directions(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    return _nearest(state, directions(features))


def _gaussian(moments: Moments, features: Tensor, labels: Tensor) -> tuple[Fit, list[str]]:
    factor, shrunk = whitening(moments.within, features - moments.means[labels])
    means = (moments.means - moments.mean) @ factor
    return {"centre": moments.mean, "factor": factor, "means": means}, _shrunk(
        "about the class means", shrunk
    )


def _shrunk(what: str, share: float | None) -> list[str]:
    note = (
        f"the covariance {what} is singular: shrunk by Ledoit-Wolf, {share or 0:.2g} of it is "
        "the identity"
    )
    return [] if share is None else [note]


def _nearest(state: Fit, features: Tensor) -> Scores:
    """min_c |(x − μ) W − m_c|², by |a|² + |b|² − 2ab."""
    x = (features - state["centre"].double()) @ state["factor"].double()
    means = state["means"].double()
    crossed = means.square().sum(dim=-1) - 2 * x @ means.T
    return (x.square().sum(dim=-1) + crossed.amin(dim=-1)).clamp_min(0.0)


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


def fit_knn(evidence: Evidence) -> tuple[Fit, list[str]]:
    count, whole = len(evidence.features), evidence.moments.count
    capped = (
        [f"knn keeps {count:,} of {whole:,} features, drawn at random"] if whole > count else []
    )
    return {"bank": directions(evidence.features)}, capped


def score_knn(state: Fit, features: Tensor, logits: Tensor, neighbours: int = K) -> Scores:
    similarity = directions(features) @ state["bank"].double().T
    kth = similarity.topk(neighbours, dim=-1).values[:, -1]
    return torch.sqrt((2 - 2 * kth).clamp_min(0.0))


def fit_mcm(evidence: Evidence) -> tuple[Fit, list[str]]:
    return {"classes": normalize(evidence.weight, dim=-1)}, []


def score_mcm(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    cosines = directions(features) @ state["classes"].double().T
    return 1 - cosines.softmax(dim=-1).amax(dim=-1)
