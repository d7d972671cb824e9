"""Predictions as text, bit for bit, for the file of an interrupted search."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from hydrasurgeon.circuits.objective import Predictions

__all__ = ["pack", "unpack"]

FIELDS = ("margin", "familiar", "foreign")


def pack(found: Predictions) -> dict[str, str]:
    return {
        name: base64.b64encode(getattr(found, name).numpy().astype("<f8").tobytes()).decode()
        for name in FIELDS
    }


def unpack(text: dict[str, Any]) -> Predictions:
    return Predictions(
        *(
            torch.from_numpy(np.frombuffer(base64.b64decode(text[name]), dtype="<f8").copy())
            for name in FIELDS
        )
    )
