"""Captured graphs → ONNX, by torch's own exporter; onnxruntime runs what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.engines.lean import SPELLED_OUT, join_products
from hydrasurgeon.engines.program import (
    Exported,
    Run,
    exported,
    silent,
)
from hydrasurgeon.engines.session import session_of, wanted
from hydrasurgeon.runtime.classifier import Classifier

OPSET = 18
"""The version of ONNX's operators that is written: the oldest that torch's exporter has."""


def to_onnx(
    model: Classifier, *, plain: bool = False, stock: bool = False, of: Classifier | None = None
) -> Exported:
    """An ONNX model with a dynamic batch (and text length), proven to give torch's outputs."""
    return exported(model, written, "onnxruntime", plain=plain, stock=stock, of=of)


def written(
    program: torch.export.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    facts: Mapping[str, str],
) -> tuple[bytes, Run]:
    """The graph as a file that says what the labels and thresholds are, and of which weights; and
    what runs it.
    """
    import onnx

    with silent(), torch.no_grad():
        made = torch.onnx.export(
            program.run_decompositions(SPELLED_OUT),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    proto: Any = made.model_proto
    _name_axes(proto.graph)
    _spell_norms_out(proto.graph)
    join_products(proto.graph)
    onnx.helper.set_model_props(proto, dict(facts))
    content: bytes = proto.SerializeToString()
    return content, in_onnxruntime(content, outputs)


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


def in_onnxruntime(content: bytes, outputs: Sequence[str]) -> Run:
    """The file, ready to run on the processor, with tensors."""
    run = wanted(session_of(content), outputs)

    def tensors(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        made = run({name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(values) for values in made]

    return tensors
