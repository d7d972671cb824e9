"""Pictures without torch are those that the libraries prepare, pixel for pixel."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image
from timm.data import create_transform
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as vision

from hydrasurgeon.data import pictures
from hydrasurgeon.data.pictures import InTimm, InTransformers
from hydrasurgeon.families.transforms import eval_transform

SIDES = ((28, 28), (41, 67), (90, 33), (150, 200))
WAYS = {
    "nearest": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}
"""What transformers resizes tensors by; Pillow does the others."""


def preprocess(size: tuple[int, int], **more: Any) -> dict[str, Any]:
    colours = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
    return {"input_size": [3, *size], **colours, **more}


def drawn(sides: tuple[int, int]) -> Image.Image:
    noise = np.random.default_rng(sum(sides)).integers(0, 256, (*sides, 3), dtype=np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize("way", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_as_timm(way: str, mode: str) -> None:
    for sides, size, share in product(SIDES, ((32, 32), (24, 40)), (None, 0.9, 1.0)):
        told = preprocess(size, interpolation=way, crop_mode=mode, crop_pct=share)
        timms: Any = create_transform(**{**told, "input_size": (3, *size)}, is_training=False)
        made = InTimm(told)(drawn(sides))
        assert np.abs(made - timms(drawn(sides)).numpy()).max() < 1e-6, (sides, size, share)


def as_transformers(told: dict[str, Any], image: Image.Image) -> np.ndarray:
    """Resized as tensors, and cut at int((H − h) / 2), with black around what is smaller."""
    crop, way = told["input_size"][1:], told["interpolation"]
    edges = [math.floor(edge / told["crop_pct"]) for edge in crop]
    size = edges if told["crop_mode"] == "squash" else edges[:1]
    if way in WAYS:
        pixels = vision.pil_to_tensor(image).contiguous()
        pixels = vision.resize(pixels, size, WAYS[way], antialias=True)
    else:
        pixels = vision.pil_to_tensor(vision.resize(image, size, InterpolationMode(way)))
    high, wide = (max(0, a - b) for a, b in zip(crop, pixels.shape[1:], strict=True))
    pixels = vision.pad(pixels, [wide // 2, high // 2, (wide + 1) // 2, (high + 1) // 2])
    top, left = (int((a - b) / 2) for a, b in zip(pixels.shape[1:], crop, strict=True))
    pixels = vision.crop(pixels, top, left, *crop).float() / 255
    made: np.ndarray = vision.normalize(pixels, told["mean"], told["std"]).numpy()
    return made


@pytest.mark.parametrize("way", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_as_transformers(way: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for sides, size, share in product(SIDES, ((32, 32), (24, 40)), (0.9, 1.0)):
        told = preprocess(size, interpolation=way, crop_mode=mode, crop_pct=share)
        made = InTransformers(told, white=True)(drawn(sides))
        expected = as_transformers(told, drawn(sides))
        with monkeypatch.context() as patch:  # what torch reads it resizes itself, sooner
            patch.setattr(pictures, "_resized", None)
            tensor = eval_transform(InTransformers(told, white=True))(drawn(sides))
        assert (tensor.numpy() == made).all()
        assert np.abs(made - expected).max() < 1e-6, (sides, size, share)
