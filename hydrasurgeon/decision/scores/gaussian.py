"""Distances to class Gaussians with one covariance: mds, rmds and maha++.

    mds     min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c)                                   Lee et al., NeurIPS 2018
    rmds    min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c) − (x − μ)ᵀ Σ₀⁻¹ (x − μ)           Ren et al., arXiv 2106.09022
    maha++  mds of x/|x|                                                     Mueller, Hein, ICML 2025

Σ is the covariance about the class means, Σ₀ that about the mean μ. Stored are whitened class means: W with
Σ⁻¹ = W Wᵀ makes every distance a plain one.
"""

from __future__ import annotations

from torch import Tensor

from hydrasurgeon.decision.probabilities import Scores
from hydrasurgeon.decision.scores.evidence import Evidence, Fit, directions
from hydrasurgeon.decision.scores.moments import Moments, Whitening, whitening


def fit_mds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("mds")
    return _fit(evidence.moments, evidence.features, evidence.labels)


def score_mds(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    return _nearest(state, features.double())


def fit_rmds(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("rmds")
    state, notes = _fit(evidence.moments, evidence.features, evidence.labels)
    moments = evidence.moments
    background = whitening(moments.total, evidence.features - moments.mean)
    return {**state, "background": background.factor}, [*notes, *_said("total", background)]


def score_rmds(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    apart = features.double() - state["centre"].double()
    return _nearest(state, features.double()) - (apart @ state["background"].double()).square().sum(dim=-1)


def fit_directions(evidence: Evidence) -> tuple[Fit, list[str]]:
    evidence.need_every_class("maha++")
    return _fit(evidence.directions, directions(evidence.features), evidence.labels)


def score_directions(state: Fit, features: Tensor, logits: Tensor) -> Scores:
    return _nearest(state, directions(features))


def _fit(moments: Moments, features: Tensor, labels: Tensor) -> tuple[Fit, list[str]]:
    within = whitening(moments.within, features - moments.means[labels])
    means = (moments.means - moments.mean) @ within.factor
    return {"centre": moments.mean, "factor": within.factor, "means": means}, [*_said("within", within)]


def _nearest(state: Fit, features: Tensor) -> Scores:
    """min_c |(x − μ) W − m_c|², by |a|² + |b|² − 2ab."""
    x = (features - state["centre"].double()) @ state["factor"].double()
    means = state["means"].double()
    crossed = means.square().sum(dim=-1) - 2 * x @ means.T
    return (x.square().sum(dim=-1) + crossed.amin(dim=-1)).clamp_min(0.0)


def _said(which: str, whitened: Whitening) -> list[str]:
    if whitened.shrunk is None:
        return []
    what = "about the class means" if which == "within" else "about the mean"
    return [f"the covariance {what} is singular: shrunk by Ledoit-Wolf, {whitened.shrunk:.2g} of it is the identity"]
