"""How far our corruptions lie from the picture, beside imagecorruptions-imaug, which keeps ImageNet-C's own code alive.

Wants a folder of photographs and, for the comparison, `pip install imagecorruptions-imaug` (OpenCV, numba,
scikit-image).
Writes mean absolute distances in grey levels, for each corruption and severity.

    python benchmarks/corruptions.py PHOTOS... --json benchmarks/results/corruptions.json
"""

from __future__ import annotations

import argparse
import importlib
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hydrasurgeon.data.corruptions.pictures import spoiled
from hydrasurgeon.data.corruptions.samples import NAMES, SEVERITIES

SIDE = 224
"""Size of ImageNet-C's pictures."""
DRAWS = 4
"""Draws of random numbers, for each picture."""


def square(path: Path) -> Image.Image:
    """As ImageNet-C was made: the shorter side 256, the middle 224."""
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    left, top = (image.width - SIDE) // 2, (image.height - SIDE) // 2
    return image.crop((left, top, left + SIDE, top + SIDE))


def distances(pictures: list[Image.Image], name: str, corrupt: Any) -> list[float]:
    """At each severity, the mean over pictures and draws."""
    means = []
    for severity in SEVERITIES:
        values = []
        for number, image in enumerate(pictures):
            clean = np.asarray(image).astype(float)
            for draw in range(DRAWS):
                made = corrupt(image, name, severity, zlib.crc32(f"{number} {draw}".encode()))
                values.append(np.abs(np.asarray(made).astype(float) - clean).mean())
        means.append(round(float(np.mean(values)), 2))
    return means


def ours(image: Image.Image, name: str, severity: int, seed: int) -> Image.Image:
    return spoiled(image, name, severity, np.random.default_rng(seed))


def theirs(image: Image.Image, name: str, severity: int, seed: int) -> Any:
    np.random.seed(seed)
    corrupt = importlib.import_module("imagecorruptions").corrupt
    return corrupt(np.asarray(image), corruption_name=name, severity=severity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    pictures = [square(path) for path in arguments.photos]
    rows = {}
    for name in NAMES["image"]:
        row = {"ours": distances(pictures, name, ours), "theirs": distances(pictures, name, theirs)}
        rows[name] = row
        print(name, row, flush=True)
    result = {
        "pictures": len(pictures),
        "draws": DRAWS,
        "side": SIDE,
        "numpy": np.__version__,
        "corruptions": rows,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
