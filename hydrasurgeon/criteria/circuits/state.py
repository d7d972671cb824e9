"""Where a killed search continues: one JSON file beside the output, written after every removal.

It lies outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.atomic import real, sweep, write_text
from hydrasurgeon.files.foreign import read_json

__all__ = ["FORMAT", "Position", "State", "clear_search", "state_path"]

FORMAT = "hydrasurgeon.search/1"
# The effects of a thousand heads on fifty thousand samples.
MAX_STATE = 1 << 29
Number = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Score = Annotated[float, Field(strict=True)]


def state_path(output: Path, key: str) -> Path:
    """`vit.safetensors`, or the directory `vit/` → `vit.circuit-avg.search.json`."""
    place = real(output)
    return place.with_name(f"{place.name.removesuffix('.safetensors')}.{key}.search.json")


class Position(BaseModel):
    """Where a search stood, as its file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["hydrasurgeon.search/1"]
    identity: dict[str, Any]
    order: tuple[tuple[str, Number, Number], ...] = Field(min_length=1)
    trace: tuple[Score, ...]
    start: Score
    memory: dict[str, Any]
    """What the search itself gave; it checks that when it is told."""

    @model_validator(mode="after")
    def _a_score_for_each(self) -> Position:
        if len(self.order) != len(self.trace):
            raise ValueError(f"{len(self.trace)} scores for {len(self.order)} heads")
        return self


@dataclass(frozen=True)
class State:
    path: Path
    identity: Mapping[str, Any]
    """What must be the same for the file to be of use: weights, data and arguments."""

    def write(self, position: Mapping[str, Any]) -> None:
        content = {"format": FORMAT, "identity": self.identity, **position}
        write_text(self.path, json.dumps(content) + "\n")

    def read(self) -> Position | None:
        """Where an interrupted search stood; None where there is none."""
        sweep(self.path)
        if not os.path.lexists(self.path):
            return None
        content = read_json(self.path, most=MAX_STATE, error=UsageError)
        try:
            position = Position.model_validate(content)
        except ValidationError as error:
            raise self.unfit(error) from error
        identity, wanted = position.identity, json.loads(json.dumps(self.identity))
        differing = [key for key in wanted if wanted[key] != identity.get(key)]
        if differing:
            what = ", ".join(
                f"{key} ({_short(identity.get(key))}, now {_short(wanted[key])})"
                for key in differing
            )
            raise UsageError(
                f"{self.path}: an interrupted search with another {what}", hint=self._hint
            )
        return position

    def unfit(self, error: ValueError) -> UsageError:
        """What cannot be the state of this search, and why."""
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = ": ".join((".".join(map(str, first["loc"])), first["msg"]))
        return UsageError(f"{self.path}: not the state of a search ({why[:200]})", hint=self._hint)

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
