"""Members of the tiny families: pruned by a mask, moved a little, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tiny_families import KEPTS as KEPTS
from tiny_families import Family

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

RAGGED = [[0, 2, 3], [], [1]]


def member(source: Path, family: Family, rows: list[list[int]], out: str | Path) -> Path:
    mask = source.parent / f"{Path(out).name}.mask.json"
    mask.write_text(json.dumps(family.in_each_tower(rows)))
    return hs.prune(source, mask=mask, out=out).path


def members_of(source: Path, family: Family, home: Path) -> list[Path]:
    """Write three members, with the heads of `KEPTS`."""
    return [
        member(source, family, rows, home / f"m{i}.safetensors") for i, rows in enumerate(KEPTS)
    ]


def tuned_of(members: list[Path], home: Path) -> list[Path]:
    return [tune(path, home / f"t{i}.safetensors", seed=i) for i, path in enumerate(members)]


def logits(path: Path, inputs: Any, dtype: str = "float32") -> torch.Tensor:
    model = hs.load(path, device="cpu", dtype=dtype)
    with torch.inference_mode():
        return model(inputs)


def tune(path: Path, out: Path, seed: int) -> Path:
    """Write a copy whose every tensor moved a little."""
    from hydrasurgeon.checkpoints.checkpoint import rewritten
    from hydrasurgeon.checkpoints.writing import save
    from hydrasurgeon.files.manifest import Manifest
    from hydrasurgeon.files.tensors import Planned
    from hydrasurgeon.runtime.torch_tensors import to_raw, to_tensor

    opened = open_checkpoint(path)
    generator = torch.Generator().manual_seed(seed)
    planned = []
    for name, info in opened.tensors.items():
        tensor = to_tensor(opened.tensors.read(name), info.dtype)
        raw, dtype = to_raw(tensor + 0.05 * torch.randn(tensor.shape, generator=generator))
        planned.append(Planned(name, dtype, info.shape, lambda raw=raw: [raw]))
    history = opened.manifest.history

    def manifest(sha256: str) -> Manifest:
        written = (*history[:-1], *(step.wrote(sha256) for step in history[-1:]))
        return rewritten(opened.manifest, weights_sha256=sha256, history=written)

    save(out, planned, manifest, files=opened.files)
    return out
