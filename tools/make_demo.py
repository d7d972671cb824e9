"""Make the demo's data and weights from Fashion-MNIST (MIT licence): what hydrasurgeon/demo/ holds.

    python tools/make_demo.py data    --train fashion-mnist-train.npz --test fashion-mnist-test.npz --work build/demo
    python tools/make_demo.py weights --work build/demo

Eight of the ten classes are in-distribution; shirts and sneakers are held out and serve as near-OOD data.
Far-OOD data: UCI digits (through scikit-learn, CC BY 4.0) and procedural textures.

The weights are three fine-tunings of one start on the demo's 4,000 images. The start was pretrained on turned images: of
which of five kinds the garment is, and by how many quarters of a circle it is turned.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hydrasurgeon.checkpoints.checkpoint import open_single, rewritten
from hydrasurgeon.checkpoints.writing import claim_checkpoint, save
from hydrasurgeon.cli.app import run
from hydrasurgeon.files.atomic import claims

DEMO = Path(__file__).parents[1] / "hydrasurgeon" / "demo"
NAMES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "boot",
)
HELD_OUT = (6, 7)
ID = tuple(c for c in range(10) if c not in HELD_OUT)
KINDS = {0: 0, 2: 0, 4: 0, 1: 1, 3: 2, 5: 3, 9: 3, 8: 4}
"""Class → top, trousers, dress, footwear or bag."""
TURNS = 4
ARCH = (
    "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,"
    "num_classes=20"
)
Images = NDArray[np.uint8]


def data(train: Path, test: Path, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pixels, labels = _load(train)
    inside = rng.permutation(np.flatnonzero(np.isin(labels, ID)))
    val, rest = inside[:1000], inside[1000:]
    _write(DEMO / "val.npz", pixels[val], labels[val])
    _write(DEMO / "train.npz", pixels[rest[:4000]], labels[rest[:4000]])
    chosen = np.array([ID.index(label) for label in labels[rest[:4000]]])
    np.savez(work / "train.npz", images=pixels[rest[:4000]], labels=chosen)
    turns = np.random.default_rng(1)
    _write_turned(work / "turned.npz", pixels, labels, np.concatenate([rest, rest]), turns)
    _write_turned(work / "turned-val.npz", pixels, labels, val, turns)
    pixels, labels = _load(test)
    inside = rng.permutation(np.flatnonzero(np.isin(labels, ID)))[:2000]
    _write(DEMO / "test.npz", pixels[inside], labels[inside])
    held_out_rows = rng.permutation(np.flatnonzero(np.isin(labels, HELD_OUT)))[:1000]
    np.savez_compressed(DEMO / "near.npz", images=pixels[held_out_rows])
    np.savez_compressed(DEMO / "digits.npz", images=_digits(rng))
    np.savez_compressed(DEMO / "textures.npz", images=_textures(rng))


def _load(path: Path) -> tuple[Images, NDArray[np.int64]]:
    with np.load(path) as archive:
        return archive["images"], archive["labels"]


def _write(path: Path, images: Images, labels: NDArray[np.int64]) -> None:
    new = np.array([ID.index(label) for label in labels], dtype=np.int64)
    np.savez_compressed(path, images=images, labels=new, classes=np.array([NAMES[c] for c in ID]))


def _write_turned(
    path: Path,
    pixels: Images,
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    random: np.random.Generator,
) -> None:
    turns = random.integers(TURNS, size=len(rows))
    turned = np.stack([np.rot90(pixels[row], turn) for row, turn in zip(rows, turns, strict=True)])
    kinds = np.array([KINDS[labels[row]] for row in rows])
    np.savez(path, images=turned, labels=kinds * TURNS + turns)


def _digits(rng: np.random.Generator, count: int = 1000) -> Images:
    from sklearn.datasets import load_digits

    small = load_digits().images[rng.permutation(1797)[:count]]
    images = np.zeros((count, 28, 28), dtype=np.uint8)
    for i, digit in enumerate(small):
        large = Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize(
            (20, 20), Image.Resampling.BICUBIC
        )
        images[i, 4:24, 4:24] = np.asarray(large)
    return images


def _textures(rng: np.random.Generator, count: int = 900) -> Images:
    """Draw gratings, checkers, blobs and fractal noise, in equal parts."""
    y, x = np.mgrid[0:28, 0:28] / 28.0
    textures = np.zeros((count, 28, 28))
    for i in range(count):
        angle, frequency, phase = (
            rng.uniform(0, np.pi),
            rng.uniform(2, 8),
            rng.uniform(0, 2 * np.pi),
        )
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        wave = np.sin(2 * np.pi * frequency * along + phase)
        if i % 4 == 0:
            textures[i] = wave
        elif i % 4 == 1:
            textures[i] = np.sign(wave * np.sin(2 * np.pi * frequency * across))
        elif i % 4 == 2:
            textures[i] = sum(
                np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 0.01)
                for cx, cy in rng.uniform(0, 1, (6, 2))
            )
        else:
            for octave in (2, 4, 7, 14):
                noise = Image.fromarray(rng.normal(size=(octave, octave)).astype(np.float32))
                textures[i] += (
                    np.asarray(noise.resize((28, 28), Image.Resampling.BICUBIC)) / octave**0.5
                )
    low, high = textures.min(axis=(1, 2), keepdims=True), textures.max(axis=(1, 2), keepdims=True)
    return (255 * (textures - low) / (high - low)).astype(np.uint8)


def weights(work: Path) -> None:
    """Train the start, and three fine-tunings of it by different seeds.

    They are shipped without history: nobody could replay it without the pretraining's data.
    """
    start = work / "start.safetensors"
    _finetune(ARCH, start, work / "turned.npz", work / "turned-val.npz", 0, PRETRAINING)
    for seed, name in enumerate(("backbone", "seed-2", "seed-3"), start=1):
        out = work / f"{name}.safetensors"
        _finetune(str(start), out, work / "train.npz", "demo:val", seed, FINETUNING)
        _ship(out)


PRETRAINING = {
    "recipe": str(DEMO.parents[1] / "examples/paper/scratch.toml"),
    "epochs": 4,
    "dropout": 0,
    "lr": 2e-3,
}
FINETUNING = {
    "recipe": "demo",
    "classifier": "probe",
    "epochs": 4,
    "lr": 1e-3,
    "label_smoothing": 0,
}


def _finetune(
    source: str, out: Path, data: object, val: object, seed: int, recipe: Mapping[str, object]
) -> None:
    options = ["--data", str(data), "--val", str(val), "--seed", str(seed), "--force"]
    for field, value in recipe.items():
        options += ["--recipe", str(value)] if field == "recipe" else ["--set", f"{field}={value}"]
    if run(["finetune", source, *options, "-o", str(out)]):
        raise SystemExit(1)


@claims()
def _ship(path: Path) -> None:
    tuned = open_single(path)
    target = claim_checkpoint(DEMO / path.name, force=True)
    save(
        target,
        sorted(tuned.tensors.planned(), key=lambda tensor: tensor.name),
        lambda digest: rewritten(tuned.manifest, history=(), weights_sha256=digest),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    makes_data = commands.add_parser("data")
    makes_data.add_argument("--train", type=Path, required=True)
    makes_data.add_argument("--test", type=Path, required=True)
    for command in (makes_data, commands.add_parser("weights")):
        command.add_argument("--work", type=Path, required=True, help="for the pretraining")
    arguments = parser.parse_args()
    if arguments.command == "data":
        data(arguments.train, arguments.test, arguments.work)
    else:
        weights(arguments.work)


if __name__ == "__main__":
    main()
