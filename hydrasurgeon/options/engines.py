"""Which engine computes."""

from __future__ import annotations

from typing import Literal

from hydrasurgeon.options.base import RUNS, Options, option

ENDING = ".onnx"
"""How the names of graphs end that are checkpoints too."""


class Engines(Options):
    """What computes the answers."""

    engine: Literal["torch", "onnx"] = option(
        "torch",
        metavar="torch|onnx",
        group=RUNS,
        recorded=True,
        help="What computes: PyTorch, or onnxruntime on the CPU in float32.",
    )
