"""What is struck: every stage that writes, with every kind of output, new and over an old one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ARCH = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=32,depth=3,num_heads=4,num_classes=5"
TUNE = "finetune vit --recipe demo --set epochs=1 --set batch_size=8 --data d.npz --limit 32 --device cpu --save-every 1"
CALIBRATE = "calibrate vit --data d.npz --ood-score vim --device cpu -o {}"
BUILD = "build vit --data d.npz --val v.npz --budget macs=0.6,1 --device cpu"
PAIR = ("m.safetensors", "m.heads.json")
TUNED = ("t.safetensors", "t.heads.json")


@dataclass(frozen=True)
class Scene:
    name: str
    line: str
    """The command that is struck."""
    outputs: tuple[tuple[str, ...], ...]
    """What it writes, in groups that belong together: a file and what lies beside it, or a folder."""
    before: tuple[str, ...] = ()
    """Commands that lay out what is there already."""
    again: tuple[str, ...] = ()
    """Options with which it is repeated where the command alone is refused."""
    work: str = ""
    """A folder that it keeps work in: any part of that may be there, until the command is done."""
    every: int = 1
    """Each so-manieth call is struck, where a command makes many and takes long."""


def _prune(out: str, *, keep: int = 2, more: str = "") -> str:
    return f"prune vit --method random --keep {keep} -o {out} {more}".strip()


SCENES = (
    Scene("prune: file over a file", _prune("m", more="--force"), (PAIR,), (_prune("m", keep=3),)),
    Scene(
        "prune: folder over a folder",
        _prune("d/", more="--force"),
        (("d/",),),
        (_prune("d/", keep=3),),
    ),
    Scene(
        "score: in place", "score vit --method magnitude", (("vit.safetensors", "vit.heads.json"),)
    ),
    Scene("finetune: file", f"{TUNE} -o t", (TUNED,), again=("--resume", "--resume --force")),
    Scene("fuse: file over a file", "fuse m1 m2 -o m --force", (PAIR,), (_prune("m"),)),
    Scene(
        "eval: over a report and predictions",
        "eval vit --data d.npz --limit 16 --device cpu --json r.json --predictions p.safetensors --force",
        (("r.json",), ("p.safetensors",)),
        ("eval m1 --data d.npz --limit 16 --device cpu --json r.json --predictions p.safetensors",),
    ),
    Scene(
        "calibrate: folder over a folder",
        CALIBRATE.format("d/ --force"),
        (("d/",),),
        (_prune("d/"),),
    ),
    Scene(
        "predict: table over a table",
        "predict vit --data d.npz --batch-size 8 --device cpu -o r.csv --force",
        (("r.csv",),),
        ("predict m1 --data d.npz --device cpu -o r.csv",),
    ),
    Scene(
        "build: a front of two checkpoints with their decision states",
        f"{BUILD} -o d/",
        (("d/",),),
        work="d.build/",
        every=5,
    ),
)
SAMPLE = ("prune: file over a file", "prune: folder over a folder", "score: in place")
"""Scenes that never load a model, for a test that takes seconds."""


def lay_out(folder: Path) -> tuple[str, ...]:
    """Make the inputs of all scenes in `folder`, without the command; the commands that make the rest."""
    import numpy as np
    from fitted_heads import solved, with_head
    from random_models import fresh

    rng = np.random.default_rng(0)
    labels = np.arange(40) % 5
    for name in ("d", "v"):  # a bright band tells the class
        images = rng.integers(0, 120, (40, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[5 * label : 5 * label + 5] = 220
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    vit = folder / "vit.safetensors"
    fresh(f"init:{ARCH}", vit, seed=0)
    with_head(vit, vit, solved(vit, str(folder / "d.npz")))
    return (_prune("m1", keep=3), _prune("m2", keep=2, more="--seed 1"))
