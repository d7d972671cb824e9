"""What tests of exported graphs need, and how one of them is run in onnxruntime."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hydrasurgeon.sharing.program import TORCH

__all__ = ["exports", "fed"]

exports = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2]) < TORCH,
    reason="torch is older than what graphs are captured with",
)


def fed(inputs: Any) -> dict[str, Any]:
    """A family's inputs as onnxruntime takes them."""
    named = inputs if isinstance(inputs, dict) else {"pixel_values": inputs}
    return {name: tensor.numpy() for name, tensor in named.items()}
