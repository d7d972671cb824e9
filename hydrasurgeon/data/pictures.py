"""Pictures → model inputs by Pillow and numpy, pixel for pixel as timm and transformers prepare them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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
"""Pillow's resampling filters, by name."""
REACH = {"bilinear": 1, "bicubic": 2}
"""Radius in pixels of each filter, for an image that is not made smaller."""
SHARPNESS = -0.5
"""Parameter of the cubic curve: Keys', as in Pillow and PyTorch."""
BITS = 15
"""Number of bits of PyTorch's integer weights for resizing bytes, including the sign."""


class Pictures(ABC):
    """A transform of pictures to arrays."""

    kind = "image"

    def __init__(self, preprocess: Mapping[str, Any]) -> None:
        self.preprocess = preprocess
        self.channels, *self.crop = preprocess["input_size"]
        self.mode = preprocess.get("crop_mode")
        self.way = preprocess.get("interpolation", "bicubic")
        self.resized = resized
        share = preprocess.get("crop_pct") or self.usual_share
        self.edges = [math.floor(edge / share) for edge in self.crop]
        self.mean, self.std = (
            np.array(preprocess[name], dtype=np.float32)[:, None, None] for name in ("mean", "std")
        )

    usual_share = 1.0
    """Fraction of a resized image that is cut out, if a config has none."""

    @abstractmethod
    def converted(self, image: Image.Image) -> Image.Image:
        """Convert a picture to the colours that the model reads."""

    @abstractmethod
    def sized(self, image: Image.Image) -> Pixels:
        """Resize and crop a picture."""

    def picture(self, image: Image.Image) -> Image.Image:
        """Return the resized and cropped picture as an image."""
        pixels = self.sized(image)
        return Image.fromarray(pixels[0] if self.channels == 1 else pixels.transpose(1, 2, 0))

    def __call__(self, image: Image.Image) -> NDArray[np.float32]:
        pixels = self.sized(self.converted(image)).astype(np.float32) / np.float32(255)
        result: NDArray[np.float32] = (pixels - self.mean) / self.std
        return result

    def arrays(self, images: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return a batch."""
        return np.stack(images)


class InTimm(Pictures):
    """Transform of timm's evaluation: Pillow resizes."""

    usual_share = 0.875

    def converted(self, image: Image.Image) -> Image.Image:
        return plain(image).convert("L" if self.channels == 1 else "RGB")

    def sized(self, image: Image.Image) -> Pixels:
        sides, edges = (image.height, image.width), self.edges
        if self.mode == "squash":
            size = edges
        elif self.mode == "border" or edges[0] != edges[1]:
            ratios = [side / edge for side, edge in zip(sides, edges, strict=True)]
            ratio = max(ratios) if self.mode == "border" else min(ratios)
            size = [round(side / ratio) for side in sides]
        else:
            size = _by_shorter(sides, edges[0])
        if [*size] != [*sides]:
            image = image.resize((size[1], size[0]), WAYS[self.way])
        fill = [0] * self.channels
        if self.mode == "border":
            fill = [round(255 * value) for value in self.preprocess["mean"]]
        return _cut(_channels(image), self.crop, half=round, fill=fill)


class InTransformers(Pictures):
    """Transform of transformers' processors: turned by EXIF data, and resized as tensors of bytes;
    with `white`, pixels of the transparent colour become white.
    """

    def __init__(self, preprocess: Mapping[str, Any], *, white: bool) -> None:
        super().__init__(preprocess)
        self.white = white

    def converted(self, image: Image.Image) -> Image.Image:
        image = plain(turned(image))
        if self.channels == 1:
            return image.convert("L")
        image = image.convert("RGB")
        if not (self.white and isinstance(image.info.get("transparency"), tuple)):
            return image
        behind = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(behind, image.convert("RGBA")).convert("RGB")

    def sized(self, image: Image.Image) -> Pixels:
        sides, size = (image.height, image.width), self.edges
        if self.mode != "squash":
            size = _by_shorter(sides, size[0])
        if self.way == "nearest":
            pixels = _channels(image)[:, _nearest(sides[0], size[0])]
            pixels = pixels[:, :, _nearest(sides[1], size[1])]
        elif self.way in REACH:
            pixels = self.resized(_channels(image), size, self.way)
        else:
            pixels = _channels(image.resize((size[1], size[0]), WAYS[self.way]))
        return _cut(pixels, self.crop, half=int, fill=[0] * self.channels)


def _by_shorter(sides: Sequence[int], edge: int) -> list[int]:
    """Return the height and width whose shorter one is `edge`."""
    short, long = sorted(sides)
    other = int(edge * long / short)
    return [edge, other] if sides[0] <= sides[1] else [other, edge]


def _channels(image: Image.Image) -> Pixels:
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _cut(
    pixels: Pixels, crop: Sequence[int], *, half: Callable[[float], int], fill: Sequence[int]
) -> Pixels:
    """Cut out the centre and fill missing pixels with a colour; half of an odd number of pixels is
    rounded as the library does.
    """
    missing = [max(0, edge - side) for edge, side in zip(crop, pixels.shape[1:], strict=True)]
    if any(missing):
        sides = [side + more for side, more in zip(pixels.shape[1:], missing, strict=True)]
        filled = np.empty((len(pixels), *sides), np.uint8)
        filled[:] = np.array(fill, np.uint8)[:, None, None]
        down, across = (missing_side // 2 for missing_side in missing)
        filled[:, down : down + pixels.shape[1], across : across + pixels.shape[2]] = pixels
        pixels = filled
    top, left = (half((side - edge) / 2) for edge, side in zip(crop, pixels.shape[1:], strict=True))
    return pixels[:, top : top + crop[0], left : left + crop[1]]


def _nearest(before: int, after: int) -> NDArray[np.int64]:
    """Return the source position of each pixel, by PyTorch's nearest-neighbour rule."""
    scale = np.float32(before) / np.float32(after)
    places = (np.arange(after, dtype=np.float32) + np.float32(0.5)) * scale
    return places.astype(np.int64).clip(max=before - 1)


def resized(pixels: Pixels, size: Sequence[int], way: str) -> Pixels:
    """Resize along both axes."""
    for axis in (2, 1):
        pixels = _resized(pixels, size[axis - 1], axis, way)
    return pixels


def _resized(pixels: Pixels, size: int, axis: int, way: str) -> Pixels:
    """Resize along one axis as PyTorch resizes bytes: with integer weights, rounded once."""
    if pixels.shape[axis] == size:
        return pixels
    places, weights, shift = _whole_weights(pixels.shape[axis], size, way)
    first = np.moveaxis(pixels, axis, 0)
    rows = first.astype(np.int32, order="C").reshape(len(first), -1)
    total = np.full((size, rows.shape[1]), 1 << (shift - 1), np.int32)
    for at, weight in zip(places, weights, strict=True):
        some = rows[at]
        some *= weight[:, None]
        total += some
    result = (total >> shift).clip(0, 255).astype(np.uint8)
    return np.moveaxis(result.reshape(size, *first.shape[1:]), 0, axis)


@cache
def _whole_weights(
    before: int, after: int, way: str
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Return [tap, after] arrays: the source pixels of each pixel, and their integer weights times
    a power of two.
    """
    scale = before / after
    stretch = max(scale, 1.0)
    reach = REACH[way] * stretch
    centre = (np.arange(after) + 0.5) * scale
    first = (centre - reach + 0.5).astype(int).clip(min=0)
    last = (centre + reach + 0.5).astype(int).clip(max=before)
    at = first + np.arange((last - first).max())[:, None]
    curve = np.where(at < last, _curve((at + 0.5 - centre) / stretch, way), 0.0)
    weights = curve / curve.sum(axis=0)
    shift = 0
    while shift < 22 and int(0.5 + weights.max() * 2 ** (shift + 1)) < 1 << BITS:
        shift += 1
    half = np.where(weights < 0, -0.5, 0.5)
    return at.clip(max=before - 1), np.trunc(weights * 2.0**shift + half).astype(np.int32), shift


def _curve(x: NDArray[np.float64], way: str) -> NDArray[np.float64]:
    """Return the filter's weight of a pixel at this distance."""
    x, a = np.abs(x), SHARPNESS
    if way == "bilinear":
        return np.where(x < 1, 1 - x, 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
