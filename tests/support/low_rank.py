"""Checkpoints with low-rank pairs, as tuning leaves them, and what they run as by plain matrix products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from hydrasurgeon.checkpoints.reading import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import save
from hydrasurgeon.files.tensors import Planned, whole
from hydrasurgeon.runtime.tensors import to_raw, to_tensor

__all__ = ["sums", "with_changes"]


def with_changes(
    path: Path, out: Path, *, seed: int, rank: int = 2, only: Callable[[str], bool] = lambda _: True
) -> Path:
    """A copy of a single model that has a pair beside each of attention's matrices, or beside `only` some; a history begins with it."""
    opened = open_checkpoint(path)
    generator = torch.Generator().manual_seed(seed)
    tensors = {n: to_tensor(opened.tensors.read(n), i.dtype) for n, i in opened.tensors.items()}
    for name, weight in opened.weights.items():
        if (
            weight.part in ("attention", "output")
            and weight.heads
            and len(weight.shape) == 2
            and only(name)
        ):
            high, wide = tensors[name].shape
            tensors[f"{name}.lora_a"] = 0.3 * torch.randn(rank, wide, generator=generator)
            tensors[f"{name}.lora_b"] = 0.3 * torch.randn(high, rank, generator=generator)

    def plan(name: str, tensor: Tensor) -> Planned:
        raw, dtype = to_raw(tensor)
        return Planned(name, dtype, raw.shape, lambda: whole(raw))

    save(
        out, [plan(*item) for item in tensors.items()],
        lambda sha256: rewritten(opened.manifest, weights_sha256=sha256, scores={}, history=()), files=opened.files,
    )  # fmt: skip
    return out


def sums(path: Path) -> dict[str, Tensor]:
    """The tensors of a single model's file with its pairs in them: W + B A in float64, rounded."""
    stored = load_file(path)
    return {
        name: (tensor.double() + stored[f"{name}.lora_b"].double() @ stored[f"{name}.lora_a"].double()).to(tensor.dtype)
        if f"{name}.lora_a" in stored
        else tensor
        for name, tensor in stored.items()
        if not name.endswith((".lora_a", ".lora_b"))
    }  # fmt: skip
