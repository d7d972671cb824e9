"""Captured graphs → ONNX, by torch's own exporter; onnxruntime must give torch's outputs before the file is kept."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.sharing.onnx_session import session_of
from hydrasurgeon.sharing.program import Captured, about, captured_program, differences

OPSET = 18
"""The version of ONNX's operators that is written: the oldest that torch's exporter has."""
TOLERANCE = 1e-4
"""Largest difference from torch's outputs; of OOD scores, which have no scale of their own, relative to those above
1."""


@dataclass(frozen=True)
class Exported:
    content: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_difference: float
    """Largest difference of any output between onnxruntime and torch, over two batch sizes."""


def to_onnx(model: Classifier) -> Exported:
    """An ONNX model with a dynamic batch (and text length), proven to give torch's outputs."""
    with captured_program(model) as captured:
        content = described(converted(captured.program, captured.inputs, captured.outputs), about(model))
        worst = _difference(content, captured)
    return Exported(content, captured.inputs, captured.outputs, worst)


def converted(program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """The graph as onnx's own record."""
    with silent(), torch.no_grad():
        made = torch.onnx.export(
            program,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    return made.model_proto


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """The exporter and its helpers print, warn and log what only concerns their authors."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def described(proto: Any, facts: Mapping[str, str]) -> bytes:
    """The same file, which says in its metadata what the labels and thresholds are, and of which weights."""
    import onnx

    _name_axes(proto.graph)
    _spell_norms_out(proto.graph)
    onnx.helper.set_model_props(proto, dict(facts))
    described: bytes = proto.SerializeToString()
    return described


def _name_axes(graph: Any) -> None:
    """Free axes by what they count, where the exporter numbers them."""
    for value in (*graph.input, *graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.dim_param:
                dimension.dim_param = "token" if axis else "batch"


def _spell_norms_out(graph: Any) -> None:
    """Norms as the root of a sum of squares: older onnxruntimes have ReduceL2 in float32 only."""
    import onnx

    nodes = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "ReduceL2":
            norm, squares = node.output[0], f"{node.output[0]}_squared"
            node.op_type, node.output[0] = "ReduceSumSquare", squares
            nodes.append(onnx.helper.make_node("Sqrt", [squares], [norm], name=f"{node.name}_root"))
    if len(nodes) > len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _difference(content: bytes, captured: Captured) -> float:
    try:
        session = session_of(content)

        def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
            fed = {name: tensor.numpy() for name, tensor in inputs.items()}
            return [torch.from_numpy(made) for made in session.run(list(captured.outputs), fed)]

        apart = differences(captured, run)
    except Exception as error:  # onnxruntime has an exception of its own for every kind of failure
        raise CheckFailed(
            f"export: onnxruntime cannot run the result ({str(error).splitlines()[0]})",
            hint="Nothing was written; upgrade onnxruntime, or report the model.",
        ) from error
    worst = float(apart.max())  # unlike Python's max, this one keeps NaN
    if not worst <= TOLERANCE:
        raise CheckFailed(
            f"export: onnxruntime's outputs differ from torch's by {worst:.3g}; allowed is {TOLERANCE:g}",
            hint="Nothing was written.",
        )
    return worst
