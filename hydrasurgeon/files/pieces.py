"""Answered rows of an output that is not whole yet, so that a repeated command goes on.

They lie beside the output in `.NAME.unfinished/`, one file for each piece of rows: lines of JSON
behind the hash of these lines. The name of a file is a hash of all that its rows depend on, so that
rows of other data, another model or other options are never found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrasurgeon.files.atomic import make_folder, remove, write_bytes
from hydrasurgeon.files.resumable import CONTINUED_BY
from hydrasurgeon.files.rows import Row, line

FORMAT = "hydrasurgeon.pieces/1"
"""Text that the names of pieces begin with before they are hashed."""
SUFFIX = ".jsonl"
"""Suffix of a piece's name."""


class Pieces:
    """The pieces of one output that were answered."""

    def __init__(self, place: Path, command: str, identity: Mapping[str, Any]) -> None:
        """Open the pieces of an output.

        `identity` holds all that every row depends on: the model, the options, the versions.
        """
        self.folder = place.with_name(f".{place.name}.unfinished")
        self.command = command
        self._identity = json.dumps([FORMAT, identity], sort_keys=True).encode()

    @property
    def are_there(self) -> bool:
        """Return whether an interrupted command left any."""
        return self.folder.is_dir()

    def path(self, contents: Iterable[bytes]) -> Path:
        """Return the place of a piece, by the contents of its samples."""
        total = hashlib.sha256(self._identity)
        for content in contents:
            total.update(b"%d\0" % len(content))
            total.update(content)
        return self.folder / f"{total.hexdigest()[:40]}{SUFFIX}"

    def read(self, path: Path) -> list[Row] | None:
        """Return the rows of a piece; None where it is missing or damaged."""
        if not path.is_file():
            return None
        digest, _, lines = path.read_bytes().partition(b"\n")
        if digest.decode(errors="replace") != hashlib.sha256(lines).hexdigest():
            return None
        self._noted()
        return [json.loads(text) for text in lines.split(b"\n") if text]

    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """Keep a piece."""
        lines = "".join(f"{line(row)}\n" for row in rows).encode()
        make_folder(self.folder)
        write_bytes(path, hashlib.sha256(lines).hexdigest().encode() + b"\n" + lines)
        self._noted()

    def clear(self) -> None:
        """Remove all pieces: the output is whole."""
        remove(self.folder)
        CONTINUED_BY.pop(self.command, None)

    def _noted(self) -> None:
        CONTINUED_BY[self.command] = ()
