"""Interface of the formats that `export` writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, undecided

if TYPE_CHECKING:
    from hydrasurgeon.options.measuring import ExportOptions

WORDS = "the output has no decision state, as that uses a bag-of-words model: its answers are those of the model alone; calibrate with --words off for a state that it can hold; --format onnx -o DIR/ keeps this one for predict and serve"
"""Note for an output that cannot hold a bag-of-words model."""
UNCALIBRATED = (
    "it has no decision state: its probabilities are what training made them; calibrate first"
)
"""Note for an output without a calibration."""
Compared = dict[str, dict[str, float]]
"""Metrics on the same samples, `before` and `after`."""


@dataclass(frozen=True)
class Export:
    path: Path
    nbytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output from torch's; in int8, of a probability."""
    format: str
    opset: int | None = None
    """The version of ONNX's operators; None of another format."""
    calibrated: bool = False
    """True where the calibration is in the last layer of what a library loads."""
    quantised: Compared | None = None
    """Effect of int8 on the answers; None without --int8."""
    checked: Compared | None = None
    """Without int8: the model's and the file's answers on the data of `--check`."""
    notes: tuple[str, ...] = ()
    """Assumptions about the checkpoint."""


class Format(ABC):
    """A format of `export`. Heavy imports wait inside the methods."""

    name: ClassVar[str]
    help: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    """Options that are for some formats only, of which this is one."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that it needs."""

    @abstractmethod
    def write(self, opened: Checkpoint, arguments: ExportOptions) -> Export:
        """Write a checkpoint in this format."""


def without_words(opened: Checkpoint) -> tuple[Checkpoint, tuple[str, ...]]:
    """Return the checkpoint without a decision state that reads words, and a note if there was one."""
    decision = opened.manifest.decision
    if decision is None or decision.words is None:
        return opened, ()
    return undecided(opened), (WORDS,)


def uncalibrated(opened: Checkpoint) -> tuple[str, ...]:
    """Return a note if there is no decision state."""
    return () if opened.manifest.decision is not None else (UNCALIBRATED,)
