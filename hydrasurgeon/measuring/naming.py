"""What checkpoints are called that stand in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.files.atomic import SUFFIX

__all__ = ["name_of", "told_apart"]


def name_of(job: Sequence[Checkpoint], *, passes: int | None = None) -> str:
    """Of a checkpoint, or of several that answer together; `passes`: of MC Dropout, which the plain model may stand beside."""
    name = " + ".join(each.alias or each.name.removesuffix(SUFFIX) for each in job)
    return name if passes is None else f"{name} ({passes} pass{'' if passes == 1 else 'es'})"


def told_apart(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that share a name, as files in several folders do, with the last folders that differ; one and the same file keeps one name."""
    names = [name_of([each]) for each in checkpoints]
    apart = []
    for name, each in zip(names, checkpoints, strict=True):
        called = _with_folders(each, [o for n, o in zip(names, checkpoints, strict=True) if n == name])  # fmt: skip
        apart.append(each if called == name else replace(each, alias=called))
    return apart


def _with_folders(checkpoint: Checkpoint, rivals: Sequence[Checkpoint]) -> str:
    """As few of the folders above it as no rival has, with its name."""
    if checkpoint.hub_id is not None:
        return checkpoint.name.removesuffix(SUFFIX)
    path = checkpoint.path.absolute()
    mine = _parts(path)
    others = [other for each in rivals if (other := each.path.absolute()) != path]
    if any(_parts(other) == mine for other in others):  # a folder beside a file
        return path.name
    depth = 1
    while any(_parts(other)[-depth:] == mine[-depth:] for other in others):
        depth += 1
    return "/".join(mine[-depth:])


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parent.parts, path.name.removesuffix(SUFFIX))
