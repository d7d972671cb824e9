"""The engine `torch`: the model itself, on a GPU or the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.engines.base import EngineKind, Parts
from hydrasurgeon.lookup import need

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.checkpoint import Checkpoint
    from hydrasurgeon.runtime.answering import Engine


class Torch(EngineKind):
    name = "torch"
    help = "PyTorch"
    packages = ("torch",)

    def load(
        self, checkpoint: Checkpoint, *, device: str, dtype: str, keep: bool, parts: Parts | None
    ) -> Engine:
        need("torch", purpose=f"{checkpoint.name}: answering in PyTorch")
        from hydrasurgeon.runtime.classifier import as_classifier

        return as_classifier(checkpoint, device=device, dtype=dtype, lean=True)
