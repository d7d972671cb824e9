"""Checkpoints whose weights a test has changed, with a manifest that fits them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.runtime.torch_tensors import to_raw, to_tensor


def edited(path: Path, out: Path, change: Callable[[str, Tensor], Tensor], **fields: Any) -> Path:
    """Write `path` to `out`, with every tensor replaced by `change(name, tensor)`, and with other
    `fields` of the manifest.
    """
    source = open_checkpoint(path)
    planned = []
    for name, info in source.tensors.items():
        raw, dtype = to_raw(change(name, to_tensor(source.tensors.read(name), info.dtype).clone()))
        planned.append(Planned(name, dtype, raw.shape, lambda raw=raw: [raw]))
    history = source.manifest.history

    def manifest(sha256: str) -> Manifest:
        mended = {
            "history": (*history[:-1], *(step.wrote(sha256) for step in history[-1:])),
            **fields,
            "weights_sha256": sha256,
        }
        return rewritten(source.manifest, **mended)

    save(out, planned, manifest, files=source.files)
    return out
