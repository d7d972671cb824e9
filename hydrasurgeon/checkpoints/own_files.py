"""The files that a checkpoint consists of: the weights and their sidecar, or all of a directory."""

from __future__ import annotations

from pathlib import Path

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.files.manifest import sidecar


def own_files(checkpoint: Checkpoint) -> tuple[Path, list[Path]]:
    """The folder that the files' names are relative to, and the files."""
    path = checkpoint.path
    if path.is_dir():
        return path, [each for each in sorted(path.rglob("*")) if each.is_file()]
    return path.parent, [each for each in (path, sidecar(path)) if each.is_file()]
