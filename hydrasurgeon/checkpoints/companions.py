"""Companions: the texts that live data needs (a tokenizer's files), in a weight file's header or beside it.

A name becomes a path only if it is on the family's own list; anything else is refused, never skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hydrasurgeon.checkpoints.folder import entries
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.base import Family
from hydrasurgeon.files.foreign import parse_json, read_text
from hydrasurgeon.files.header import MAX_HEADER

# The largest tokenizer in use (256,000 words and their merges) has 35 MB.
MAX_TEXT = 64 << 20


def check_names(names: Iterable[str], *, family: Family, where: str) -> None:
    """Refuse names that are not on the family's list of companions."""
    names = set(names)
    foreign = sorted(names - set(family.companions(names)))
    if foreign:
        raise CheckpointError(
            f"{where}: carries a file named {foreign[0][:80]!r}, which is no companion of a {family.name} model",
            hint="The file was not written by hydrasurgeon as it is: do not use it.",
        )


def companions_inside(text: str, *, family: Family, where: str) -> dict[str, str]:
    """Name → text, out of a header's entry."""
    texts = parse_json(text, where, most=MAX_HEADER)
    if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
        raise CheckpointError(f"{where}: is not a record of texts")
    check_names(texts, family=family, where=where)
    return texts


def companions_beside(folder: Path, *, family: Family) -> dict[str, str]:
    """Name → text, out of the folder that holds the weights."""
    names = family.companions(set(entries(folder)))
    return {name: read_text(_its_own(folder / name), most=MAX_TEXT) for name in names}


def _its_own(path: Path) -> Path:
    """A file of its folder, or of the hub's cache: what a link elsewhere leads to would travel on in what we write."""
    real, home = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    blobs = home.parent.parent / "blobs"  # snapshots/COMMIT/NAME are links to them
    if real.is_relative_to(home) or (home.parent.name == "snapshots" and real.is_relative_to(blobs)):
        return path
    raise CheckpointError(f"{path}: is a link to a file outside its directory", hint="Copy the file there.")
