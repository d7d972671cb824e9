"""Interrupted work that goes on: what is kept of it says what it belongs to, and is believed only
whole and for the same work.

A state is a record of texts, with tensors where there are some; one of the texts is a hash over all
the rest:

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
from hydrasurgeon.files.manifest import first_mistake
from hydrasurgeon.files.untrusted import must, open_regular, parse_json

FORMAT = "hydrasurgeon.state"
"""The text by which a state is told from other files."""
TEXTS = {FORMAT, "identity", "position", "sha256"}
"""All that the header of a state holds."""
HEAD_BYTES = 200
"""A state says within its first bytes what it is."""
CONTINUED_BY: dict[str, tuple[str, ...]] = {}
"""Commands of which enough is on the disk to go on → the options with which each then goes on."""
Work = tuple[str, str]
"""Name of a kind of work, and the format of its states: NAME/VERSION."""


@dataclass(frozen=True)
class Resumable:
    """The file of one interrupted work; what it holds besides the texts is up to each kind."""

    path: Path
    identity: Mapping[str, Any]
    """Values that must be the same for the file to be of use: weights, data, arguments, device."""
    work: Work
    continued_by: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Commands that go on from it, and the options that tell them to."""

    def noted(self) -> None:
        """Note that the file is there, for whoever tells how an interrupted command goes on."""
        CONTINUED_BY.update(self.continued_by)

    def texts(self, position: Mapping[str, Any], weights: str = "") -> dict[str, str]:
        """Return the texts of the file; `weights` is the hash of its tensors."""
        identity = json.dumps(self.identity, sort_keys=True)
        texts = {FORMAT: self.work[1], "identity": identity, "position": json.dumps(position)}
        return {**texts, "sha256": content_hash(texts, weights)}

    def position(self, texts: Any, weights: str = "", *, most: int) -> Any:
        """Return where the work stood.

        Raises ValueError for an incomplete record, UsageError for one of other work.
        """
        complete = isinstance(texts, dict) and texts.keys() == TEXTS
        must(
            (
                complete and {*map(type, texts.values())} == {str},
                "it is incomplete",
            )
        )
        content = {name: text for name, text in texts.items() if name != "sha256"}
        sound = content_hash(content, weights) == texts["sha256"]
        must(
            (
                texts[FORMAT] == self.work[1],
                f"its format is {texts[FORMAT][:60]!r}; this version reads {self.work[1]}",
            ),
            (sound, "its content does not match its own hash"),
        )
        before = parse_json(texts["identity"], "identity", most=most)
        must((isinstance(before, dict), "its identity is not a JSON object"))
        now = json.loads(json.dumps(self.identity))
        differing = [
            f"{key[:60]} ({_short(before.get(key))}, now {_short(now.get(key))})"
            for key in {**now, **before}
            if before.get(key) != now.get(key)
        ]
        if differing:
            raise UsageError(
                f"{self.path}: an interrupted {self.work[0]} with another {', '.join(differing[:5])}",
                hint=f"Repeat the command that was interrupted. {self.remedy}",
            )
        return parse_json(texts["position"], "position", most=most)

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Report anything that cannot be read within the block as a damaged file."""
        try:
            yield
        except (CheckpointError, ValueError) as error:
            why = first_mistake(error) if isinstance(error, ValidationError) else str(error)
            raise CheckpointError(
                f"{self.path}: the state of an interrupted {self.work[0]} is damaged ({why.removeprefix(f'{self.path}: ')[:300]})",
                hint=self.remedy,
            ) from error

    @property
    def remedy(self) -> str:
        """Hint about how the work starts over."""
        return f"Delete {self.path.name}: the {self.work[0]} then starts over."

    def clear(self) -> None:
        clear(self.path, self.work)


def there(path: Path) -> bool:
    """Return True if anything is at a state's path; first remove what a killed run left."""
    sweep(path)
    return os.path.lexists(path)


def clear(path: Path, work: Work) -> None:
    """Remove a state, which is of no use once its work is done; a file of another kind stays."""
    if _is_state(path, work):
        with contextlib.suppress(OSError):  # the next command then says that it is there
            path.unlink()


def check_place(path: Path, work: Work, *, resume: bool, force: bool) -> bool:
    """Return True if there is a state to continue from.

    Refuses the work at once if a state, or another file, would be lost.
    """
    if not there(path):
        return False
    if not _is_state(path, work):
        raise (CheckpointError if resume else OutputError)(
            f"{path}: is not the state of an interrupted {work[0]}, but has the name of one",
            hint="Move it away, or give another -o.",
        )
    if not (resume or force):
        raise OutputError(
            f"{path}: an interrupted {work[0]} left its state",
            hint="Continue it with --resume, or start over with --force.",
        )
    return True


def _is_state(path: Path, work: Work) -> bool:
    """Return True if work of this kind, of any version, wrote this file."""
    with contextlib.suppress(CheckpointError, OSError), open_regular(path) as file:
        return f'"{work[1].partition("/")[0]}/'.encode() in file.read(HEAD_BYTES)
    return False


def content_hash(texts: Mapping[str, str], weights: str) -> str:
    total = hashlib.sha256()
    for name in sorted(texts):
        content = texts[name].encode("utf-8", "surrogatepass")
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    total.update(weights.encode())
    return total.hexdigest()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]}…"
