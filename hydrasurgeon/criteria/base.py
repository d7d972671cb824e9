"""What a criterion is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hydrasurgeon.anatomy.parts import Attention
    from hydrasurgeon.checkpoints.reading import Single
    from hydrasurgeon.files.manifest import Score
    from hydrasurgeon.heads import Head

HeadScores = dict[tuple[str, int], list[float]]
"""(tower, layer) → one score for each head present, in the order of the kept heads."""


@dataclass(frozen=True)
class Verdict:
    """Scores, and what else a criterion found that a later choice of heads needs."""

    scores: HeadScores
    settings: dict[str, Any]


@dataclass(frozen=True)
class Removal:
    """The verdict of a criterion that ranks heads by removing them."""

    order: tuple[Head, ...]
    trace: tuple[float, ...]
    """What was left of the objective after each removal."""
    settings: dict[str, Any]


@dataclass(frozen=True)
class CircuitOptions:
    """What a circuit is to be found for, and how."""

    objective: Literal["acc", "ood", "avg"]
    ood_score: str
    """By which score of the logits OOD samples are told."""
    search: str
    remove: int | None
    state: Path | None
    """Where an interrupted search leaves its state; None = nowhere."""
    identity: Mapping[str, Any]
    """What must be the same for that state, or for a recorded order, to be of use."""
    recorded: Score | None = None
    """What the checkpoint has under the same name already."""


@dataclass(frozen=True)
class Subject:
    """A checkpoint to be scored. Nothing is loaded or decoded before a criterion asks for it."""

    checkpoint: Single
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
    batch_size: int = 64
    foreign: Callable[[str], Iterable[Any]] = lambda _: ()
    """One pass over the inputs of the OOD sets."""
    circuit: CircuitOptions | None = None
    progress: Callable[[str, int, int], None] | None = None
