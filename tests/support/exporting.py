"""Skip marks for tests of exported graphs, and inputs for onnxruntime."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from hydrasurgeon.engines.onnx.program import TORCH

exports = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2]) < TORCH,
    reason="torch is older than what graphs are captured with",
)


ONNX = ("onnx", "onnxscript", "onnxruntime")


def lacking(*packages: str) -> bool:
    """Return True if one of the packages is not installed."""
    return any(importlib.util.find_spec(name) is None for name in packages)


onnx_writes = pytest.mark.skipif(lacking(*ONNX), reason="the extra onnx is missing")


def fed(inputs: Any) -> dict[str, Any]:
    """Convert a family's inputs for onnxruntime."""
    named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    return {name: tensor.numpy() for name, tensor in named.items()}
