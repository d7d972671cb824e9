"""The engine `int8`: a graph's products and embeddings in 8 bits.

A row x of what a product reads has a scale of its own, so that an answer does not depend on the
rows that are computed beside it; a column w of the weights has one too:

    x·w ≈ (max|x| / 127) · (max|w| / 63) · round(127 x / max|x|) · round(63 w / max|w|)

Weights take 7 of their 8 bits: two products of an unsigned and a signed byte then fit into 16 bits,
where processors without VNNI add them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.engines.onnx import in_onnxruntime
from hydrasurgeon.engines.program import Exported

INPUTS, WEIGHTS = 127, 63
"""Largest whole number of an input and of a weight."""
MIDDLE = 128
"""What stands for an input of 0: onnxruntime multiplies unsigned by signed bytes."""
CONTRIB = "com.microsoft"
"""Domain of onnxruntime's own operators."""
LARGE = 1 << 16
"""Embeddings with fewer numbers stay as they are."""
TINY = 1e-30
"""Least scale: a row of zeros is no division by zero."""


def to_int8(made: Exported) -> Exported:
    """The same graph in 8 bits."""
    content = quantised(made.content)
    return replace(made, content=content, run=in_onnxruntime(content, made.outputs))


def quantised(content: bytes) -> bytes:
    """A graph's file in 8 bits; what decides, in float64, stays as it is."""
    import onnx

    proto = onnx.load_from_string(content)
    _Quantised(proto).write()
    written: bytes = proto.SerializeToString()
    return written


class _Quantised:
    """A graph whose nodes are written anew."""

    def __init__(self, proto: Any) -> None:
        import onnx

        self.proto, self.onnx = proto, onnx
        self.constants = {
            tensor.name: tensor
            for tensor in proto.graph.initializer
            if tensor.data_type == onnx.TensorProto.FLOAT
        }
        self.added: list[Any] = []
        self.rows: dict[str, tuple[str, str]] = {}
        """Of an input that products read: its bytes, and the largest number of each row."""

    def write(self) -> None:
        graph = self.proto.graph
        nodes = [new for node in graph.node for new in self._in_place_of(node)]
        del graph.node[:]
        graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input}
        kept = [each for each in (*graph.initializer, *self.added) if each.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        del graph.value_info[:]
        if all(each.domain != CONTRIB for each in self.proto.opset_import):
            self.proto.opset_import.append(self.onnx.helper.make_opsetid(CONTRIB, 1))

    def _in_place_of(self, node: Any) -> Iterator[Any]:
        if node.op_type == "MatMul" and self._is_weight(node.input[1]):
            yield from self._product(node, self._values(node.input[1]), ())
        elif node.op_type == "Gemm" and self._is_weight(node.input[1]):
            options = {each.name: each for each in node.attribute}
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
        along = [each.i for each in node.attribute if each.name == "axis"]
        return along in ([], [0]) and np.prod(self.constants[node.input[0]].dims) >= LARGE

    def _product(self, node: Any, weight: NDArray[Any], bias: Any) -> Iterator[Any]:
        """Bytes times bytes, then the scales of columns and of rows."""
        (out,) = node.output
        whole, scale = _whole(weight, WEIGHTS, axis=-2)
        if weight.ndim == 2:
            scale = scale[0]
        quantise, (row, largest) = self._row(node.input[0])
        yield from quantise
        inputs = [
            row,
            self._constant(f"{out}.weight", whole),
            self._constant("int8.step", np.float32(1 / INPUTS)),
            self._constant(f"{out}.scale", scale),
            self._constant("int8.middle", np.uint8(MIDDLE)),
        ]
        yield self._node("MatMulIntegerToFloat", inputs, f"{out}.unscaled", domain=CONTRIB)
        product = f"{out}.product" if bias else out
        yield self._node("Mul", [f"{out}.unscaled", largest], product)
        if bias:
            yield self._node("Add", [product, *bias], out)

    def _row(self, name: str) -> tuple[list[Any], tuple[str, str]]:
        """Nodes that make bytes of an input, unless another product has them already; and where
        bytes and largest numbers are.
        """
        if name in self.rows:
            return [], self.rows[name]
        row = self.rows[name] = f"{name}.bytes", f"{name}.largest"
        axis = self._constant("int8.last", np.array([-1]))
        tiny = self._constant("int8.tiny", np.float32(TINY))
        step = self._constant("int8.step", np.float32(1 / INPUTS))
        middle = self._constant("int8.middle", np.uint8(MIDDLE))
        nodes = [
            self._node("Abs", [name], f"{name}.abs"),
            self._node("ReduceMax", [f"{name}.abs", axis], f"{name}.max", keepdims=1),
            self._node("Max", [f"{name}.max", tiny], row[1]),
            self._node("Div", [name, row[1]], f"{name}.unit"),
            self._node("QuantizeLinear", [f"{name}.unit", step, middle], row[0]),
        ]
        return nodes, row

    def _looked_up(self, node: Any) -> Iterator[Any]:
        """Bytes of an embedding times its scale."""
        (out,) = node.output
        table, at = node.input
        whole, scale = _whole(self._values(table), INPUTS, axis=-1)
        for name, values in (("bytes", whole), ("scale", scale)):
            stored = self._constant(f"{table}.{name}", values)
            yield self._node("Gather", [stored, at], f"{out}.{name}", axis=0)
        number = self.onnx.TensorProto.FLOAT
        yield self._node("Cast", [f"{out}.bytes"], f"{out}.numbers", to=number)
        yield self._node("Mul", [f"{out}.numbers", f"{out}.scale"], out)

    def _values(self, name: str) -> NDArray[Any]:
        values: NDArray[Any] = self.onnx.numpy_helper.to_array(self.constants[name])
        return values

    def _constant(self, name: str, values: Any) -> str:
        if all(each.name != name for each in self.added):
            self.added.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def _node(self, kind: str, inputs: list[str], output: str, **options: Any) -> Any:
        return self.onnx.helper.make_node(kind, inputs, [output], name=output, **options)


def _whole(weight: NDArray[Any], most: int, *, axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Weights as whole numbers from −most to most, and the scale of each column or row."""
    scale = np.maximum(np.abs(weight).max(axis=axis, keepdims=True), TINY) / most
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)
