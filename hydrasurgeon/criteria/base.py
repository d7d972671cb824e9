"""What a criterion is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.backends.base import Attention
    from hydrasurgeon.checkpoint import Checkpoint

__all__ = ["HeadScores", "Subject"]

HeadScores = dict[tuple[str, int], list[float]]
"""(tower, layer) → one score for each head present, in the order of the kept heads."""


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
    layers: frozenset[int]
    seed: int
