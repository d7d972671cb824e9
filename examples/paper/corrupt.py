"""Writes corrupted copies of a labelled data set: ImageNet-C's fifteen corruptions, two of texts.

    python examples/paper/corrupt.py D OUT [all|NAME[:S]...] [--limit N] [--seed S]

It prints what `hydrasurgeon eval` takes, one `--shift NAME:S=FILE` for each set:

    hydrasurgeon eval MODEL --data D $(python examples/paper/corrupt.py D OUT all:3)

Images are written as .npz where all have one size, else as folders of PNG files; texts as .jsonl.
What is random follows from the seed, the corruption's name and the sample's own content, never from
its place: the same sample is corrupted alike in any subset or order, and at every severity by the
same draws.

ImageNet-C (Hendrycks & Dietterich 2019) in numpy and Pillow: each corruption takes a picture
[height, width, channel] in 0..1, its constants and a generator. Two differ from ImageNet-C's: frost
lays a texture of ours over the picture, of the brightness and contrast of the six photographs used
there; elastic transforms interpolate once, not twice.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hydrasurgeon.data import Samples, open_data
from hydrasurgeon.data.images import plain
from hydrasurgeon.data.samples import Subset
from hydrasurgeon.errors import DataError, HydraError, UsageError
from hydrasurgeon.lookup import did_you_mean

Floats = NDArray[np.floating[Any]]
Random = np.random.Generator


def gaussian(x: Floats, sigma: float, *, reach: float = 4, mode: str = "edge") -> Floats:
    """Return a picture blurred along both sides; the kernel ends `reach` standard deviations away."""
    radius = int(reach * sigma + 0.5)
    if radius == 0:
        return x
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    for axis in (0, 1):
        size = x.shape[axis]
        widths = [(radius, radius) if at == axis else (0, 0) for at in range(x.ndim)]
        padded = np.pad(x, widths, mode=mode)  # type: ignore[call-overload]
        blurred = np.zeros_like(x)
        for at, weight in enumerate(weights):
            part = [slice(at, at + size) if a == axis else slice(None) for a in range(x.ndim)]
            blurred += np.float32(weight) * padded[tuple(part)]
        x = blurred
    return x


def convolved(x: Floats, kernel: NDArray[np.float64]) -> Floats:
    """Return every channel filtered with a square kernel of odd size, with mirrored borders."""
    reach = len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    height, width = x.shape[:2]
    total = np.zeros_like(x)
    for (row, column), weight in np.ndenumerate(kernel):
        if weight:
            total += np.float32(weight) * padded[row : row + height, column : column + width]
    return total


def disk(radius: float, softness: float) -> NDArray[np.float64]:
    """Return a defocused picture: the kernel is an even disk whose edge a small gaussian softens."""
    # Room for the disk and its soft edge, never less than for eight pixels.
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    steps = np.arange(-reach - soft, reach + soft + 1)
    inside = (steps[:, None] ** 2 + steps[None] ** 2 <= radius**2).astype(np.float64)
    weights = np.exp(-0.5 * (np.arange(-soft, soft + 1) / softness) ** 2)
    weights /= weights.sum()
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = sum(
            (w * np.roll(kernel, at - soft, axis=axis) for at, w in enumerate(weights)),
            np.zeros_like(kernel),
        )
    return kernel


def motion(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """Return a picture with a trail to one side that fades like half a gaussian; outside lies the
    border's colour.
    """
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    height, width = x.shape[:2]
    rows, columns = np.arange(height), np.arange(width)
    down, right = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    blurred = np.zeros_like(x)
    for step, weight in enumerate(weights):
        from_rows = np.clip(rows + round(step * down), 0, height - 1)
        from_columns = np.clip(columns + round(step * right), 0, width - 1)
        blurred += np.float32(weight) * x[from_rows[:, None], from_columns]
    return blurred


def zoomed(x: Floats, factor: float) -> Floats:
    """Return the middle of a picture, enlarged to the picture's size."""
    for axis in (0, 1):
        size = x.shape[axis]
        crop = math.ceil(size / factor)
        # The crop's ends fall on the ends of what it becomes, whose middle is taken.
        size_after = max(round(crop * factor), size)
        steps = np.arange(size) + (size_after - size) // 2
        x = _between(x, (size - crop) // 2 + steps * ((crop - 1) / max(size_after - 1, 1)), axis)
    return x


def _between(x: Floats, places: NDArray[np.float64], axis: int) -> Floats:
    """Return the linear interpolation along one side, at places within it."""
    first = np.minimum(np.floor(places).astype(int), x.shape[axis] - 1)
    second = np.minimum(first + 1, x.shape[axis] - 1)
    shape = [-1 if at == axis else 1 for at in range(x.ndim)]
    share = (places - first).astype(np.float32).reshape(shape)
    return x.take(first, axis) * (1 - share) + x.take(second, axis) * share


def sampled(x: Floats, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Floats:
    """Return the picture at real-valued places, [height, width] of each, mirrored at the borders."""
    rows, columns = _mirrored(rows, x.shape[0]), _mirrored(columns, x.shape[1])
    top = np.minimum(np.floor(rows).astype(int), x.shape[0] - 1)
    left = np.minimum(np.floor(columns).astype(int), x.shape[1] - 1)
    bottom = np.minimum(top + 1, x.shape[0] - 1)
    right = np.minimum(left + 1, x.shape[1] - 1)
    down = (rows - top).astype(np.float32)[..., None]
    across = (columns - left).astype(np.float32)[..., None]
    upper = x[top, left] * (1 - across) + x[top, right] * across
    lower = x[bottom, left] * (1 - across) + x[bottom, right] * across
    mixed: Floats = upper * (1 - down) + lower * down
    return mixed


def _mirrored(places: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return places within the picture: those beyond the first or last pixel are folded back."""
    if size == 1:
        return np.zeros_like(places)
    folded = np.mod(places, 2 * (size - 1))
    return np.minimum(folded, 2 * (size - 1) - folded)


def plasma(shape: tuple[int, ...], decay: float, random: Random) -> Floats:
    """Return clouds in 0..1: a grid is halved repeatedly, and each time the random part is
    `decay`² times smaller.
    """
    cloud = np.zeros((1, 1))
    strength = 1.0
    while len(cloud) < max(shape[:2]):
        finer = np.empty((2 * len(cloud),) * 2)
        noise = strength * random.uniform(-1, 1, finer.shape)
        right, below = np.roll(cloud, -1, axis=1), np.roll(cloud, -1, axis=0)
        middle = (cloud + right + below + np.roll(below, -1, axis=1)) / 4 + noise[1::2, 1::2]
        finer[::2, ::2], finer[1::2, 1::2] = cloud, middle
        finer[::2, 1::2] = (cloud + right + middle + np.roll(middle, 1, axis=0)) / 4 + noise[
            ::2, 1::2
        ]
        finer[1::2, ::2] = (cloud + below + middle + np.roll(middle, 1, axis=1)) / 4 + noise[
            1::2, ::2
        ]
        cloud, strength = finer, strength / decay**2
    cloud -= cloud.min()
    cloud /= max(float(cloud.max()), 1e-12)
    return cloud[: shape[0], : shape[1], None].astype(np.float32)


SMALL_BELOW = 64
"""Images whose shorter side has fewer pixels take CIFAR-C's numbers, which were made for 32; others
ImageNet-C's.
"""

LARGE: dict[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ),
    "pixelate": (0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": (25, 18, 15, 10, 7),
}
"""Name → its constants at each severity; what they are stands where they are used."""

SMALL: dict[str, tuple[Any, ...]] = {
    "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": (500, 250, 100, 75, 50),
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    ),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": (80, 65, 58, 50, 40),
}
"""The same for small images."""

LONGEST = 256
"""Pixels of the shorter side: larger pictures are reduced to it first, as ImageNet-C was made."""
ORIENTING = ("exif", "xmp")
"""Metadata that may hold a picture's orientation."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in luminance."""


def spoiled(image: Image.Image, name: str, severity: int, random: Random) -> Image.Image:
    """Return a corrupted picture, grey or RGB like the original."""
    image = plain(image)
    shorter = min(image.size)
    if shorter > LONGEST:
        size = (round(side * LONGEST / shorter) for side in image.size)
        image = image.resize(tuple(size), Image.Resampling.BILINEAR)  # type: ignore[arg-type]
    constants = (SMALL if shorter < SMALL_BELOW else LARGE)[name][severity - 1]
    pixels = np.asarray(image)
    x = (pixels if pixels.ndim == 3 else pixels[..., None]).astype(np.float32) / 255
    corrupted = _picture(CORRUPTIONS[name](x, constants, random))
    corrupted.info = {key: image.info[key] for key in ORIENTING if key in image.info}
    return corrupted


def _picture(x: Floats) -> Image.Image:
    pixels = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _impulse_noise(x: Floats, share: float, random: Random) -> Floats:
    """Return a picture with salt and pepper, each on half of the share."""
    chance = random.random(x.shape)
    return np.where(chance < share, (chance < share / 2).astype(np.float32), x)


def _glass_blur(x: Floats, c: tuple[float, int, int], random: Random) -> Floats:
    """Return a blurred picture whose pixels also swap places with near ones, from the last to the
    first.

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
    """Return the mean of a picture and of `count` zooms of it, each `step` closer."""
    count, step = c
    total = x + sum(zoomed(x, 1 + step * at) for at in range(count))
    return total / np.float32(count + 1)


def _snow(x: Floats, c: tuple[float, ...], random: Random) -> Floats:
    """Return a picture with flakes that are drawn to streaks; its dark parts are paler."""
    mean, deviation, size, least, radius, sigma, clarity = c
    flakes = zoomed(random.normal(mean, deviation, (*x.shape[:2], 1)).astype(np.float32), size)
    flakes = np.clip(np.where(flakes < least, 0, flakes), 0, 1)
    streaks = motion(flakes, int(radius), sigma, random.uniform(-135, -45))
    luma = x if x.shape[-1] == 1 else (x @ np.array(LUMA, np.float32))[..., None]
    pale = clarity * x + (1 - clarity) * np.maximum(x, luma * 1.5 + 0.5)
    return pale + streaks + streaks[::-1, ::-1]


def _ice(shape: tuple[int, ...], random: Random) -> Floats:
    """Return a picture behind frozen glass: needles along the ridges of clouds, denser where
    another cloud is thick.
    """
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
    """Return a picture with a raised HSV value, and the same hue and saturation."""
    value = x.max(axis=-1, keepdims=True)
    raised = np.minimum(value + np.float32(more), 1)
    return np.where(value > 0, x * (raised / np.maximum(value, 1e-6)), raised)


def _contrast(x: Floats, left: float, random: Random) -> Floats:
    mean = x.mean(axis=(0, 1), keepdims=True, dtype=np.float64).astype(np.float32)
    return (x - mean) * np.float32(left) + mean


def _elastic_transform(x: Floats, c: tuple[float, float, float], random: Random) -> Floats:
    """Return a warped picture: an affine map that moves three points, then small smooth
    displacements of each pixel.
    """
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
        * gaussian(
            random.uniform(-1, 1, (height, width)).astype(np.float32),
            smoothness,
            reach=3,
            mode="symmetric",
        )
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
    "gaussian_noise": lambda x, deviation, random: (
        x + deviation * random.standard_normal(x.shape, np.float32)
    ),
    "shot_noise": lambda x, photons, random: (
        random.poisson(x.astype("f8") * photons) / photons
    ).astype("f4"),
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

TEXT = {"typos": (0.01, 0.02, 0.04, 0.07, 0.1), "word_dropout": (0.05, 0.1, 0.2, 0.3, 0.4)}
"""For texts: the chance of each letter to be mistyped, of each word to be left out."""
NAMES: dict[str, tuple[str, ...]] = {"image": tuple(LARGE), "text": tuple(TEXT)}
"""Kind of data → its corruptions, in ImageNet-C's order."""
SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly seen to hardly told."""
FORM = re.compile(r"([\w-]+)(?::([0-9]{1,9}))?")
"""NAME or NAME:SEVERITY."""


class Corruption(NamedTuple):
    """One way to corrupt samples, and how much."""

    name: str
    severity: int


def corruptions_of(entries: Iterable[str], kind: str) -> tuple[Corruption, ...]:
    """Return the requested corruptions without repetitions. `all` stands for every corruption of
    this kind of data; a name without severity stands for all five.
    """
    corruptions: dict[Corruption, None] = {}
    names = ("all", *NAMES[kind])
    for entry in entries:
        match, name = FORM.fullmatch(entry), entry.partition(":")[0]
        severity = int(match[2]) if match and match[2] else None
        if name not in names:
            raise UsageError(
                (
                    f"{entry}: no such corruption of "
                    f"{kind}s{did_you_mean(name.lower().replace('-', '_'), names)}"
                ),
                hint=f"There are {', '.join(names)}.",
            )
        if not match or severity not in (None, *SEVERITIES):
            raise UsageError(
                f"{entry}: no such severity", hint=f"Severities are 1 to {SEVERITIES[-1]}."
            )
        for corruption in NAMES[kind] if name == "all" else (name,):
            for strength in SEVERITIES if severity is None else (severity,):
                corruptions[Corruption(corruption, strength)] = None
    return tuple(corruptions)


ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
"""Rows of a keyboard: a typo hits the neighbouring letter."""
BESIDE = {
    key: row[max(0, at - 1) : at] + row[at + 1 : at + 2]
    for row in ROWS
    for at, key in enumerate(row)
}
"""Letter → the keys beside it."""


class Corrupted(Subset):
    """Every sample of another set, corrupted by one of several corruptions in turn; its labels
    stay.
    """

    def __init__(self, parent: Samples, *corruptions: Corruption, seed: int = 0) -> None:
        kinds = [f"{corruption.name}:{corruption.severity}" for corruption in corruptions]
        shown = kinds[0] if len(kinds) == 1 else f"{len(kinds)} corruptions of it"
        super().__init__(parent, parent.written)
        self.spec, self.corruptions, self.seed = f"{parent.spec}, {shown}", corruptions, seed

    def read(self, i: int) -> Any:
        raw = self.parent.read(i)
        name, severity = self.corruptions[i % len(self.corruptions)]
        if isinstance(raw, str):
            return scribbled(raw, name, severity, _random(self.seed, name, raw.encode()))
        if isinstance(raw, tuple):
            random = _random(self.seed, name, self.parent.content(i))
            first, second = (scribbled(str(text), name, severity, random) for text in raw)
            return first, second
        content = f"{raw.mode} {raw.size}".encode() + raw.tobytes()
        return spoiled(raw, name, severity, _random(self.seed, name, content))

    def content(self, i: int) -> bytes:
        name, severity = self.corruptions[i % len(self.corruptions)]
        return f"{name}:{severity}:{self.seed}:".encode() + self.parent.content(i)

    def fingerprint(self) -> dict[str, Any]:
        """Return the parent's fingerprint joined with the corruptions, so that 75 corruptions of a
        set read it once.
        """
        about = self._parents
        text = f"{self.corruptions} {self.seed} {about['sha256']}".encode()
        return {"spec": self.spec, "rows": len(self), "sha256": hashlib.sha256(text).hexdigest()}

    @cached_property
    def _parents(self) -> dict[str, Any]:
        return self.parent.fingerprint()


def _random(seed: int, name: str, content: bytes) -> np.random.Generator:
    """Return the random generator of one sample under one corruption."""
    digest = hashlib.sha256(f"{seed} {name} ".encode() + content).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def scribbled(text: str, name: str, severity: int, random: Random) -> str:
    """Return a text with `typos` or `word_dropout`."""
    chance = TEXT[name][severity - 1]
    return _mistyped(text, chance, random) if name == "typos" else _shortened(text, chance, random)


def _mistyped(text: str, chance: float, random: Random) -> str:
    """Return a text with letters left out, doubled, swapped with the next, or replaced by a
    neighbouring key. Every random number is drawn even if it is not used.
    """
    chances, kinds, picks = (
        random.random(len(text)),
        random.integers(4, size=len(text)),
        random.random(len(text)),
    )
    typed: list[str] = []
    swapped = False
    for at, letter in enumerate(text):
        if swapped:
            swapped = False
            continue
        following = text[at + 1 : at + 2]
        if chances[at] >= chance or not letter.isalpha():
            typed.append(letter)
        elif kinds[at] == 0:
            continue
        elif kinds[at] == 1:
            typed.append(2 * letter)
        elif kinds[at] == 2 and following.isalpha():
            typed.append(following + letter)
            swapped = True
        else:
            near = BESIDE.get(letter.lower(), letter.lower())
            key = near[int(picks[at] * len(near))]
            typed.append(key.upper() if letter.isupper() else key)
    return "".join(typed)


def _shortened(text: str, chance: float, random: Random) -> str:
    """Return a text without some of its words; at least one stays."""
    words = text.split()
    if not words:
        return text
    draws = random.random(len(words))
    stays = [word for word, draw in zip(words, draws, strict=True) if draw >= chance]
    return " ".join(stays or [words[int(draws.argmax())]])


def write(
    data: str,
    out: Path,
    entries: Iterable[str] = ("all",),
    *,
    limit: int | None = None,
    seed: int = 0,
) -> list[str]:
    """Write the corrupted sets, one file or folder each; return the --shift entry of each."""
    samples = open_data(data, limit=limit, seed=seed)
    if samples.written is None:
        raise DataError(f"{data}: has no labels", hint="eval measures labelled sets.")
    shifts = []
    out.mkdir(parents=True, exist_ok=True)
    for corruption in corruptions_of(entries, samples.kind):
        corrupted = Corrupted(samples, corruption, seed=seed)
        name = f"{corruption.name}-{corruption.severity}"
        if samples.kind == "text":
            path = _write_texts(corrupted, out / f"{name}.jsonl")
        else:
            path = _write_images(corrupted, out / name)
        shifts.append(f"{corruption.name}:{corruption.severity}={path}")
    return shifts


def _write_texts(samples: Samples, path: Path) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for i in range(len(samples)):
            text = samples.read(i)
            row: dict[str, Any] = {"text": text}
            if isinstance(text, tuple):
                row = dict(zip(("text", "text_pair"), text, strict=True))
            file.write(json.dumps({**row, "label": _label(samples, i)}, ensure_ascii=False) + "\n")
    return path


def _label(samples: Samples, i: int) -> Any:
    """Return a sample's label in the spelling of its data."""
    column = samples.written
    assert column is not None
    if column.labels.ndim == 2:
        return [(column.names or ())[at] for at in np.flatnonzero(column.labels[i])]
    if column.numbers is None and column.names is not None:
        return column.names[column.labels[i]]
    return column.positions[i].item()


def _write_images(samples: Samples, path: Path) -> Path:
    """Write one array if all pictures have one shape, else a folder for each class."""
    column = samples.written
    assert column is not None
    shapes = {np.asarray(samples.read(i)).shape for i in range(len(samples))}
    if len(shapes) > 1:
        for i in range(len(samples)):
            file = path / str(_label(samples, i)) / f"{i:08}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(samples.read(i))).save(file)
        return path
    arrays = {
        "images": np.stack([np.asarray(samples.read(i)) for i in range(len(samples))]),
        "labels": column.positions,
    }
    if column.names is not None and column.numbers is None:
        arrays["classes"] = np.array(column.names)
    path = path.with_name(f"{path.name}.npz")
    np.savez(path, allow_pickle=False, **arrays)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", metavar="D")
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("corruptions", metavar="all|NAME[:S]", nargs="*", default=["all"])
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    options = parser.parse_args()
    try:
        shifts = write(
            options.data, options.out, options.corruptions, limit=options.limit, seed=options.seed
        )
    except HydraError as error:
        sys.exit(f"{error.message} {error.hint or ''}")
    sys.stdout.write("".join(f"--shift {shift}\n" for shift in shifts))


if __name__ == "__main__":
    main()
