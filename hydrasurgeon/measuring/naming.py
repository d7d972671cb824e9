"""What checkpoints and predictions files are called that stand in one table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.measuring.report import Result

if TYPE_CHECKING:
    from hydrasurgeon.measuring.answers import Answered


def name_of(job: Sequence[Checkpoint], *, passes: int | None = None) -> str:
    """Of a checkpoint, or of several that answer together; `passes`: of MC Dropout, which the plain model may stand
    beside."""
    name = " + ".join(each.alias or each.name.removesuffix(SUFFIX) for each in job)
    return name if passes is None else f"{name} ({passes} pass{'' if passes == 1 else 'es'})"


def told_apart(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that share a name, as files in several folders do, with the last folders that differ; one and the same file
    keeps one name."""
    names = [name_of([each]) for each in checkpoints]
    apart = []
    for name, each in zip(names, checkpoints, strict=True):
        called = _with_folders(each, [o for n, o in zip(names, checkpoints, strict=True) if n == name])
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
    return _shortest(mine, [_parts(other) for other in others])


def files_apart(
    results: Sequence[Result], answered: list[Answered], files: Sequence[str | Path], taken: Collection[str]
) -> list[Result]:
    """Predictions files say themselves what they are called: those that share a name with another row have their file
    behind it, in `answered`, too.

    One and the same file keeps one name.
    """
    paths = [Path(file).absolute() for file in files]
    apart = list(results)
    for at, (row, path) in enumerate(zip(results, paths, strict=True)):
        rivals = [other for each, other in zip(results, paths, strict=True) if each.name == row.name and other != path]
        if rivals or row.name in taken:
            called = f"{row.name} ({_shortest(path.parts, [other.parts for other in rivals])})"
            apart[at] = row.model_copy(update={"name": called})
            answered[at] = replace(answered[at], name=called)
    return apart


def _shortest(mine: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """As few of the last parts as none of the others, which differ, ends in."""
    depth = 1
    while any(other[-depth:] == mine[-depth:] for other in others):
        depth += 1
    return "/".join(mine[-depth:])


def _parts(path: Path) -> tuple[str, ...]:
    return (*path.parent.parts, path.name.removesuffix(SUFFIX))
