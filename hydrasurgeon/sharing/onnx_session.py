"""onnxruntime, which runs what was exported, and tells nobody of it."""

from __future__ import annotations

import os
from typing import Any

SILENCE = "ORT_DISABLE_TELEMETRY"
"""Since 1.29 its Linux builds report sessions, with names and hashes of the models, to their maker unless this is set
when it is first imported."""


def quiet() -> None:
    """Before anything imports it; what the user's environment says stays."""
    os.environ.setdefault(SILENCE, "1")


def session_of(content: bytes) -> Any:
    """A graph, ready to run on the processor."""
    quiet()
    import onnxruntime

    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
