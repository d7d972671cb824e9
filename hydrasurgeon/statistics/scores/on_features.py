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

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray

from hydrasurgeon.lookup import plugins
from hydrasurgeon.statistics.probabilities import Scores, logsumexp, softmax
from hydrasurgeon.statistics.scores.evidence import (
    Evidence,
    Fit,
    Moments,
    directions,
    normalized,
    whitening,
)

K = 50
"""The authors' k for CIFAR, OpenOOD's, and that of older states."""


SHRUNK = (
    "the covariance of the features is singular, so the OOD score uses Ledoit-Wolf's estimate of it"
)


def fit_mds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("mds")
    return _gaussian(evidence.moments, evidence.features, evidence.labels)


def score_mds(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    return _nearest(state, features.astype(np.float64))


def fit_rmds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("rmds")
    state, notes = _gaussian(evidence.moments, evidence.features, evidence.labels)
    factor, shrunk = whitening(evidence.moments.total, evidence.features - evidence.moments.mean)
    return {**state, "background": factor}, [*notes, *_shrunk(shrunk)]


def score_rmds(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    apart = features.astype(np.float64) - state["centre"].astype(np.float64)
    return _nearest(state, features.astype(np.float64)) - np.square(
        apart @ state["background"].astype(np.float64)
    ).sum(axis=-1)


def fit_directions(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("maha++")
    return _gaussian(evidence.directions, directions(evidence.features), evidence.labels)


def score_directions(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    return _nearest(state, directions(features))


def _gaussian(moments: Moments, features: ndarray, labels: ndarray) -> tuple[Fit, list[str]]:
    factor, shrunk = whitening(moments.within, features - moments.means[labels])
    means = (moments.means - moments.mean) @ factor
    return {"centre": moments.mean, "factor": factor, "means": means}, _shrunk(shrunk)


def _shrunk(share: float | None) -> list[str]:
    return [] if share is None else [SHRUNK]


def _nearest(state: Fit, features: ndarray) -> Scores:
    """Return min_c |(x − μ) W − m_c|², by |a|² + |b|² − 2ab."""
    x = (features - state["centre"].astype(np.float64)) @ state["factor"].astype(np.float64)
    means = state["means"].astype(np.float64)
    crossed = np.square(means).sum(axis=-1) - 2 * x @ means.T
    return np.maximum(np.square(x).sum(axis=-1) + crossed.min(axis=-1), 0.0)


def principal(width: int) -> int:
    """Return D by the authors' rule: 1000 from 2048 dimensions on, 512 from 768 on, half of fewer."""
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


def fit_residual(evidence: Evidence) -> tuple[Fit, list[str]]:
    origin = -np.linalg.pinv(evidence.weight) @ evidence.bias
    _, vectors = np.linalg.eigh(evidence.moments.about(origin))
    width = len(origin)
    return {"origin": origin, "rest": vectors[:, : width - principal(width)]}, []


def score_residual(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    apart = features.astype(np.float64) - state["origin"].astype(np.float64)
    return np.linalg.norm(apart @ state["rest"].astype(np.float64), axis=-1)


def fit_vim(evidence: Evidence) -> tuple[Fit, list[str]]:
    state, notes = fit_residual(evidence)
    outside = score_residual(state, evidence.features, evidence.logits).mean()
    tiny = np.finfo(np.float64).tiny
    return {
        **state,
        "alpha": np.asarray(evidence.logits.max(axis=-1).mean() / max(outside, tiny)),
    }, notes


def score_vim(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    outside = score_residual(state, features, logits)
    return state["alpha"].astype(np.float64) * outside - logsumexp(
        logits.astype(np.float64), axis=-1
    )


def fit_knn(evidence: Evidence) -> tuple[Fit, list[str]]:
    count, total = len(evidence.features), evidence.moments.count
    capped = (
        [f"knn keeps {count:,} of {total:,} features, drawn at random"] if total > count else []
    )
    return {"bank": directions(evidence.features)}, capped


def score_knn(state: Fit, features: ndarray, logits: ndarray, neighbours: int = K) -> Scores:
    similarity = directions(features) @ state["bank"].astype(np.float64).T
    kth = -np.partition(-similarity, neighbours - 1, axis=-1)[:, neighbours - 1]
    return np.sqrt(np.maximum(2 - 2 * kth, 0.0))


def fit_mcm(evidence: Evidence) -> tuple[Fit, list[str]]:
    return {"classes": normalized(evidence.weight)}, []


def score_mcm(state: Fit, features: ndarray, logits: ndarray) -> Scores:
    cosines = directions(features) @ state["classes"].astype(np.float64).T
    return 1 - softmax(cosines).max(axis=-1)


@dataclass(frozen=True)
class OnFeatures:
    """A score that is fitted on features, higher = more unfamiliar."""

    fit: Callable[[Evidence], tuple[Fit, list[str]]]
    """Fit that returns a member's stored tensors, and notes."""
    score: Callable[..., Scores]
    """Score of a member's fit, features and logits."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Shapes of a plugin score's stored tensors; ours stand in `files/decided.py`."""


ON_FEATURES = {
    "mds": OnFeatures(fit_mds, score_mds),
    "rmds": OnFeatures(fit_rmds, score_rmds),
    "maha++": OnFeatures(fit_directions, score_directions),
    "vim": OnFeatures(fit_vim, score_vim),
    "residual": OnFeatures(fit_residual, score_residual),
    "knn": OnFeatures(fit_knn, score_knn),
    "mcm": OnFeatures(fit_mcm, score_mcm),
}
"""Our scores of features."""


def on_features(kind: str) -> OnFeatures:
    """Return the score with this name."""
    score: OnFeatures = ON_FEATURES.get(kind) or plugins("scores")[kind]
    return score
