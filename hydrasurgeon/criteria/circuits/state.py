"""Where a killed search continues: one JSON file beside the output, written after every removal.

It lies outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hydrasurgeon.files.atomic import real, write_text
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.resumable import Resumable, Work, clear, there

SEARCH = Work("search", "hydrasurgeon.search", 3)
"""What the state of a search calls itself; the third version has counts for every removal."""
# The effects of a thousand heads on fifty thousand samples.
MAX_STATE = 1 << 29
Number = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Score = Annotated[float, Field(strict=True)]
Size = Annotated[float, Field(strict=True, ge=0)]


def state_path(output: Path, key: str) -> Path:
    """`vit.safetensors`, or the directory `vit/` → `vit.circuit-avg.search.json`."""
    place = real(output)
    return place.with_name(f"{place.name.removesuffix('.safetensors')}.{key}.search.json")


class SearchPosition(BaseModel):
    """Where a search stood, as its file says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    order: tuple[tuple[str, Number, Number], ...] = Field(min_length=1)
    trace: tuple[Score, ...]
    start: Score
    counts: tuple[dict[str, Number | Size], ...]
    """What was computed up to each removal: an order has prefixes, and a shorter search would have counted so far."""
    memory: dict[str, Any]
    """What the search itself gave; it checks that when it is told."""

    @model_validator(mode="after")
    def _a_score_for_each(self) -> SearchPosition:
        if not len(self.order) == len(self.trace) == len(self.counts):
            raise ValueError(f"{len(self.trace)} scores and {len(self.counts)} counts for {len(self.order)} heads")
        return self


@dataclass(frozen=True)
class SearchState(Resumable):
    """The state of one search."""

    work: ClassVar[Work] = SEARCH

    def write(self, position: Mapping[str, Any]) -> None:
        write_text(self.path, json.dumps(self.texts(position)) + "\n")

    def read(self) -> SearchPosition | None:
        """Where an interrupted search stood; None where there is none."""
        if not there(self.path):
            return None
        with self.judged():
            texts = read_json(self.path, most=MAX_STATE)
            return SearchPosition.model_validate(self.position(texts, most=MAX_STATE))


def clear_search(output: Path, key: str) -> None:
    """What an interrupted search left is of no use once the order is written."""
    clear(state_path(output, key), SEARCH)
