"""The engine `onnx`: onnxruntime runs a model's graph in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hydrasurgeon.engines.base import EngineKind, Parts

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.engines.onnx.program import Exported
    from hydrasurgeon.runtime.answering import Engine

MANY = 4096
"""Rows from which making a graph costs less than it saves: ten seconds, against three milliseconds a
row.
"""
ENDING = ".onnx"
"""Ending of exported graphs."""


class Onnx(EngineKind):
    name = "onnx"
    help = "onnxruntime in float32, on the CPU"
    packages = ("onnxruntime",)
    makers = ("onnx", "onnxscript")
    graph = True
    operator: ClassVar[str | None] = None
    """An operator that only this engine's graphs have."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of its graph in a folder, of which we read the first."""
        from hydrasurgeon.checkpoints.folder import GRAPH

        return (GRAPH,)

    def reads(self, spec: str) -> bool:
        from hydrasurgeon.checkpoints.folder import is_graph_folder

        return spec.endswith(ENDING) or is_graph_folder(Path(spec))

    def holds(self, spec: str) -> bool:
        from hydrasurgeon.checkpoints.folder import GRAPHS

        return Path(spec, GRAPHS, self.files[0]).is_file()

    def open(self, spec: str, engine: str) -> Checkpoint:
        from hydrasurgeon.engines.onnx.graph import open_folder, open_graph

        return open_graph(Path(spec)) if spec.endswith(ENDING) else open_folder(Path(spec), engine)

    def pays(self, checkpoint: Checkpoint, rows: int) -> bool:
        from hydrasurgeon.engines.onnx.graph import place_of

        if not (self.exact and self.installed):
            return False
        return (rows >= MANY and self.takes_weights) or place_of(checkpoint, self.name).is_file()

    def load(
        self, checkpoint: Checkpoint, *, device: str, dtype: str, keep: bool, parts: Parts | None
    ) -> Engine:
        from hydrasurgeon.engines.onnx.graph import as_engine

        return as_engine(checkpoint, self, keep=keep, parts=parts)

    def converted(self, graph: Exported, inputs: Mapping[str, Tensor]) -> Exported:
        """Return a graph in float32 as this engine runs it, tried on these inputs."""
        return graph
