"""Captured graphs → ONNX, by torch's own exporter; onnxruntime runs what was written.

What runs in a millisecond is paid by the number of operations: a graph gets few and wide ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrasurgeon.engines.onnx.onnx_header import DECIDED, MEMBERS
from hydrasurgeon.engines.onnx.program import (
    BATCH,
    LENGTH,
    OUTPUTS,
    READ,
    STOCK,
    Exported,
    ImageProgram,
    Run,
    TextProgram,
    about,
    captured,
    clients_decide,
    differences,
    sample,
    settled,
    silent,
)
from hydrasurgeon.engines.onnx.runtimes import runner_of, session_of
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.runtime.classifier import Classifier

TOLERANCE = 1e-4
"""Largest difference from torch's outputs, relative where they are above 1."""
OPSET = 18
"""The version of ONNX's operators that is written: the oldest that torch's exporter has."""


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention in few operations. The exporter's own takes shapes apart in twelve."""
    if is_causal or enable_gqa or (mask is not None and not mask.is_floating_point()):
        return NotImplemented
    logits = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        logits = logits + mask
    return logits.softmax(dim=-1) @ v


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute GELU in the order that onnxruntime recognizes as one operation."""
    if approximate != "none":
        return NotImplemented
    return x * (torch.erf(x / math.sqrt(2)) + 1) * 0.5


SPELLED_OUT: dict[Any, Any] = {
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.gelu.default: _gelu,
}
"""Operations that go into a graph as they are spelled here."""


def to_onnx(
    model: Classifier, *, plain: bool = False, stock: bool = False, of: Classifier | None = None
) -> Exported:
    """Export a model to ONNX with a dynamic batch (and text length). Raise CheckFailed if
    onnxruntime's outputs differ from torch's.

    With `plain` the graph does not decide, but gives what decisions are taken by. `stock` adds
    outputs for other clients, and the members' outputs for ours. The file's metadata is that of
    `of`, if given.
    """
    inputs = sample(model, batch=BATCH, length=LENGTH)
    text = "input_ids" in inputs
    outputs: tuple[str, ...] = OUTPUTS if model.state is None else DECIDED
    with settled(model, reads=plain and bool(model.task.features)) as read:
        if plain:
            outputs = READ[:1] if read is None else READ
        elif stock:
            outputs = STOCK if clients_decide(model) else STOCK[:1]
            outputs += (MEMBERS,) if read is None else (MEMBERS, READ[1])
        graph = (TextProgram if text else ImageProgram)(model, read, plain, stock).eval()
        axes = dict.fromkeys((0, 1) if text else (0,), torch.export.Dim.DYNAMIC)
        program = captured(graph, (*inputs.values(),), (axes,) * len(inputs))
        content = written(program, (*inputs,), outputs, about(of or model))
        run = in_onnxruntime(content, outputs)
        try:
            # Unlike Python's max, this one keeps NaN.
            worst = float(differences(model, graph, run, outputs).max())
        except Exception as error:  # it has an exception of its own for every kind of failure
            raise CheckFailed(
                f"export: onnxruntime cannot run the result ({str(error).splitlines()[0]})",
                hint="Nothing was written; upgrade it, or report the model.",
            ) from error
    if not worst <= TOLERANCE:
        raise CheckFailed(
            f"export: onnxruntime's outputs differ from torch's by {worst:.3g}; allowed is {TOLERANCE:g}",
            hint="Nothing was written.",
        )
    return Exported(content, (*inputs,), outputs, run, worst)


def written(
    program: torch.export.ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    facts: Mapping[str, str],
) -> bytes:
    """Return the graph as a file, with facts on labels, thresholds and weights as metadata."""
    import onnx

    with silent(), torch.no_grad():
        program_in_onnx = torch.onnx.export(
            program.run_decompositions(SPELLED_OUT),
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program_in_onnx is not None
    proto: Any = program_in_onnx.model_proto
    _name_axes(proto.graph)
    _spell_norms_out(proto.graph)
    join_products(proto.graph)
    onnx.helper.set_model_props(proto, dict(facts))
    content: bytes = proto.SerializeToString()
    return content


def _name_axes(graph: Any) -> None:
    """Free axes by what they count, where the exporter numbers them."""
    for value in (*graph.input, *graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.dim_param:
                dimension.dim_param = "token" if axis else "batch"


def _spell_norms_out(graph: Any) -> None:
    """Write norms as the root of a sum of squares: older onnxruntimes have ReduceL2 in float32
    only.
    """
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
    """Return a function that runs the file on the processor, with tensors."""
    run = runner_of(session_of(content), outputs)

    def tensors(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        arrays = run({name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.from_numpy(values) for values in arrays]

    return tensors


_Product = tuple[Any, Any, Any, Any]
"""A linear layer of a graph: the nodes of its product and its sum, its matrix and its bias."""


def join_products(graph: Any) -> None:
    """Make one wide product of those that have one input, and split off what each gave: queries,
    keys and values, and those of all members in the layer where they leave the trunk.
    """
    from onnx import helper, numpy_helper

    groups: dict[str, list[_Product]] = {}
    for product in _products(graph):
        groups.setdefault(product[0].input[0], []).append(product)
    joined = {source: group for source, group in groups.items() if len(group) > 1}
    heads: dict[str, list[Any]] = {}
    merged_outputs: set[str] = set()
    for source, group in joined.items():
        name = f"{source}_joined"
        weights = [numpy_helper.to_array(weight) for _, _, weight, _ in group]
        arrays = {
            f"{name}_weight": np.concatenate(weights, axis=1),
            f"{name}_bias": np.concatenate([numpy_helper.to_array(bias) for *_, bias in group]),
            f"{name}_widths": np.array([weight.shape[1] for weight in weights]),
        }
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
        wide, outputs = f"{name}_product", [add.output[0] for _, add, *_ in group]
        operations: list[tuple[str, list[str], list[str], dict[str, Any]]] = [
            ("MatMul", [source, f"{name}_weight"], [wide], {}),
            ("Add", [wide, f"{name}_bias"], [name], {}),
            ("Split", [name, f"{name}_widths"], outputs, {"axis": -1}),
        ]
        heads[group[0][0].output[0]] = [
            helper.make_node(kind, read, produced, name=produced[0] + "_joined", **attributes)
            for kind, read, produced, attributes in operations
        ]
        merged_outputs |= {node.output[0] for product in group for node in product[:2]}
    nodes = []
    for node in graph.node:
        nodes += heads.get(node.output[0], [])
        if node.output[0] not in merged_outputs:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    stored = [array for array in graph.initializer if array.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(stored)


def _products(graph: Any) -> Iterator[_Product]:
    """Yield products with a matrix and a bias that nothing else reads."""
    stored = {array.name: array for array in graph.initializer}
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for node in graph.node:
        after = readers.get(node.output[0], [])
        if node.op_type != "MatMul" or [reader.op_type for reader in after] != ["Add"]:
            continue
        weight, bias = stored.get(node.input[1]), stored.get(after[0].input[1])
        if weight is None or bias is None or len(readers[weight.name]) > 1:
            continue
        if len(weight.dims) == 2 and [*bias.dims] == [weight.dims[1]]:
            yield node, after[0], weight, bias
