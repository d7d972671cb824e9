"""The engine `openvino`: OpenVINO runs the graphs of the others on the processor, that of `onnx` in
bfloat16 or that of `int8` as it is.

Which of them is faster depends on the processor. `calibrate --engine openvino` measures both, and
the decision state says which it was fitted to.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.engines.session import Arrays, Run, threads
from hydrasurgeon.files.decided import Decision, Precision

OPENVINO = "openvino"
"""What the engine is called; with a precision behind it, one of its two."""
GRAPH_OF = {"bfloat16": "onnx", "int8": "int8"}
"""The engine whose graph is run in a precision."""
FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""What processors of one kind share, as Linux calls it: rounding depends on it."""
POLL = 100
"""Milliseconds after which Python looks whether a signal came."""


def precisions() -> tuple[Precision, ...]:
    """What this processor has instructions for, the nearest to float32 first."""
    return ("bfloat16", "int8") if _has_bfloat16() else ("int8",)


def precision_of(decision: Decision | None) -> Precision:
    """What a decision state was fitted to, or else the nearest to float32."""
    if decision is None or decision.openvino is None:
        return precisions()[0]
    return decision.openvino.precision


@cache
def processor() -> tuple[str, ...]:
    """The flags of this processor; none where Linux does not tell."""
    place = Path("/proc/cpuinfo")
    lines = place.read_text().splitlines() if place.exists() else []
    words = next((line.split() for line in lines if line.startswith("flags")), [])
    return tuple(flag for flag in FLAGS if flag in words)


def run_of(graph: bytes | Path, outputs: Sequence[str], precision: str) -> Run:
    """What runs a graph; signals are heard while it does."""
    in_bfloat16 = precision == "bfloat16" and _has_bfloat16()
    options: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": "bf16" if in_bfloat16 else "f32",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # several workers would share one core
    }
    if threads():
        options["INFERENCE_NUM_THREADS"] = threads()
    core = _core()
    compiled = core.compile_model(core.read_model(graph), "CPU", options)

    def run(inputs: Arrays) -> Sequence[NDArray[Any]]:
        request = compiled.create_infer_request()
        request.start_async({name: np.ascontiguousarray(each) for name, each in inputs.items()})
        try:
            while not request.wait_for(POLL):
                pass
        except BaseException:
            request.cancel()
            raise
        return [np.array(request.get_tensor(name).data) for name in outputs]

    return run


def _has_bfloat16() -> bool:
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def _core() -> Any:
    # It reports each import to its maker where this package is found, unless a file in the home
    # directory says no.
    modules: dict[str, Any] = sys.modules
    modules.setdefault("openvino_telemetry", None)
    import openvino

    return openvino.Core()
