"""Member logits → probabilities: the mean over members of softmax(z_m), and temperature after
averaging; in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "sample member klass"]
Probs = Float[Tensor, "sample klass"]
Labels = Int[Tensor, " sample"]
Scores = Float[Tensor, " sample"]
TINY = 1e-300
"""Smallest positive probability: keeps the log finite for a class that got exactly 0."""
YES = 0.5
"""What is at least so true counts as yes."""


def yes_or_no(logits: Tensor) -> Tensor:
    """One logit z as those of two classes, 0 and z; others as they are."""
    return (
        torch.cat([torch.zeros_like(logits), logits], dim=-1) if logits.shape[-1] == 1 else logits
    )


def member_probs(logits: Logits) -> Float[Tensor, "sample member klass"]:
    """Each member's probabilities."""
    return logits.double().softmax(dim=-1)


def mean_probs(logits: Logits, temperature: float = 1.0) -> Probs:
    """The mean over members of softmax(z_m), then softmax(ln p / T): temperature acts after
    averaging.
    """
    return tempered(member_probs(logits).mean(dim=1), temperature)


def tempered(probs: Probs, temperature: float) -> Probs:
    return (
        probs if temperature == 1.0 else (probs.clamp_min(TINY).log() / temperature).softmax(dim=-1)
    )


def entropy(probs: Tensor) -> Tensor:
    """In nats, over the classes."""
    return torch.special.entr(probs).sum(dim=-1)


def nll(probs: Probs, labels: Labels) -> float:
    """mean −ln p_y; a probability of exactly 0 counts as 1e-300."""
    return float(-probs.gather(1, labels[:, None]).clamp_min(TINY).log().mean())


def by_pieces(function: Callable[[Tensor], Tensor], rows: Tensor, most: int) -> Tensor:
    """What a function makes of each row, so many rows at a time; beside the result no more than one
    piece is held.
    """
    first, *others = in_pieces(rows, most)
    made = function(first)
    if not others:
        return made
    whole = made.new_empty(len(rows), *made.shape[1:])
    whole[: len(made)] = made
    done = len(made)
    for piece in others:
        whole[done : done + len(piece)] = function(piece)
        done += len(piece)
    return whole


def in_pieces(rows: Tensor, most: int) -> Sequence[Tensor]:
    """So many rows at a time, for memory's sake; a graph that is traced takes them as they come."""
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return [rows] if traced else rows.split(most)
