"""How familiar one model finds a sample, by any OOD score of its logits: the negative score, in a form that does not
saturate.

    msp         ln p/(1−p) of the most probable class      moves by at most 2 for a logit's 1
    entropy     −ln H(p)                                                     2
    gen         −ln Σ_top-100 p^γ (1−p)^γ                                    2γ
    energy      logsumexp z                                                  1
    max-logit   max z                                                        1

Each orders samples as its score in `decision/scores/on_logits.py` does. The last column is what the bounds of the exact
search
need: how far the number moves when every logit is off by at most 1. For the entropy it is Σ p_i |ln p_i + H| / H ≤ 2;
for gen each
ln p^γ (1−p)^γ moves by γ |1 − 2p| |1 − p|⁻¹ |d ln p| ≤ 2γ, as |d ln p| ≤ 2 (1 − p), and sorted logits move as logits
do; the
others have gradients that are shares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.decision.scores.on_logits import GAMMA, TOP

Many = Float[Tensor, "*any klass"]
One = Float[Tensor, "*any"]


@dataclass(frozen=True)
class Familiarity:
    """One score, turned round."""

    of: Callable[[Many], One]
    """Higher = looks more familiar."""
    moves: float
    """By how much at most, when each logit moves by 1."""


def odds(logits: Many) -> One:
    """ln p/(1−p) of the most probable class: higher = looks more familiar."""
    best, where = logits.max(dim=-1, keepdim=True)
    others = logits.scatter(-1, where, -torch.inf)
    return best.squeeze(-1) - others.logsumexp(dim=-1)


def _certainty(logits: Many) -> One:
    """−ln H: of nearly certain samples too, where H itself would be rounded to 0."""
    log_p, against = _log_shares(logits)
    return -(log_p + _log_surprise(log_p, against)).logsumexp(dim=-1)


def _concentration(logits: Many) -> One:
    """−ln of the generalised entropy."""
    if logits.shape[-1] > TOP:
        # The classes that are left out still count in every probability.
        log_p, against = (part.gather(-1, logits.topk(TOP, dim=-1).indices) for part in _log_shares(logits))
    else:
        log_p, against = _log_shares(logits)
    return -(GAMMA * (log_p + against)).logsumexp(dim=-1)


def _log_shares(logits: Many) -> tuple[Many, Many]:
    """ln p and ln (1 − p) of every class, each accurate where the other is nearly 0."""
    where = logits.argmax(dim=-1, keepdim=True)
    odd = odds(logits)[..., None]
    log_p = logits - logits.logsumexp(dim=-1, keepdim=True)
    zero = torch.zeros_like(odd)
    against = torch.log1p(-log_p.scatter(-1, where, -torch.inf).exp())
    log_p = log_p.scatter(-1, where, -torch.logaddexp(zero, -odd))
    return log_p, against.scatter(-1, where, -torch.logaddexp(zero, odd))


def _log_surprise(log_p: Many, against: Many) -> Many:
    """ln(−ln p); of p that rounds to 1 it is ln(1 − p)."""
    certain = log_p > -1e-200
    return torch.where(certain, against, (-log_p.clamp(max=-1e-200)).log())


FAMILIARITY = {
    "msp": Familiarity(odds, 2.0),
    "entropy": Familiarity(_certainty, 2.0),
    "gen": Familiarity(_concentration, 2 * GAMMA),
    "energy": Familiarity(lambda logits: logits.logsumexp(dim=-1), 1.0),
    "max-logit": Familiarity(lambda logits: logits.amax(dim=-1), 1.0),
}
"""OOD score → how familiar one model finds a sample by it; their names without torch stand in
`criteria/__init__.py`."""
