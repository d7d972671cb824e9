"""Pictures as transformers' own pipeline prepares them: turned as their EXIF data say, resized as
tensors, cut at int((H − h) / 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as vision

from hydrasurgeon.data.pictures import upright
from hydrasurgeon.families.transforms import train_transform

ON_TENSORS = {
    "nearest": InterpolationMode.NEAREST_EXACT,
    "bilinear": InterpolationMode.BILINEAR,
    "bicubic": InterpolationMode.BICUBIC,
}
"""Ways to resize that torchvision has for tensors; Pillow does the others."""


def transform(
    preprocess: Mapping[str, Any], augment: Mapping[str, Any] | None, *, white: bool
) -> Callable[[Image.Image], Tensor]:
    """Picture → model input; `white` lies behind pixels of the transparent colour."""
    turned = partial(upright, channels=preprocess["input_size"][0], white=white)
    sized = partial(_sized, preprocess)
    if augment is None:
        return partial(_prepared, turned, sized, preprocess)
    return train_transform(preprocess, augment, convert=turned, sizing=partial(_picture, sized))


def _prepared(
    upright: Callable[[Image.Image], Image.Image],
    sized: Callable[[Image.Image], Tensor],
    preprocess: Mapping[str, Any],
    image: Image.Image,
) -> Tensor:
    pixels = sized(upright(image)).float() / 255
    return vision.normalize(pixels, list(preprocess["mean"]), list(preprocess["std"]))


def _sized(preprocess: Mapping[str, Any], image: Image.Image) -> Tensor:
    """Resized and cut, as pixels of 0 to 255."""
    crop = preprocess["input_size"][1:]
    share = preprocess.get("crop_pct") or 1.0
    edges = [math.floor(edge / share) for edge in crop]
    size = edges if preprocess.get("crop_mode") == "squash" else edges[:1]
    interpolation = preprocess.get("interpolation", "bicubic")
    if interpolation in ON_TENSORS:
        # As transformers has it: torchvision rounds otherwise where channels come last.
        pixels = vision.pil_to_tensor(image).contiguous()
        pixels = vision.resize(pixels, size, ON_TENSORS[interpolation], antialias=True)
    else:
        image = vision.resize(image, size, InterpolationMode(interpolation))
        pixels = vision.pil_to_tensor(image).contiguous()
    return _cut(pixels, crop)


def _cut(pixels: Tensor, crop: tuple[int, int]) -> Tensor:
    """The centre, with black around what is smaller."""
    missing = [max(0, edge - side) for edge, side in zip(crop, pixels.shape[1:], strict=True)]
    if any(missing):
        high, wide = missing
        padding = [wide // 2, high // 2, (wide + 1) // 2, (high + 1) // 2]
        pixels = vision.pad(pixels, padding)
    top, left = (int((side - edge) / 2) for edge, side in zip(crop, pixels.shape[1:], strict=True))
    return vision.crop(pixels, top, left, *crop)


def _picture(sized: Callable[[Image.Image], Tensor], image: Image.Image) -> Image.Image:
    return vision.to_pil_image(sized(image))
