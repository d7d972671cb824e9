"""Which engine computes."""

from __future__ import annotations

from typing import Literal

from hydrasurgeon.options.base import RUNS, Options, option

Engine = Literal["auto", "torch", "onnx", "int8", "openvino"]
"""What computes."""
ENDING = ".onnx"
"""How the names of graphs end that are checkpoints too."""


class Engines(Options):
    """What computes the answers."""

    engine: Engine = option(
        "auto",
        metavar="auto|torch|onnx|int8|openvino",
        group=RUNS,
        recorded=True,
        help="What computes: PyTorch; on the CPU onnxruntime, in float32 or in 8 bits, or OpenVINO; "
        "auto is what the decision state was fitted for.",
    )
