"""inspect: what a checkpoint is, from its header and manifest alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.manifest import Manifest

__all__ = ["Inspection", "inspect"]


@dataclass(frozen=True)
class Inspection:
    path: Path
    manifest: Manifest
    parameters: int
    nbytes: int
    dtypes: tuple[str, ...]
    recorded: bool
    note: str | None


def inspect(checkpoint: str | Path, *, arch: str | None = None) -> Inspection:
    """Read the header; no tensor is touched and torch is not imported."""
    opened = open_checkpoint(checkpoint, arch=arch)
    tensors = opened.tensors
    return Inspection(
        path=opened.path,
        manifest=opened.manifest,
        parameters=sum(
            math.prod(t.shape) for name, t in tensors.items() if not name.startswith(PREFIX)
        ),
        nbytes=tensors.nbytes,
        dtypes=tuple(sorted({info.dtype for info in tensors.values()})),
        recorded=opened.recorded,
        note=opened.note,
    )
