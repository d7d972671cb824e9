"""State of `monitor` between its looks: the counts of each look, and the rows that were counted."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import DecisionRecord, Record, Seen, Share, Tally
from hydrasurgeon.files.manifest import Sha256, first_mistake
from hydrasurgeon.files.untrusted import must, parse_json, read_bytes

MAX_BYTES = 256 << 20
"""Twenty million rows fit into it."""
BYTES_OF_ROW = 8
"""Bytes of a row's hash: 11 characters in base64."""
ALPHA = 0.01
"""Default probability of a false alarm."""
ANOTHER = "Give another --state, or move this one away."
"""Hint about a state that cannot be used."""


class Look(Record):
    """Counts of one look."""

    name: str | None = Field(default=None, max_length=255)
    """Name of the file of answers."""
    seen: Seen | None
    """None if answers that had been counted before got labels."""
    kept: dict[str, tuple[Tally, Tally]] = Field(default={}, max_length=10)
    """Counts for each promise: labelled rows that come under it, and how many of them break it."""

    @model_validator(mode="after")
    def _possible(self) -> Look:
        for name, (rows, broken) in self.kept.items():
            must((broken <= rows, f"{name}: {broken} of {rows} rows"))
        return self


class Looks(Record):
    """All looks at the answers of one checkpoint."""

    format: Literal["hydrasurgeon.monitor/3"] = "hydrasurgeon.monitor/3"
    against: Sha256
    """Hash of the checkpoint's weights and decision state."""
    alpha: Share
    looks: tuple[Look, ...] = ()
    answers: str = ""
    """Hashes of the answers that were counted, in base64."""
    labels: str = ""
    """The same of labels."""

    @field_validator("answers", "labels")
    @classmethod
    def _decodable(cls, hashes: str) -> str:
        must((len(_decoded(hashes)) % BYTES_OF_ROW == 0, "a hash is cut"))
        return hashes

    def with_look(self, look: Look, answers: set[bytes], labels: set[bytes]) -> Looks:
        """Return the state after a look at these rows."""
        more = {
            "looks": (*self.looks, look),
            "answers": _encoded(unpacked(self.answers) | answers),
            "labels": _encoded(unpacked(self.labels) | labels),
        }
        return self.model_copy(update=more)

    def text(self) -> str:
        """Return the file's text, which ends with its own hash."""
        content = self.model_dump_json()
        return f'{content[:-1]},"sha256":"{_sha256(content)}"}}\n'


def unpacked(hashes: str) -> set[bytes]:
    """Return the hashes of rows in a state."""
    content = _decoded(hashes)
    return {content[at : at + BYTES_OF_ROW] for at in range(0, len(content), BYTES_OF_ROW)}


def hash_of(row: Any) -> bytes:
    """Return a row's hash, by which it is recognised anywhere."""
    content = json.dumps(row, sort_keys=True, default=str).encode()
    return hashlib.blake2b(content, digest_size=BYTES_OF_ROW).digest()


def fingerprint(weights_sha256: str, decision: DecisionRecord) -> str:
    """Return the hash of the checkpoint that a state belongs to."""
    return _sha256(f"{weights_sha256} {decision.model_dump_json()}")


def read_looks(path: Path, *, against: str, alpha: float | None, classes: int) -> Looks:
    """Read the state of this checkpoint; without a file return a new one."""
    if not path.exists():
        return Looks(against=against, alpha=ALPHA if alpha is None else alpha)
    content = read_bytes(path, most=MAX_BYTES, error=DataError)
    record = parse_json(content, str(path), most=MAX_BYTES, error=DataError)
    sealed = record.pop("sha256", None) if isinstance(record, dict) else None
    try:
        state = Looks.model_validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        raise DataError(
            f"{path}: is not a state file of monitor, or is damaged: {first_mistake(error)}",
            hint=ANOTHER,
        ) from error
    counted = {len(look.seen.predicted) for look in state.looks if look.seen is not None}
    must(
        (sealed == _sha256(state.model_dump_json()), "was changed since monitor wrote it"),
        (state.against == against, "belongs to another checkpoint"),
        (counted <= {classes}, "is damaged: counts other classes"),
        error=lambda why: DataError(f"{path}: {why}", hint=ANOTHER),
    )
    if alpha not in (None, state.alpha):
        raise UsageError(
            f"{path}: was started with --alpha {state.alpha:g}, which cannot be changed",
            hint=f"Give --alpha {state.alpha:g} or none, or another --state.",
        )
    return state


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _encoded(hashes: Iterable[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(hashes))).decode()


def _decoded(hashes: str) -> bytes:
    return base64.b64decode(hashes, validate=True)
