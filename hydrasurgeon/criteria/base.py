"""What a criterion is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.backends.base import Attention
    from hydrasurgeon.checkpoint import Checkpoint

__all__ = ["HeadScores", "Subject", "Verdict"]

HeadScores = dict[tuple[str, int], list[float]]
"""(tower, layer) → one score for each head present, in the order of the kept heads."""


@dataclass(frozen=True)
class Verdict:
    """Scores, and what else a criterion found that a later choice of heads needs."""

    scores: HeadScores
    settings: dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A checkpoint to be scored. Nothing is loaded or decoded before a criterion asks for it."""

    checkpoint: Checkpoint
    load: Callable[[], tuple[nn.Module, tuple[Attention, ...]]]
    batches: Callable[[str], Iterable[tuple[Tensor, Tensor]]]
    """One pass over (inputs, labels), on the model's device; the argument names the pass for progress."""
    samples: int
    keep: int | None
    """How many heads each layer will keep, where that is known beforehand."""
    towers: tuple[str, ...]
    """Only heads of these are scored."""
    layers: frozenset[int]
    seed: int
