"""Where a killed search continues: one JSON file beside the output, written after every removal.

It lies outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import real, sweep, write_text

__all__ = ["FORMAT", "State", "clear_search", "state_path"]

FORMAT = "hydrasurgeon.search/1"


def state_path(output: Path, key: str) -> Path:
    """`vit.safetensors`, or the directory `vit/` → `vit.circuit-avg.search.json`."""
    place = real(output)
    return place.with_name(f"{place.name.removesuffix('.safetensors')}.{key}.search.json")


@dataclass(frozen=True)
class State:
    path: Path
    identity: Mapping[str, Any]
    """What must be the same for the file to be of use: weights, data and arguments."""

    def write(self, position: Mapping[str, Any]) -> None:
        content = {"format": FORMAT, "identity": self.identity, **position}
        write_text(self.path, json.dumps(content) + "\n")

    def read(self) -> dict[str, Any] | None:
        """The position of an interrupted search; None where there is none."""
        sweep(self.path)
        if not self.path.is_file():
            return None
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}")
            identity = found["identity"]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.path}: not the state of a search ({error})", hint=self._hint
            ) from error
        wanted = json.loads(json.dumps(self.identity))
        differing = [key for key in wanted if wanted[key] != identity.get(key)]
        if differing:
            what = ", ".join(
                f"{key} ({_short(identity.get(key))}, now {_short(wanted[key])})"
                for key in differing
            )
            raise UsageError(
                f"{self.path}: an interrupted search with another {what}", hint=self._hint
            )
        position: dict[str, Any] = found
        return position

    @property
    def _hint(self) -> str:
        return f"Repeat the command that was interrupted, or delete {self.path.name} to start over."


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:56]}…"


def clear_search(output: Path, key: str) -> None:
    """What an interrupted search left is of no use once the order is written; what it did not leave stays."""
    path = state_path(output, key)
    with contextlib.suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8").startswith(f'{{"format": "{FORMAT}"'):
            path.unlink()
