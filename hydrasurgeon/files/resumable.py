"""Interrupted work that goes on: what is kept of it says what it belongs to, and is believed only whole and for the
same work.

A state is a record of texts, with tensors where there are some; one of the texts is a hash over all the rest:

    sha256 = sha256( Σ name · length · text · weights_sha256 )    over format, identity and position
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from hydrasurgeon.errors import CheckpointError, OutputError, UsageError
from hydrasurgeon.files.atomic import sweep
from hydrasurgeon.files.foreign import open_regular, parse_json
from hydrasurgeon.files.manifest import first_mistake

FORMAT = "hydrasurgeon.state"
"""The text by which a state is told from other files."""
TEXTS = {FORMAT, "identity", "position", "sha256"}
"""All that the header of a state holds."""
DONE = "The output is written, and the state of no more use: delete it."
"""What to do where a state is still there after its work."""
HEAD_BYTES = 200
"""A state says within its first bytes what it is."""


@dataclass(frozen=True)
class Work:
    """A kind of work that goes on where it was interrupted."""

    name: str
    format: str
    """What its states call themselves, without the version."""
    version: int


@dataclass(frozen=True)
class Resumable:
    """The file of one interrupted work; what it holds besides the texts is up to each kind."""

    work: ClassVar[Work]

    path: Path
    identity: Mapping[str, Any]
    """What must be the same for the file to be of use: weights, data, arguments, device."""

    def texts(self, position: Mapping[str, Any], weights: str = "") -> dict[str, str]:
        """What the file says; `weights` is the hash of its tensors."""
        texts = {
            FORMAT: f"{self.work.format}/{self.work.version}",
            "identity": json.dumps(self.identity, sort_keys=True),
            "position": json.dumps(position),
        }
        return {**texts, "sha256": content_hash(texts, weights)}

    def position(self, texts: Any, weights: str = "", *, most: int) -> Any:
        """Where the work stood; ValueError for a record that is not whole, UsageError for one of other work."""
        if not isinstance(texts, dict) or texts.keys() != TEXTS or not all(isinstance(t, str) for t in texts.values()):
            raise ValueError("it does not say what a state says")
        expected = f"{self.work.format}/{self.work.version}"
        if texts[FORMAT] != expected:
            raise ValueError(f"its format is {texts[FORMAT][:60]!r}; this version reads {expected}")
        if texts["sha256"] != content_hash({k: v for k, v in texts.items() if k != "sha256"}, weights):
            raise ValueError("its content does not match its own hash")
        self._check_same(parse_json(texts["identity"], "identity", most=most))
        return parse_json(texts["position"], "position", most=most)

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Whatever cannot be read within the block makes the file a damaged one."""
        try:
            yield
        except (CheckpointError, ValueError) as error:
            why = first_mistake(error) if isinstance(error, ValidationError) else str(error)
            raise CheckpointError(
                f"{self.path}: the state of an interrupted {self.work.name} is damaged "
                f"({why.removeprefix(f'{self.path}: ')[:300]})",
                hint=self.remedy,
            ) from error

    @property
    def remedy(self) -> str:
        """How the work starts over."""
        return f"Delete {self.path.name}: the {self.work.name} then starts over."

    def _check_same(self, recorded: Any) -> None:
        if not isinstance(recorded, dict):
            raise ValueError("its identity is no record")
        before, now = _flat(recorded), _flat(json.loads(json.dumps(self.identity)))
        differing = [
            f"{name[:60]} ({_short(before.get(name))}, now {_short(now.get(name))})"
            for name in {**now, **before}
            if (name in before, before.get(name)) != (name in now, now.get(name))
        ]
        if differing:
            more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
            raise UsageError(
                f"{self.path}: an interrupted {self.work.name} with another {', '.join(differing[:5])}{more}",
                hint=f"Repeat the command that was interrupted. {self.remedy}",
            )

    def clear(self, *, next: str = DONE) -> None:
        clear(self.path, self.work, next=next)


def there(path: Path) -> bool:
    """Whether anything lies where a state would; what a killed run left half-written is removed."""
    sweep(path)
    return os.path.lexists(path)


def clear(path: Path, work: Work, *, next: str = DONE) -> None:
    """A state is of no use once its work is done; a file of another kind stays. `next` is what to do where it cannot
    go."""
    if not _is_state(path, work):
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: the state of the {work.name} cannot be removed ({error.strerror or error})", hint=next
        ) from error


def check_place(path: Path, work: Work, *, resume: bool, force: bool) -> bool:
    """Whether there is a state to continue from; refused before the work where it, or something else, would be lost."""
    if not there(path):
        return False
    if not _is_state(path, work):
        if resume:
            raise CheckpointError(
                f"{path}: is no state of an interrupted {work.name}, or a damaged one",
                hint=f"Move it away or delete it: the {work.name} then starts over.",
            )
        raise OutputError(
            f"{path}: is no state of an interrupted {work.name}, and would stand where one is kept",
            hint="Move it away, or give another -o.",
        )
    if not (resume or force):
        raise OutputError(
            f"{path}: an interrupted {work.name} left its state",
            hint="Continue it with --resume, or start over with --force.",
        )
    return True


def _is_state(path: Path, work: Work) -> bool:
    """Whether work of this kind, of any version, wrote this file."""
    with contextlib.suppress(CheckpointError, OSError), open_regular(path) as file:
        return f'"{work.format}/'.encode() in file.read(HEAD_BYTES)
    return False


def content_hash(texts: Mapping[str, str], weights: str) -> str:
    total = hashlib.sha256()
    for name in sorted(texts):
        content = texts[name].encode("utf-8", "surrogatepass")
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    total.update(weights.encode())
    return total.hexdigest()


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """What lies within records and lists by its place, so that a difference is named and not shown as a whole."""
    parts = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    if not parts:
        return {name: value} if name else {}
    flat: dict[str, Any] = {}
    for key, part in parts.items():
        flat |= _flat(part, f"{name}.{key}" if name else str(key))
    return flat


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]}…"
