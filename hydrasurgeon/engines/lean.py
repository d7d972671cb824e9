"""Graphs with few and wide operations: what runs in a millisecond is paid by the number of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
    """The exporter's own takes shapes apart in twelve operations."""
    if is_causal or enable_gqa or (mask is not None and not mask.is_floating_point()):
        return NotImplemented
    logits = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        logits = logits + mask
    return logits.softmax(dim=-1) @ v


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """In the order in which onnxruntime knows it, and makes one operation of it."""
    if approximate != "none":
        return NotImplemented
    return x * (torch.erf(x / math.sqrt(2)) + 1) * 0.5


SPELLED_OUT: dict[Any, Any] = {
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.gelu.default: _gelu,
}
"""Operations that go into a graph as they are spelled here."""


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
    gone: set[str] = set()
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
            helper.make_node(kind, read, made, name=made[0] + "_joined", **attributes)
            for kind, read, made, attributes in operations
        ]
        gone |= {node.output[0] for product in group for node in product[:2]}
    nodes = []
    for node in graph.node:
        nodes += heads.get(node.output[0], [])
        if node.output[0] not in gone:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    stored = [array for array in graph.initializer if array.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(stored)


def _products(graph: Any) -> Iterator[_Product]:
    """Products with a matrix and a bias that nothing else reads."""
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
