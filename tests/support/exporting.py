"""What tests of exported graphs need, and how one of them is run in onnxruntime."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from hydrasurgeon.engines.program import TORCH

exports = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2]) < TORCH,
    reason="torch is older than what graphs are captured with",
)


ONNX = ("onnx", "onnxscript", "onnxruntime")


def lacking(*packages: str) -> bool:
    """Whether one of them is not installed."""
    return any(importlib.util.find_spec(name) is None for name in packages)


onnx_writes = pytest.mark.skipif(lacking(*ONNX), reason="the extra onnx is missing")


def fed(inputs: Any) -> dict[str, Any]:
    """A family's inputs as onnxruntime takes them."""
    named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    return {name: tensor.numpy() for name, tensor in named.items()}
