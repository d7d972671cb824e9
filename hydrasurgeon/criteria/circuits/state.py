"""Where a killed search continues: one JSON file beside the output, written after every removal.

It lies outside of a directory that is being made: that one appears as a whole, when all is done.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, model_validator

from hydrasurgeon.criteria.circuits import SEARCH
from hydrasurgeon.criteria.circuits.objective import PARTS, Objective, Outcomes
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.decided import Record
from hydrasurgeon.files.foreign import read_json
from hydrasurgeon.files.resumable import Resumable, Work, there
from hydrasurgeon.heads import Head

DOUBLE = "<f8"
"""How outcomes are written, exactly."""
HALF = "<f2"
"""How what only guides a search is written."""
# The effects of a thousand heads on fifty thousand samples.
MAX_STATE = 1 << 29
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Score = Annotated[float, Field(strict=True)]
Size = Annotated[float, Field(strict=True, ge=0)]
HeadRow = tuple[Annotated[str, Field(strict=True, max_length=20)], Natural, Natural]


class Packed(Record):
    """Outcomes in base 64."""

    margin: str
    familiar: str
    foreign: str


def pack(outcomes: Outcomes, dtype: str = DOUBLE) -> dict[str, str]:
    return {name: base64.b64encode(getattr(outcomes, name).numpy().astype(dtype).tobytes()).decode() for name in PARTS}


def rows_of(objective: Objective) -> tuple[int, int, int]:
    """How many samples the parts of predictions have."""
    return objective.id_rows, objective.id_rows, objective.ood_rows if objective.needs_ood else 0


def unpack(packed: Packed, rows: Sequence[int], dtype: str = DOUBLE) -> Outcomes:
    """Parts of so many numbers each; ValueError for others, and for NaN."""
    parts = []
    for name, count in zip(PARTS, rows, strict=True):
        content = base64.b64decode(getattr(packed, name), validate=True)
        numbers = np.frombuffer(content, dtype) if len(content) == count * np.dtype(dtype).itemsize else None
        if numbers is None or np.isnan(numbers).any():
            raise ValueError(f"{name} does not hold {count} numbers")
        parts.append(torch.from_numpy(numbers.copy()))
    return Outcomes(*parts)


def these(rows: Sequence[HeadRow], candidates: Sequence[Head]) -> list[Head]:
    """Heads of a file, each once and all of them candidates; ValueError for others."""
    heads = [Head(*row) for row in rows]
    if len(set(heads)) != len(heads) or not set(heads) <= set(candidates):
        raise ValueError("names heads twice, or heads that are no candidates")
    return heads


class SearchPosition(Record):
    """Where a search stood, as its file says."""

    order: tuple[HeadRow, ...] = Field(min_length=1)
    trace: tuple[Score, ...]
    start: Score
    counts: tuple[dict[str, Natural | Size], ...]
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

    work: Work = SEARCH

    def write(self, position: Mapping[str, Any]) -> None:
        write_text(self.path, json.dumps(self.texts(position)) + "\n")

    def read(self) -> SearchPosition | None:
        """Where an interrupted search stood; None where there is none."""
        if not there(self.path):
            return None
        with self.judged():
            texts = read_json(self.path, most=MAX_STATE)
            return SearchPosition.model_validate(self.position(texts, most=MAX_STATE))
