"""Predictions as text, bit for bit, for the file of an interrupted search."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from hydrasurgeon.criteria.circuits.objective import PARTS, Predictions

__all__ = ["HALF", "pack", "unpack"]

DOUBLE, HALF = "<f8", "<f2"


def pack(found: Predictions, dtype: str = DOUBLE) -> dict[str, str]:
    return {
        name: base64.b64encode(getattr(found, name).numpy().astype(dtype).tobytes()).decode()
        for name in PARTS
    }


def unpack(text: dict[str, Any], dtype: str = DOUBLE) -> Predictions:
    return Predictions(
        *(
            torch.from_numpy(np.frombuffer(base64.b64decode(text[name]), dtype=dtype).copy())
            for name in PARTS
        )
    )
