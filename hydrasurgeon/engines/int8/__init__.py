"""The engine `int8`: onnxruntime runs a graph whose products and embeddings are in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydrasurgeon.engines.onnx import Onnx

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.engines.onnx.program import Exported


class Int8(Onnx):
    name = "int8"
    help = "onnxruntime in 8 bits, on the CPU"
    exact = False
    operator = "MatMulIntegerToFloat"

    @property
    def files(self) -> tuple[str, ...]:
        from hydrasurgeon.checkpoints.folder import GRAPHS_INT8

        return GRAPHS_INT8

    def converted(self, graph: Exported, inputs: Mapping[str, Tensor]) -> Exported:
        from hydrasurgeon.engines.int8.quantising import to_int8

        return to_int8(graph, inputs)
