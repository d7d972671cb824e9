"""OOD scores that are functions of logits alone; higher = more unfamiliar. A hydra's weights are in all of its means.

msp 1 − max p · entropy H(p) · mi H(p) − mean H(p_m) · gen Σ_top-100 p^γ (1 − p)^γ with γ = 0.1 (Liu et al., CVPR 2023),
all of the mean probabilities; energy −T logsumexp(z/T) and max-logit −max z, means over the members. On transformers
energy and max-logit are often worse than msp: their logits say little by their size (OpenOOD v1.5, table of ViT-B/16).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hydrasurgeon.decision.probabilities import Logits, Probs, Scores, mean_probs, member_probs, over_members
from hydrasurgeon.files.mixture import Mixture

GAMMA = 0.1
"""Of GEN: the exponent that its authors use."""
TOP = 100
"""Of GEN: how many classes count, as its authors say."""


def entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(dim=-1)


def mutual_information(logits: Logits, mixture: Mixture | None = None) -> Scores:
    """H(mean p) − mean H(p_m), per sample, in nats."""
    probs = member_probs(logits)
    apart = entropy(over_members(probs, mixture)) - over_members(entropy(probs), mixture)
    return apart.clamp_min(0.0)


def generalized_entropy(probs: Probs) -> Scores:
    largest = probs.topk(min(TOP, probs.shape[-1]), dim=-1).values
    return (largest * (1 - largest)).clamp_min(0.0).pow(GAMMA).sum(dim=-1)


class OnLogits(Protocol):
    """Of logits, a temperature and the members' weights."""

    def __call__(self, logits: Logits, t: float, w: Mixture | None = None, /) -> Scores: ...


ON_LOGITS: dict[str, OnLogits] = {
    "msp": lambda logits, t, w=None: 1 - mean_probs(logits, t, w).amax(dim=-1),
    "entropy": lambda logits, t, w=None: entropy(mean_probs(logits, t, w)),
    "energy": lambda logits, t, w=None: -over_members(t * (logits.double() / t).logsumexp(dim=-1), w),
    "max-logit": lambda logits, t, w=None: -over_members(logits.double(), w).amax(dim=-1),
    "mi": lambda logits, t, w=None: mutual_information(logits, w),
    "gen": lambda logits, t, w=None: generalized_entropy(mean_probs(logits, t, w)),
}
"""Score by name."""
