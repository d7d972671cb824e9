"""Outcomes as text, bit for bit, for the file of an interrupted search; and what else its searches write there."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from hydrasurgeon.criteria.circuits.objective import PARTS, Objective, Outcomes
from hydrasurgeon.heads import Head

DOUBLE = "<f8"
"""How outcomes are written, exactly."""
HALF = "<f2"
"""How what only guides a search is written."""
Natural = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
HeadRow = tuple[Annotated[str, Field(strict=True, max_length=20)], Natural, Natural]


class Record(BaseModel):
    """Something that a file says: every field, and no other."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
        if len(content) != count * np.dtype(dtype).itemsize:
            raise ValueError(f"{name} does not hold {count} numbers")
        numbers = np.frombuffer(content, dtype=dtype)
        if np.isnan(numbers).any():
            raise ValueError(f"{name} holds NaN")
        parts.append(torch.from_numpy(numbers.copy()))
    return Outcomes(*parts)


def these(rows: Sequence[HeadRow], candidates: Sequence[Head]) -> list[Head]:
    """Heads of a file, each once and all of them candidates; ValueError for others."""
    heads = [Head(*row) for row in rows]
    if len(set(heads)) != len(heads) or not set(heads) <= set(candidates):
        raise ValueError("names heads twice, or heads that are no candidates")
    return heads
