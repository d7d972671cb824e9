"""Pictures without torch are those that the libraries prepare, pixel for pixel."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydrasurgeon.data.pictures import in_timm, in_transformers
from hydrasurgeon.families.hf_encoder import pictures
from hydrasurgeon.families.transforms import eval_transform

SIDES = ((28, 28), (41, 67), (90, 33))


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
        expected = eval_transform(told)(drawn(sides)).numpy()
        assert np.abs(in_timm(told)(drawn(sides)) - expected).max() < 1e-6, (sides, size, share)


@pytest.mark.parametrize("way", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_as_transformers(way: str, mode: str) -> None:
    for sides, size, share in product(SIDES, ((32, 32), (24, 40)), (0.9, 1.0)):
        told = preprocess(size, interpolation=way, crop_mode=mode, crop_pct=share)
        expected = pictures.transform(told, None, white=True)(drawn(sides)).numpy()
        made = in_transformers(told, white=True)(drawn(sides))
        assert np.abs(made - expected).max() < 1e-6, (sides, size, share)
