"""Checkpoints with low-rank pairs, as tuning leaves them, and what they run as by plain matrix products."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from hydrasurgeon.checkpoints.reading import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.tensors import Planned, TensorFile, Tensors, weights_sha256, whole
from hydrasurgeon.runtime.tensors import to_raw, to_tensor


def with_changes(
    path: Path, out: Path, *, seed: int, rank: int = 2, only: Callable[[str], bool] = lambda _: True
) -> Path:
    """A copy of a single model that has a pair beside each of attention's matrices, or beside `only` some; a history
    begins with it."""
    opened = open_checkpoint(path)
    generator = torch.Generator().manual_seed(seed)
    tensors = {n: to_tensor(opened.tensors.read(n), i.dtype) for n, i in opened.tensors.items()}
    for name, weight in opened.weights.items():
        if weight.part in ("attention", "output") and weight.heads and len(weight.shape) == 2 and only(name):
            high, wide = tensors[name].shape
            tensors[f"{name}.lora_a"] = 0.3 * torch.randn(rank, wide, generator=generator)
            tensors[f"{name}.lora_b"] = 0.3 * torch.randn(high, rank, generator=generator)

    def plan(name: str, tensor: Tensor) -> Planned:
        raw, dtype = to_raw(tensor)
        return Planned(name, dtype, raw.shape, lambda: whole(raw))

    save(
        out,
        [plan(*item) for item in tensors.items()],
        lambda sha256: rewritten(opened.manifest, weights_sha256=sha256, scores={}, history=()),
        files=opened.files,
    )
    return out


def sums(path: Path) -> dict[str, Tensor]:
    """The tensors of a single model's file with its pairs in them: W + B A in float64, rounded."""
    stored = load_file(path)
    return {
        name: (
            (tensor.double() + stored[f"{name}.lora_b"].double() @ stored[f"{name}.lora_a"].double()).to(tensor.dtype)
            if f"{name}.lora_a" in stored
            else tensor
        )
        for name, tensor in stored.items()
        if not name.endswith((".lora_a", ".lora_b"))
    }


def changed_tensors(path: Path, change: Callable[[dict[str, Tensor]], Any]) -> Path:
    """The file with other tensors and their hash, as someone would send it."""
    with safe_open(path, "np") as file:
        header = dict(file.metadata())
    # Of their own memory: older releases of safetensors map the file, which is written anew.
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    sidecar(path).unlink(missing_ok=True)
    stored = Tensors([TensorFile(path)])
    manifest = json.loads(header["hydrasurgeon"])
    manifest["weights_sha256"] = weights_sha256(stored, stored.digests())
    save_file(tensors, path, {**header, "hydrasurgeon": json.dumps(manifest)})
    return path


def reshaped(path: Path, name: str, shape: tuple[int, ...] | None) -> None:
    """The file with ones of this shape as one of its tensors, or without it."""

    def change(tensors: dict[str, Tensor]) -> None:
        tensors.pop(name)
        if shape is not None:
            tensors[name] = torch.ones(shape)

    changed_tensors(path, change)
