"""OOD scores that are functions of logits alone; higher = more unfamiliar.

Each is a function of terms that are averaged over the members (`LOGITS` in `files/decided.py` names
them): msp 1 − max p · entropy H(p) · mi H(p) − mean H(p_m) · gen Σ_top-100 p^γ (1 − p)^γ with
γ = 0.1 (Liu et al., CVPR 2023), all of the mean probabilities; energy −T logsumexp(z/T) and
max-logit −max z, means over the members. On transformers energy and max-logit are often worse than
msp: their logits say little by their size (OpenOOD v1.5, table of ViT-B/16).

Of many labels, each a choice between no and yes: entropy, mi and energy are sums over the labels
(the last is the joint energy of Wang et al., NeurIPS 2021); msp and max-logit look at the most
likely label alone. Of a text's words, which have three classes or more, it is their mean; a place
without a word has the same logit for all classes, and counts nothing.

`familiar_…` orders samples the other way, by one model's logits, in a form that does not saturate:

    msp         ln p/(1−p) of the most probable class      moves by at most 2 for a logit's 1
    entropy     −ln H(p)                                                     2
    gen         −ln Σ_top-100 p^γ (1−p)^γ                                    2γ
    energy      logsumexp z                                                  1
    max-logit   max z                                                        1

For the entropy the bound is Σ p_i |ln p_i + H| / H ≤ 2; for gen each ln p^γ (1−p)^γ moves by
γ |1 − 2p| |1 − p|⁻¹ |d ln p| ≤ 2γ, as |d ln p| ≤ 2 (1 − p), and sorted logits move as logits do;
the others have gradients that are shares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.files.decided import LOGITS
from hydrasurgeon.lookup import imported
from hydrasurgeon.statistics.probabilities import Logits, Scores, entropy, tempered

Many = Float[Tensor, "*any klass"]
One = Float[Tensor, "*any"]
Choices = Float[Tensor, "sample member label 2"]
Words = Float[Tensor, "sample member word klass"]

GAMMA = 0.1
"""Exponent of GEN, as its authors use it."""
TOP = 100
"""How many classes count in GEN, as its authors have it."""


def terms_probabilities(logits: Many, temperature: float) -> Many:
    return logits.softmax(dim=-1)


def terms_informed(logits: Many, temperature: float) -> Float[Tensor, "*any klass_and_1"]:
    """Probabilities, and in a last column their entropy."""
    probs = logits.softmax(dim=-1)
    return torch.cat([probs, entropy(probs)[..., None]], dim=-1)


def terms_energy(logits: Many, temperature: float) -> Float[Tensor, "*any 1"]:
    return -temperature * (logits / temperature).logsumexp(dim=-1, keepdim=True)


def terms_logits(logits: Many, temperature: float) -> Many:
    return logits


def score_msp(probs: Many) -> One:
    return 1 - probs.amax(dim=-1)


def score_entropy(probs: Many) -> One:
    return entropy(probs)


def score_energy(energies: Float[Tensor, "*any 1"]) -> One:
    return energies[..., 0]


def score_max_logit(logits: Many) -> One:
    return -logits.amax(dim=-1)


def score_mi(means: Float[Tensor, "*any klass_and_1"]) -> One:
    return (entropy(means[..., :-1]) - means[..., -1]).clamp_min(0.0)


def score_gen(probs: Many) -> One:
    largest = probs.topk(min(TOP, probs.shape[-1]), dim=-1).values
    return (largest * (1 - largest)).clamp_min(0.0).pow(GAMMA).sum(dim=-1)


def familiar_msp(logits: Many) -> One:
    """ln p/(1−p) of the most probable class."""
    best, where = logits.max(dim=-1, keepdim=True)
    others = logits.scatter(-1, where, -torch.inf)
    return best.squeeze(-1) - others.logsumexp(dim=-1)


def familiar_entropy(logits: Many) -> One:
    """−ln H: of nearly certain samples too, where H itself would be rounded to 0."""
    log_p, against = _log_shares(logits)
    return -(log_p + _log_surprise(log_p, against)).logsumexp(dim=-1)


def familiar_gen(logits: Many) -> One:
    """−ln of the generalised entropy."""
    log_p, against = _log_shares(logits)
    if logits.shape[-1] > TOP:
        # The classes that are left out still count in every probability.
        top = logits.topk(TOP, dim=-1).indices
        log_p, against = log_p.gather(-1, top), against.gather(-1, top)
    return -(GAMMA * (log_p + against)).logsumexp(dim=-1)


def familiar_energy(logits: Many) -> One:
    return logits.logsumexp(dim=-1)


def familiar_max_logit(logits: Many) -> One:
    return logits.amax(dim=-1)


def _log_shares(logits: Many) -> tuple[Many, Many]:
    """ln p and ln (1 − p) of every class, each accurate where the other is nearly 0."""
    where = logits.argmax(dim=-1, keepdim=True)
    odd = familiar_msp(logits)[..., None]
    log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
    zero = torch.zeros_like(odd)
    against = torch.log1p(-log_p.scatter(-1, where, -torch.inf).exp())
    log_p = log_p.scatter(-1, where, -torch.logaddexp(zero, -odd))
    return log_p, against.scatter(-1, where, -torch.logaddexp(zero, odd))


def _log_surprise(log_p: Many, against: Many) -> Many:
    """ln(−ln p); of p that rounds to 1 it is ln(1 − p)."""
    certain = log_p > -1e-200
    return torch.where(certain, against, (-log_p.clamp(max=-1e-200)).log())


def _function(prefix: str, name: str, home: str = __name__) -> Callable[..., Tensor]:
    function: Callable[..., Tensor] = imported(f"{home}:{prefix}_{name.replace('-', '_')}")
    return function


@cache
def functions(kind: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A score's terms of one member's logits at a temperature, and the score of their means."""
    row = LOGITS[kind]
    return _function("terms", row.terms), _function("score", kind, row.home)


def score_of(kind: str, logits: Logits | Choices | Words, temperature: float = 1.0) -> Scores:
    """A score of logits [sample, member, class], of many labels' choices, or of words."""
    terms, score = functions(kind)
    means = terms(logits.double(), temperature).mean(dim=1)
    if LOGITS[kind].terms == "probabilities":
        means = tempered(means, temperature)
    if means.dim() == 2:
        return score(means)
    if logits.shape[-1] > 2:
        there = (logits[:, 0] != logits[:, 0, :, :1]).any(dim=-1)
        return (score(means) * there).sum(dim=-1) / there.sum(dim=-1).clamp_min(1)
    if LOGITS[kind].labels == "likeliest":
        return score(means[..., 1:]).amin(dim=-1)
    return score(means).sum(dim=-1)


ON_LOGITS = {kind: partial(score_of, kind) for kind in LOGITS}
"""Score → what it makes of logits and a temperature."""


def familiarity(kind: str, logits: Many, *, labels: bool = False) -> One:
    """How familiar one model finds samples: the order of the score turned round. Of many labels the
    logits are those of yes.
    """
    familiar, joined = _function("familiar", kind), LOGITS[kind].labels
    if not labels:
        return familiar(logits)
    if joined == "likeliest":
        return logits.amax(dim=-1)
    each = familiar(torch.stack([torch.zeros_like(logits), logits], dim=-1))
    if joined == "log sum":
        return -(-each).logsumexp(dim=-1)
    return each.sum(dim=-1)


def furthest(kind: str, labels: int = 0) -> float:
    """By how much the familiarity moves at most when each logit moves by 1."""
    row = LOGITS[kind]
    assert row.moves is not None
    if not labels or row.labels == "log sum":
        return row.moves
    return 1.0 if row.labels == "likeliest" else labels * row.moves
