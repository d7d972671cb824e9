"""Three ViTs trained from random weights on eight classes of Fashion-MNIST: what other benchmarks start from.

Of one start they are not, unlike the demo's: `backbone`, `independent-2` and `independent-3` make a Deep Ensemble.
Each takes some minutes, and is kept in build/scratch-vits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import hydrasurgeon as hs

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "scratch-vits"
DEMO = ROOT / "hydrasurgeon" / "demo"
NAMES = ("backbone", "independent-2", "independent-3")
SCRATCH = (
    "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim={dim},depth={depth},"
    "num_heads={heads},num_classes=8"
)
FROM_SCRATCH = {"epochs": "4", "dropout": "0", "lr": "2e-3"}


def full_train(place: Path, shared: Path) -> str:
    """Write the training set's eight classes without the demo's validation images. Without the data
    set, return the demo's own part.
    """
    archive = shared / "data" / "fashion-mnist-train.npz"
    out = place / "full.npz"
    if not archive.exists():
        return "demo:train"
    if not out.exists():
        place.mkdir(parents=True, exist_ok=True)
        with np.load(archive) as read:
            pixels, labels = read["images"], read["labels"]
        inside = np.random.default_rng(0).permutation(np.flatnonzero(~np.isin(labels, (6, 7))))
        rest = inside[1000:]
        order = np.array([c for c in range(10) if c not in (6, 7)])
        classes = np.load(DEMO / "train.npz")["classes"]
        new = np.searchsorted(order, labels[rest])
        np.savez_compressed(out, images=pixels[rest], labels=new, classes=classes)
    return str(out)


def scratch_vit(name: str, shared: Path = Path("../shared")) -> Path:
    """Return one of the three, and train it if it is missing."""
    out = PLACE / f"{name}.safetensors"
    if not out.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        hs.finetune(
            SCRATCH.format(dim=64, depth=6, heads=8),
            data=full_train(PLACE, shared),
            val="demo:val",
            recipe=Path(__file__).parents[1] / "examples/paper/scratch.toml",
            set=FROM_SCRATCH,
            seed=NAMES.index(name),
            out=out,
            device="cpu",
        )
    return out
