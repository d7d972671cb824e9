"""Pictures → model inputs by Pillow and numpy, pixel for pixel as timm and transformers prepare them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hydrasurgeon.data.images import plain, turned

Pixels = NDArray[np.uint8]
"""[channel, height, width]."""
WAYS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
"""Pillow's ways to resize."""
REACH = {"bilinear": 1, "bicubic": 2}
"""How many pixels on each side count, where an image is not made smaller."""
SHARPNESS = -0.5
"""The parameter of the cubic curve: Keys', which Pillow and PyTorch take."""
BITS = 15
"""Of the weights that PyTorch resizes bytes with, one of them the sign."""
USUAL_SHARE = 0.875
"""The share of a resized image that timm cuts out where a config does not say."""


class Pictures:
    """A transform of pictures to arrays."""

    kind = "image"

    def __init__(
        self, preprocess: Mapping[str, Any], read: Callable[[Image.Image], Pixels]
    ) -> None:
        self.read = read
        self.mean, self.std = (
            np.array(preprocess[name], dtype=np.float32)[:, None, None] for name in ("mean", "std")
        )

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        pixels = self.read(image).astype(np.float32) / np.float32(255)
        result: NDArray[np.float32] = (pixels - self.mean) / self.std
        return result

    def arrays(self, images: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """A batch."""
        return np.stack(images)


def in_timm(preprocess: Mapping[str, Any]) -> Pictures:
    """As timm's transform for evaluation has it: Pillow resizes."""
    channels, *crop = preprocess["input_size"]
    way = WAYS[preprocess.get("interpolation", "bicubic")]
    mode, share = preprocess.get("crop_mode"), preprocess.get("crop_pct") or USUAL_SHARE
    edges = [math.floor(edge / share) for edge in crop]
    fill = [round(255 * value) if mode == "border" else 0 for value in preprocess["mean"]]

    def read(image: Image.Image) -> Pixels:
        image = plain(image).convert("L" if channels == 1 else "RGB")
        sides = image.height, image.width
        if mode == "squash":
            size = edges
        elif mode == "border" or edges[0] != edges[1]:
            ratios = [side / edge for side, edge in zip(sides, edges, strict=True)]
            ratio = max(ratios) if mode == "border" else min(ratios)
            size = [round(side / ratio) for side in sides]
        else:
            size = _by_shorter(sides, edges[0])
        if [*size] != [*sides]:
            image = image.resize((size[1], size[0]), way)
        return _cut(_channels(image), crop, half=round, fill=fill)

    return Pictures(preprocess, read)


def in_transformers(preprocess: Mapping[str, Any], *, white: bool) -> Pictures:
    """As transformers' processors have it: upright, and resized as tensors of bytes; `white` lies
    behind pixels of the transparent colour.
    """
    channels, *crop = preprocess["input_size"]
    share, way = preprocess.get("crop_pct") or 1.0, preprocess.get("interpolation", "bicubic")
    edges = [math.floor(edge / share) for edge in crop]

    def read(image: Image.Image) -> Pixels:
        image = upright(image, channels=channels, white=white)
        sides = image.height, image.width
        size = edges
        if preprocess.get("crop_mode") != "squash":
            size = _by_shorter(sides, edges[0])
        if way == "nearest":
            pixels = _channels(image)[:, _nearest(sides[0], size[0])]
            pixels = pixels[:, :, _nearest(sides[1], size[1])]
        elif way in REACH:
            pixels = _channels(image)
            for axis in (2, 1):
                pixels = _resized(pixels, size[axis - 1], axis, way)
        else:
            pixels = _channels(image.resize((size[1], size[0]), WAYS[way]))
        return _cut(pixels, crop, half=int, fill=[0] * channels)

    return Pictures(preprocess, read)


def upright(image: Image.Image, *, channels: int, white: bool) -> Image.Image:
    """Turned as its EXIF data say, with the colours that a model reads."""
    image = plain(turned(image))
    if channels == 1:
        return image.convert("L")
    image = image.convert("RGB")
    if not (white and isinstance(image.info.get("transparency"), tuple)):
        return image
    behind = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(behind, image.convert("RGBA")).convert("RGB")


def _by_shorter(sides: Sequence[int], edge: int) -> list[int]:
    """Height and width whose shorter one is `edge`."""
    short, long = sorted(sides)
    other = int(edge * long / short)
    return [edge, other] if sides[0] <= sides[1] else [other, edge]


def _channels(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _cut(
    pixels: Pixels, crop: Sequence[int], *, half: Callable[[float], int], fill: Sequence[int]
) -> Pixels:
    """The centre, with a colour around what is smaller; half of an odd number of pixels is rounded as
    the library does.
    """
    missing = [max(0, edge - side) for edge, side in zip(crop, pixels.shape[1:], strict=True)]
    if any(missing):
        sides = [side + more for side, more in zip(pixels.shape[1:], missing, strict=True)]
        whole = np.empty((len(pixels), *sides), np.uint8)
        whole[:] = np.array(fill, np.uint8)[:, None, None]
        down, across = (each // 2 for each in missing)
        whole[:, down : down + pixels.shape[1], across : across + pixels.shape[2]] = pixels
        pixels = whole
    top, left = (half((side - edge) / 2) for edge, side in zip(crop, pixels.shape[1:], strict=True))
    return pixels[:, top : top + crop[0], left : left + crop[1]]


def _nearest(before: int, after: int) -> NDArray[np.int64]:
    """The pixel that each one is, as PyTorch finds it."""
    scale = np.float32(before) / np.float32(after)
    places = (np.arange(after, dtype=np.float32) + np.float32(0.5)) * scale
    return places.astype(np.int64).clip(max=before - 1)


def _resized(pixels: Pixels, size: int, axis: int, way: str) -> Pixels:
    """Along one axis, as PyTorch resizes bytes: by whole weights, rounded once."""
    if pixels.shape[axis] == size:
        return pixels
    weights, shift = _whole_weights(pixels.shape[axis], size, way)
    moved = np.moveaxis(pixels, axis, -1).astype(np.float64)
    made = np.floor((moved @ weights.T + 2.0 ** (shift - 1)) / 2.0**shift)
    return np.moveaxis(made.clip(0, 255).astype(np.uint8), -1, axis)


@cache
def _whole_weights(before: int, after: int, way: str) -> tuple[NDArray[np.float64], int]:
    """[after, before]: how much each pixel counts, times a power of two."""
    scale = before / after
    stretch = max(scale, 1.0)
    reach = REACH[way] * stretch
    centre = (np.arange(after)[:, None] + 0.5) * scale
    at = np.arange(before)[None]
    first = (centre - reach + 0.5).astype(int).clip(min=0)
    last = (centre + reach + 0.5).astype(int).clip(max=before)
    curve = np.where((at >= first) & (at < last), _curve((at + 0.5 - centre) / stretch, way), 0.0)
    weights = curve / curve.sum(axis=1, keepdims=True)
    shift = 0
    while shift < 22 and int(0.5 + weights.max() * 2 ** (shift + 1)) < 1 << BITS:
        shift += 1
    half = np.where(weights < 0, -0.5, 0.5)
    return np.trunc(weights * 2.0**shift + half), shift


def _curve(x: NDArray[np.float64], way: str) -> NDArray[np.float64]:
    """What a pixel counts at this distance."""
    x, a = np.abs(x), SHARPNESS
    if way == "bilinear":
        return np.where(x < 1, 1 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
