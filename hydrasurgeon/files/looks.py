"""What `monitor --state` keeps between its looks: what each one counted, and in which rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import Decision, Record, Seen, Share, Tally
from hydrasurgeon.files.foreign import must, parse_json, read_bytes
from hydrasurgeon.files.manifest import Sha256, first_mistake
from hydrasurgeon.files.rows import read_rows

MAX_BYTES = 256 << 20
"""Ten years of nights with a thousand classes fit into it."""
ANOTHER = "Give another --state, or move this one away."
"""What to do about a state that cannot be used."""


class Mark(Record):
    """A file as far as it was read, so that rows are counted once even if it grows."""

    rows: Annotated[int, Field(ge=0)]
    sha256: Sha256


class Look(Record):
    """What one look counted."""

    answers: Mark
    seen: Seen | None
    """None where answers that were counted before got labels."""
    labels: Mark | None = None
    kept: dict[str, tuple[Tally, Tally]] = Field(default={}, max_length=10)
    """Of each promise: rows with labels that come under it, and how many of these break it."""

    @model_validator(mode="after")
    def _possible(self) -> Look:
        for name, (rows, broken) in self.kept.items():
            must((broken <= rows, f"{name}: {broken} of {rows} rows"))
        return self


class Looks(Record):
    """All looks at the answers of one checkpoint."""

    format: Literal["hydrasurgeon.monitor/1"] = "hydrasurgeon.monitor/1"
    against: Sha256
    """Hash of the checkpoint's weights and decision state."""
    alpha: Share
    looks: tuple[Look, ...] = ()

    def marks(self, kind: Literal["answers", "labels"]) -> set[Mark]:
        """How far files of this kind were read."""
        marks = (getattr(look, kind) for look in self.looks)
        return {mark for mark in marks if mark is not None}


def fingerprint(weights_sha256: str, decision: Decision) -> str:
    """What a state belongs to."""
    return hashlib.sha256(f"{weights_sha256} {decision.model_dump_json()}".encode()).hexdigest()


def read_looks(path: Path, *, against: str, alpha: float, classes: int) -> Looks:
    """The state of this checkpoint; without a file a new one."""
    if not path.exists():
        return Looks(against=against, alpha=alpha)
    content = read_bytes(path, most=MAX_BYTES, error=DataError)
    parse_json(content, str(path), most=MAX_BYTES, error=DataError)
    try:
        state = Looks.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise DataError(
            f"{path}: is no state of monitor, or damaged: {first_mistake(error)}", hint=ANOTHER
        ) from error
    if state.against != against:
        raise DataError(f"{path}: belongs to another checkpoint", hint=ANOTHER)
    if state.alpha != alpha:
        raise UsageError(
            f"{path}: was begun with --alpha {state.alpha:g}, which holds for all its looks",
            hint=f"Give --alpha {state.alpha:g}, or another --state.",
        )
    seen = [look.seen for look in state.looks if look.seen is not None]
    if any(len(each.predicted) != classes for each in seen):
        raise DataError(f"{path}: is damaged: counts other classes", hint=ANOTHER)
    return state


def marked(path: Path, marks: Collection[Mark]) -> tuple[Mark, int]:
    """The file as it is now, and how many of its first rows are among those that were read."""
    digest, rows, known = hashlib.sha256(), 0, 0
    lengths = {mark.rows for mark in marks}
    for rows, (_, row) in enumerate(read_rows(path), 1):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        if rows in lengths and Mark(rows=rows, sha256=digest.hexdigest()) in marks:
            known = rows
    return Mark(rows=rows, sha256=digest.hexdigest()), known
