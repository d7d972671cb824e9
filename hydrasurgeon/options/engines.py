"""Which engine computes."""

from __future__ import annotations

from typing import Literal

from hydrasurgeon.options.base import RUNS, Options, option

Engine = Literal["auto", "torch", "onnx", "int8"]
"""What computes."""
ENDING = ".onnx"
"""How the names of graphs end that are checkpoints too."""


class Engines(Options):
    """What computes the answers."""

    engine: Engine = option(
        "auto",
        metavar="auto|torch|onnx|int8",
        group=RUNS,
        recorded=True,
        help="What computes: PyTorch, or onnxruntime on the CPU, in float32 or in 8 bits; auto is "
        "what the decision state was fitted for.",
    )
