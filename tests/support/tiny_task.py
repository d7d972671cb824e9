"""A tiny image task: a backbone, labelled sets in which a bar tells three classes, and noise as OOD data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fitted_heads import solved, with_head
from tiny_families import FAMILIES, Family

import hydrasurgeon as hs

VIT = FAMILIES["timm ViT"]
"""Family of the task's backbone."""


def images(folder: Path, name: str, seed: int, rows: int = 90, *, labelled: bool = True) -> str:
    """Write three classes that differ in the place of a bar. Foreign images are noise."""
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % 3
    pixels = rng.integers(0, 100 if labelled else 255, (rows, 28, 28, 3), dtype=np.uint8)
    more: dict[str, Any] = {}
    if labelled:
        for i, label in enumerate(truth):
            pixels[i, 9 * label : 9 * label + 9] = 230
        more = {"labels": truth.astype(np.int64)}
    np.savez(folder / f"{name}.npz", images=pixels, **more)
    return str(folder / f"{name}.npz")


class Task:
    """A tiny backbone and its data sets, in a folder of their own."""

    def __init__(self, folder: Path, family: Family = VIT) -> None:
        self.folder = folder
        family.write(folder / "source")
        scored = hs.score(folder / "source", method="random", out=folder / "scored.safetensors")
        self.data, self.val = (
            images(folder, name, seed) for name, seed in (("train", 1), ("val", 2))
        )
        head = solved(scored.path, self.data)
        self.backbone = with_head(scored.path, folder / "vit.safetensors", head)
        self.ood = images(folder, "ood", 3, 50, labelled=False)

    def build(self, out: str = "hydra", **more: Any) -> Any:
        settings: dict[str, Any] = {
            "ood": [self.ood],
            "batch_size": 32,
        }
        settings |= {"data": self.data, "val": self.val, "budget": "macs=1"} | more
        name = out if out.endswith("/") else f"{out}.safetensors"
        return hs.build(self.backbone, out=f"{self.folder}/{name}", **settings)
