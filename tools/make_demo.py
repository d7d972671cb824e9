"""Make the demo's data and weights from Fashion-MNIST (MIT licence): what hydrasurgeon/demo/ holds.

    python tools/make_demo.py data    --train fashion-mnist-train.npz --test fashion-mnist-test.npz --full full.npz
    python tools/make_demo.py weights --full full.npz

Eight of the ten classes are in-distribution; shirts and sneakers are held out and serve as near-OOD data.
Far-OOD data: UCI digits (through scikit-learn, CC BY 4.0) and procedural textures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
ARCH = "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,in_chans=1,embed_dim=64,depth=6,num_heads=8,num_classes=8"
Images = NDArray[np.uint8]


def data(train: Path, test: Path, full: Path) -> None:
    rng = np.random.default_rng(0)
    pixels, labels = _load(train)
    inside = rng.permutation(np.flatnonzero(np.isin(labels, ID)))
    val, rest = inside[:1000], inside[1000:]
    _write(DEMO / "val.npz", pixels[val], labels[val])
    _write(DEMO / "train.npz", pixels[rest[:4000]], labels[rest[:4000]])
    _write(full, pixels[rest], labels[rest])
    pixels, labels = _load(test)
    inside = rng.permutation(np.flatnonzero(np.isin(labels, ID)))[:2000]
    _write(DEMO / "test.npz", pixels[inside], labels[inside])
    foreign = rng.permutation(np.flatnonzero(np.isin(labels, HELD_OUT)))[:1000]
    np.savez_compressed(DEMO / "near.npz", images=pixels[foreign])
    np.savez_compressed(DEMO / "digits.npz", images=_digits(rng))
    np.savez_compressed(DEMO / "textures.npz", images=_textures(rng))


def _load(path: Path) -> tuple[Images, NDArray[np.int64]]:
    with np.load(path) as archive:
        return archive["images"], archive["labels"]


def _write(path: Path, images: Images, labels: NDArray[np.int64]) -> None:
    new = np.array([ID.index(label) for label in labels], dtype=np.int64)
    np.savez_compressed(path, images=images, labels=new, classes=np.array([NAMES[c] for c in ID]))


def _digits(rng: np.random.Generator, count: int = 1000) -> Images:
    from sklearn.datasets import load_digits

    small = load_digits().images[rng.permutation(1797)[:count]]
    made = np.zeros((count, 28, 28), dtype=np.uint8)
    for i, digit in enumerate(small):
        large = Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize(
            (20, 20), Image.Resampling.BICUBIC
        )
        made[i, 4:24, 4:24] = np.asarray(large)
    return made


def _textures(rng: np.random.Generator, count: int = 900) -> Images:
    """Gratings, checkers, blobs and fractal noise, in equal parts."""
    y, x = np.mgrid[0:28, 0:28] / 28.0
    made = np.zeros((count, 28, 28))
    for i in range(count):
        angle, frequency, phase = (
            rng.uniform(0, np.pi),
            rng.uniform(2, 8),
            rng.uniform(0, 2 * np.pi),
        )
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        wave = np.sin(2 * np.pi * frequency * along + phase)
        if i % 4 == 0:
            made[i] = wave
        elif i % 4 == 1:
            made[i] = np.sign(wave * np.sin(2 * np.pi * frequency * across))
        elif i % 4 == 2:
            made[i] = sum(
                np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 0.01)
                for cx, cy in rng.uniform(0, 1, (6, 2))
            )
        else:
            for octave in (2, 4, 7, 14):
                noise = Image.fromarray(rng.normal(size=(octave, octave)).astype(np.float32))
                made[i] += (
                    np.asarray(noise.resize((28, 28), Image.Resampling.BICUBIC)) / octave**0.5
                )
    low, high = made.min(axis=(1, 2), keepdims=True), made.max(axis=(1, 2), keepdims=True)
    return (255 * (made - low) / (high - low)).astype(np.uint8)


def weights(full: Path) -> None:
    """The backbone and two more models trained independently, as a Deep Ensemble is."""
    from hydrasurgeon.cli.app import run

    for i, name in enumerate(("backbone", "independent-2", "independent-3")):
        out = DEMO / f"{name}.safetensors"
        options = [
            "--recipe",
            "scratch",
            "--set",
            "epochs=4",
            "--set",
            "dropout=0",
            "--set",
            "lr=2e-3",
            "--data",
            str(full),
            "--val",
            "demo:val",
            "--seed",
            str(i),
            "--force",
        ]
        if run(["finetune", ARCH, *options, "-o", str(out)]):
            raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    makes_data = commands.add_parser("data")
    makes_data.add_argument("--train", type=Path, required=True)
    makes_data.add_argument("--test", type=Path, required=True)
    for command in (makes_data, commands.add_parser("weights")):
        command.add_argument(
            "--full", type=Path, required=True, help="the whole eight-class training set"
        )
    arguments = parser.parse_args()
    if arguments.command == "data":
        data(arguments.train, arguments.test, arguments.full)
    else:
        weights(arguments.full)


if __name__ == "__main__":
    main()
