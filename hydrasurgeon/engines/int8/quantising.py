"""A graph's products and embeddings in 8 bits.

A row x of what a product reads has a scale of its own, so that an answer does not depend on the
rows that are computed beside it; a column w of the weights has a step s:

    x·w ≈ (max|x| / 127) · s · round(127 x / max|x|) · round(w / s)

Processors without VNNI add two products of an unsigned and a signed byte, those of neighbouring
rows of the weights, in 16 bits. They fit if the sum of both weights is at most 128 steps.

A channel that is much larger than others takes the bits of all. What comes from a norm is therefore
balanced: its channels are multiplied by c, and the rows of the weights divided by it, with

    c = √(max|row of weights| / max|channel|)        (SmoothQuant, arXiv 2211.10438, α = ½)

What a channel is at most is seen on random inputs: after a norm it hardly depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hydrasurgeon.engines.int8 import Int8
from hydrasurgeon.engines.onnx.exporter import in_onnxruntime
from hydrasurgeon.engines.onnx.program import Exported

MOST, PAIR = 127, 128
"""Largest whole number of a number, and of two neighbouring weights of one sign."""
MIDDLE = 128
"""The byte for an input of 0: onnxruntime multiplies unsigned by signed bytes."""
CONTRIB = "com.microsoft"
"""Domain of onnxruntime's own operators."""
LARGE = 1 << 16
"""Embeddings with fewer numbers stay as they are."""
TINY = 1e-30
"""Least scale: a row of zeros is no division by zero."""


def to_int8(graph: Exported, inputs: Mapping[str, Tensor]) -> Exported:
    """Quantize a graph to 8 bits, balanced on these inputs."""
    content = quantised(graph.content, inputs)
    return replace(graph, content=content, run=in_onnxruntime(content, graph.outputs))


def quantised(content: bytes, inputs: Mapping[str, Tensor]) -> bytes:
    """Quantize a graph's file to 8 bits, balanced on these inputs. Decisions, in float64, stay as
    they are.
    """
    import onnx

    proto = onnx.load_from_string(content)
    _Quantised(proto, _largest(content, inputs)).write()
    written: bytes = proto.SerializeToString()
    return written


def _largest(content: bytes, inputs: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    """Return the largest number of each channel of every norm's output."""
    import onnx

    proto = onnx.load_from_string(content)
    norms = [node.output[0] for node in proto.graph.node if node.op_type == "LayerNormalization"]
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in norms)
    values = in_onnxruntime(proto.SerializeToString(), norms)(inputs) if norms else []
    return {
        name: np.abs(value.flatten(0, -2).numpy()).max(axis=0)
        for name, value in zip(norms, values, strict=True)
    }


class _Quantised:
    """A graph whose nodes are written anew."""

    def __init__(self, proto: Any, largest: Mapping[str, NDArray[Any]]) -> None:
        import onnx

        self.proto, self.onnx, self.largest = proto, onnx, largest
        self.constants = {
            tensor.name: tensor
            for tensor in proto.graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
        }
        self.added: list[Any] = []
        self.rows: dict[str, tuple[str, str]] = {}
        """Names of an input's bytes and of the largest number of each row, for inputs that products
        read.
        """

    def write(self) -> None:
        graph = self.proto.graph
        nodes = [new for node in graph.node for new in self._in_place_of(node)]
        del graph.node[:]
        graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input}
        kept = [tensor for tensor in (*graph.initializer, *self.added) if tensor.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        del graph.value_info[:]
        if all(opset.domain != CONTRIB for opset in self.proto.opset_import):
            self.proto.opset_import.append(self.onnx.helper.make_opsetid(CONTRIB, 1))

    def _in_place_of(self, node: Any) -> Iterator[Any]:
        if node.op_type == "MatMul" and self._is_weight(node.input[1]):
            yield from self._product(node, self._values(node.input[1]), ())
        elif node.op_type == "Gemm" and self._is_weight(node.input[1]):
            options = {attribute.name: attribute for attribute in node.attribute}
            weight = self._values(node.input[1])
            if "transB" in options and options["transB"].i:
                weight = weight.T
            yield from self._product(node, weight, node.input[2:])
        elif node.op_type == "Gather" and self._is_embedding(node):
            yield from self._looked_up(node)
        else:
            yield node

    def _is_weight(self, name: str) -> bool:
        return name in self.constants and len(self.constants[name].dims) >= 2

    def _is_embedding(self, node: Any) -> bool:
        if not self._is_weight(node.input[0]):
            return False
        along = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
        return along in ([], [0]) and np.prod(self.constants[node.input[0]].dims) >= LARGE

    def _product(self, node: Any, weight: NDArray[Any], bias: Any) -> Iterator[Any]:
        """Yield nodes that multiply bytes, and then by the scales of columns and of rows."""
        (out,) = node.output
        name = node.input[0]
        if name in self.largest:
            name, factors = f"{out}.balanced", self._factors(name, weight)
            weight = weight / factors[:, None]
            stored = self._constant(f"{out}.factors", factors)
            yield self._node("Mul", [node.input[0], stored], name)
        integers, scale = _columns(weight)
        if weight.ndim == 2:
            scale = scale[0]
        quantise, (row, largest) = self._row(name)
        yield from quantise
        inputs = [
            row,
            self._constant(f"{out}.weight", integers),
            self._constant("int8.step", np.float32(1 / MOST)),
            self._constant(f"{out}.scale", scale),
            self._constant("int8.middle", np.uint8(MIDDLE)),
        ]
        yield self._node(Int8.operator, inputs, f"{out}.unscaled", domain=CONTRIB)
        product = f"{out}.product" if bias else out
        yield self._node("Mul", [f"{out}.unscaled", largest], product)
        if bias:
            yield self._node("Add", [product, *bias], out)

    def _factors(self, name: str, weight: NDArray[Any]) -> NDArray[Any]:
        """Return factors that balance the channels of an input with the rows of weights."""
        rows = np.abs(weight).max(
            axis=tuple(axis for axis in range(weight.ndim) if axis != weight.ndim - 2)
        )
        largest = self.largest[name]
        there = (rows > TINY) & (largest > TINY)
        if not there.any():
            return np.ones_like(rows)
        # What is nothing needs no balance.
        factors = np.ones_like(rows)
        factors[there] = np.sqrt(rows[there] / largest[there])
        factors[there] /= np.median(factors[there])
        # Powers of two: the last digit of what was seen, which depends on the processor, is no part
        # of the file.
        return np.exp2(np.rint(np.log2(factors))).astype(np.float32)

    def _row(self, name: str) -> tuple[list[Any], tuple[str, str]]:
        """Return nodes that quantise an input, unless another product has done so, and the names of
        its bytes and largest numbers.
        """
        if name in self.rows:
            return [], self.rows[name]
        row = self.rows[name] = f"{name}.bytes", f"{name}.largest"
        axis = self._constant("int8.last", np.array([-1]))
        step = self._constant("int8.step", np.float32(1 / MOST))
        middle = self._constant("int8.middle", np.uint8(MIDDLE))
        nodes = [
            self._node("Abs", [name], f"{name}.abs"),
            self._node("ReduceMax", [f"{name}.abs", axis], row[1], keepdims=1),
            self._node("Div", [name, row[1]], f"{name}.unit"),
            self._node("QuantizeLinear", [f"{name}.unit", step, middle], row[0]),
        ]
        return nodes, row

    def _looked_up(self, node: Any) -> Iterator[Any]:
        """Yield nodes that multiply the bytes of an embedding by its scale."""
        (out,) = node.output
        table, at = node.input
        values = self._values(table)
        integers, scale = _in_steps(values, np.abs(values).max(axis=-1, keepdims=True) / MOST)
        for name, values in (("bytes", integers), ("scale", scale)):
            stored = self._constant(f"{table}.{name}", values)
            yield self._node("Gather", [stored, at], f"{out}.{name}", axis=0)
        number = self.onnx.TensorProto.FLOAT
        yield self._node("Cast", [f"{out}.bytes"], f"{out}.numbers", to=number)
        yield self._node("Mul", [f"{out}.numbers", f"{out}.scale"], out)

    def _values(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self.onnx.numpy_helper.to_array(self.constants[name])
        return values

    def _constant(self, name: str, values: Any) -> str:
        if all(tensor.name != name for tensor in self.added):
            self.added.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def _node(self, kind: str, inputs: list[str], output: str, **options: Any) -> Any:
        return self.onnx.helper.make_node(kind, inputs, [output], name=output, **options)


def _columns(weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weights as whole numbers, and the step of each column."""
    rows = weight.shape[-2]
    # In float64, for in float32 products of small or large neighbours lose their sign.
    padded = np.zeros((*weight.shape[:-2], rows + rows % 2, weight.shape[-1]))
    padded[..., :rows, :] = weight
    first, second = padded[..., ::2, :], padded[..., 1::2, :]
    sums = np.where(first * second > 0, np.abs(first + second), 0)
    # Rounding adds half a step to each of a pair.
    steps = [np.abs(weight).max(axis=-2) / MOST, sums.max(axis=-2) / (PAIR - 1)]
    return _in_steps(weight, np.maximum(*steps)[..., None, :])


def _in_steps(values: NDArray[Any], step: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return values as whole numbers of steps, and the steps."""
    step = np.maximum(step, TINY)
    return np.rint(values / step).astype(np.int8), step.astype(np.float32)
