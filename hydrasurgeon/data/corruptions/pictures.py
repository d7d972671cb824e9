"""ImageNet-C's fifteen corruptions (Hendrycks & Dietterich 2019) in numpy and Pillow: a table of functions.

Each takes a picture [height, width, channel] in 0..1, its constants and a generator. Two differ from ImageNet-C's:
frost lays a texture of ours over the picture, of the brightness and contrast of the six photographs used there; elastic
transforms interpolate once, not twice.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from hydrasurgeon.data.corruptions.filters import (
    Floats,
    Random,
    convolved,
    disk,
    gaussian,
    motion,
    plasma,
    sampled,
    zoomed,
)
from hydrasurgeon.data.corruptions.kinds import LARGE, SMALL, SMALL_BELOW
from hydrasurgeon.data.images import plain

LONGEST = 256
"""Pixels of the shorter side: larger pictures are reduced to it first, as ImageNet-C was made."""
LUMA = (0.299, 0.587, 0.114)
"""How bright red, green and blue look."""


def spoiled(image: Image.Image, name: str, severity: int, random: Random) -> Image.Image:
    """A picture corrupted, grey or RGB as it was."""
    image = plain(image)
    shorter = min(image.size)
    if shorter > LONGEST:
        size = (round(side * LONGEST / shorter) for side in image.size)
        image = image.resize(tuple(size), Image.Resampling.BILINEAR)  # type: ignore[arg-type]
    constants = (SMALL if shorter < SMALL_BELOW else LARGE)[name][severity - 1]
    pixels = np.asarray(image)
    x = (pixels if pixels.ndim == 3 else pixels[..., None]).astype(np.float32) / 255
    return _picture(CORRUPTIONS[name](x, constants, random))


def _picture(x: Floats) -> Image.Image:
    pixels = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _impulse_noise(x: Floats, share: float, random: Random) -> Floats:
    """Salt and pepper, each half of the share."""
    chance = random.random(x.shape)
    return np.where(chance < share, (chance < share / 2).astype(np.float32), x)


def _glass_blur(x: Floats, c: tuple[float, int, int], random: Random) -> Floats:
    """Between two blurs, pixels take the place of near ones too, from the last to the first.

    The original means to swap them, but copies: what it made and everybody measures on are copies.
    """
    sigma, reach, rounds = c
    height, width, channels = x.shape
    order = list(range(height * width))
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    for _ in range(rounds):
        shifts = random.integers(-reach, reach, (len(rows) * len(columns), 2))
        moves = iter((shifts[:, 0] * width + shifts[:, 1]).tolist())
        for row in rows:
            for here in range(row * width + width - reach, row * width + reach, -1):
                there = here + next(moves)
                order[here] = order[there]
    shuffled = gaussian(x, sigma).reshape(-1, channels)[order].reshape(x.shape)
    return gaussian(shuffled, sigma)


def _zoom_blur(x: Floats, c: tuple[int, float], random: Random) -> Floats:
    """The mean of a picture and of `count` zooms of it, each `step` closer."""
    count, step = c
    total = x + sum(zoomed(x, 1 + step * at) for at in range(count))
    return total / np.float32(count + 1)


def _snow(x: Floats, c: tuple[float, ...], random: Random) -> Floats:
    """Flakes, drawn to streaks, over a picture whose dark parts are paler."""
    mean, deviation, size, least, radius, sigma, clarity = c
    flakes = zoomed(random.normal(mean, deviation, (*x.shape[:2], 1)).astype(np.float32), size)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    streaks = motion(flakes, int(radius), sigma, random.uniform(-135, -45))
    luma = x if x.shape[-1] == 1 else (x @ np.array(LUMA, np.float32))[..., None]
    pale = clarity * x + (1 - clarity) * np.maximum(x, luma * 1.5 + 0.5)
    return pale + streaks + streaks[::-1, ::-1]


def _ice(shape: tuple[int, ...], random: Random) -> Floats:
    """Frozen glass: needles along the ridges of clouds, denser where another cloud is thick."""
    needles = np.zeros((*shape[:2], 1), np.float32)
    for _ in range(3):
        ridge = 1 - np.abs(2 * plasma(shape, 1.5, random) - 1)
        needles = np.maximum(needles, motion(ridge**6, 4, 3, random.uniform(0, 360)))
    cover = np.clip(1.6 * plasma(shape, 1.9, random) - 0.3, 0, 1)
    ice = 0.32 + 0.32 * cover + 0.44 * needles * (0.3 + 0.7 * cover)
    # Ice is a little blue.
    tint = (1.0,) if shape[-1] == 1 else (0.92, 1.0, 1.08)
    frozen: Floats = ice * np.array(tint, np.float32)
    return frozen


def _fog(x: Floats, c: tuple[float, float], random: Random) -> Floats:
    thickness, decay = c
    brightest = max(float(x.max()), 1e-6)
    return (x + thickness * plasma(x.shape, decay, random)) * (brightest / (brightest + thickness))


def _brightness(x: Floats, more: float, random: Random) -> Floats:
    """The value of HSV is raised; hue and saturation stay."""
    value = x.max(axis=-1, keepdims=True)
    raised = np.minimum(value + np.float32(more), 1)
    return np.where(value > 0, x * (raised / np.maximum(value, 1e-6)), raised)


def _contrast(x: Floats, left: float, random: Random) -> Floats:
    mean = x.mean(axis=(0, 1), keepdims=True, dtype=np.float64).astype(np.float32)
    return (x - mean) * np.float32(left) + mean


def _elastic_transform(x: Floats, c: tuple[float, float, float], random: Random) -> Floats:
    """Three points are moved, all others with them; then each pixel a little on its own, like its neighbours."""
    strength, smoothness, slant = c
    height, width = x.shape[:2]
    middle, side = np.array([height // 2, width // 2], np.float64), min(height, width) // 3
    corners = middle + side * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + random.uniform(-slant, slant, corners.shape)
    ones = np.ones((3, 1))
    back = np.linalg.lstsq(np.hstack([moved, ones]), corners, rcond=None)[0]
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    bend = [
        strength
        * gaussian(random.uniform(-1, 1, (height, width)).astype(np.float32), smoothness, reach=3, mode="symmetric")
        if strength
        else 0.0
        for _ in range(2)
    ]
    rows, columns = rows + bend[0], columns + bend[1]
    places = [back[0, at] * rows + back[1, at] * columns + back[2, at] for at in range(2)]
    return sampled(x, *places)


def _pixelate(x: Floats, share: float, random: Random) -> Floats:
    image = _picture(x)
    small = (max(1, math.floor(image.width * share)), max(1, math.floor(image.height * share)))
    coarse = image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)
    return np.asarray(coarse).reshape(x.shape).astype(np.float32) / 255


def _jpeg_compression(x: Floats, quality: int, random: Random) -> Floats:
    buffer = io.BytesIO()
    _picture(x).save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as decoded:
        return np.asarray(decoded).reshape(x.shape).astype(np.float32) / 255


CORRUPTIONS: dict[str, Callable[[Floats, Any, Random], Floats]] = {
    "gaussian_noise": lambda x, deviation, random: x + deviation * random.standard_normal(x.shape, np.float32),
    "shot_noise": lambda x, photons, random: (random.poisson(x.astype("f8") * photons) / photons).astype("f4"),
    "impulse_noise": _impulse_noise,
    "defocus_blur": lambda x, lens, random: convolved(x, disk(*lens)),
    "glass_blur": _glass_blur,
    "motion_blur": lambda x, c, random: motion(x, c[0], c[1], random.uniform(-45, 45)),
    "zoom_blur": _zoom_blur,
    "snow": _snow,
    "frost": lambda x, c, random: c[0] * x + c[1] * _ice(x.shape, random),
    "fog": _fog,
    "brightness": _brightness,
    "contrast": _contrast,
    "elastic_transform": _elastic_transform,
    "pixelate": _pixelate,
    "jpeg_compression": _jpeg_compression,
}
"""Name → what makes it."""
