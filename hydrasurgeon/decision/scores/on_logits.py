"""OOD scores that are functions of logits alone; higher = more unfamiliar.

msp 1 − max p · entropy H(p) · mi H(p) − mean H(p_m) · gen Σ_top-100 p^γ (1 − p)^γ with γ = 0.1 (Liu
et al., CVPR 2023), all of the mean probabilities; energy −T logsumexp(z/T) and max-logit −max z,
means over the members. On transformers energy and max-logit are often worse than msp: their logits
say little by their size (OpenOOD v1.5, table of ViT-B/16).
"""

from __future__ import annotations

from collections.abc import Callable

from hydrasurgeon.decision.probabilities import (
    Logits,
    Probs,
    Scores,
    entropy,
    mean_probs,
    member_probs,
)

GAMMA = 0.1
"""Exponent of GEN, as its authors use it."""
TOP = 100
"""How many classes count in GEN, as its authors have it."""


def mutual_information(logits: Logits) -> Scores:
    """H(mean p) − mean H(p_m), per sample, in nats."""
    probs = member_probs(logits)
    return (entropy(probs.mean(dim=1)) - entropy(probs).mean(dim=1)).clamp_min(0.0)


def generalized_entropy(probs: Probs) -> Scores:
    largest = probs.topk(min(TOP, probs.shape[-1]), dim=-1).values
    return (largest * (1 - largest)).clamp_min(0.0).pow(GAMMA).sum(dim=-1)


ON_LOGITS: dict[str, Callable[[Logits, float], Scores]] = {
    "msp": lambda logits, t: 1 - mean_probs(logits, t).amax(dim=-1),
    "entropy": lambda logits, t: entropy(mean_probs(logits, t)),
    "energy": lambda logits, t: -(t * (logits.double() / t).logsumexp(dim=-1)).mean(dim=1),
    "max-logit": lambda logits, t: -logits.double().mean(dim=1).amax(dim=-1),
    "mi": lambda logits, t: mutual_information(logits),
    "gen": lambda logits, t: generalized_entropy(mean_probs(logits, t)),
}
"""Score → what it makes of logits and a temperature."""
