"""Pictures as arrays [height, width, channel] in 0..1: blurs, zooms, warps and clouds that corruptions are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Random = np.random.Generator


def gaussian(x: Floats, sigma: float, *, reach: float = 4, mode: str = "edge") -> Floats:
    """Blurred along both sides; the kernel ends `reach` deviations away."""
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
    """Every channel with a square kernel of odd size, mirrored at the borders."""
    reach = len(kernel) // 2
    padded = np.pad(x, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    height, width = x.shape[:2]
    total = np.zeros_like(x)
    for (row, column), weight in np.ndenumerate(kernel):
        if weight:
            total += np.float32(weight) * padded[row : row + height, column : column + width]
    return total


def disk(radius: float, softness: float) -> NDArray[np.float64]:
    """A lens out of focus: an even disk, its edge softened by a small gaussian."""
    # Room for the disk and its soft edge, never less than for eight pixels.
    reach, soft = (8, 1) if radius <= 8 else (math.ceil(radius), 2)
    steps = np.arange(-reach - soft, reach + soft + 1)
    inside = (steps[:, None] ** 2 + steps[None] ** 2 <= radius**2).astype(np.float64)
    weights = np.exp(-0.5 * (np.arange(-soft, soft + 1) / softness) ** 2)
    weights /= weights.sum()
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = sum((w * np.roll(kernel, at - soft, axis=axis) for at, w in enumerate(weights)), np.zeros_like(kernel))
    return kernel


def motion(x: Floats, radius: int, sigma: float, degrees: float) -> Floats:
    """A trail to one side, fading like half a gaussian; what lies outside is the border's colour."""
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
    """The middle of a picture, enlarged to the picture's size."""
    for axis in (0, 1):
        size = x.shape[axis]
        crop = math.ceil(size / factor)
        # The crop's ends fall on the ends of what it becomes, whose middle is taken.
        whole = max(round(crop * factor), size)
        steps = np.arange(size) + (whole - size) // 2
        x = _between(x, (size - crop) // 2 + steps * ((crop - 1) / max(whole - 1, 1)), axis)
    return x


def _between(x: Floats, places: NDArray[np.float64], axis: int) -> Floats:
    """Linear interpolation along one side, at places within it."""
    first = np.minimum(np.floor(places).astype(int), x.shape[axis] - 1)
    second = np.minimum(first + 1, x.shape[axis] - 1)
    shape = [-1 if at == axis else 1 for at in range(x.ndim)]
    share = (places - first).astype(np.float32).reshape(shape)
    return x.take(first, axis) * (1 - share) + x.take(second, axis) * share


def sampled(x: Floats, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> Floats:
    """The picture at real-valued places, [height, width] of each, mirrored at the borders."""
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
    """Places beyond the first and last pixel, folded back."""
    if size == 1:
        return np.zeros_like(places)
    folded = np.mod(places, 2 * (size - 1))
    return np.minimum(folded, 2 * (size - 1) - folded)


def plasma(shape: tuple[int, ...], decay: float, random: Random) -> Floats:
    """Clouds in 0..1: a grid is halved again and again, each time with `decay`² times less of what is random."""
    cloud = np.zeros((1, 1))
    strength = 1.0
    while len(cloud) < max(shape[:2]):
        finer = np.empty((2 * len(cloud),) * 2)
        noise = strength * random.uniform(-1, 1, finer.shape)
        right, below = np.roll(cloud, -1, axis=1), np.roll(cloud, -1, axis=0)
        middle = (cloud + right + below + np.roll(below, -1, axis=1)) / 4 + noise[1::2, 1::2]
        finer[::2, ::2], finer[1::2, 1::2] = cloud, middle
        finer[::2, 1::2] = (cloud + right + middle + np.roll(middle, 1, axis=0)) / 4 + noise[::2, 1::2]
        finer[1::2, ::2] = (cloud + below + middle + np.roll(middle, 1, axis=1)) / 4 + noise[1::2, ::2]
        cloud, strength = finer, strength / decay**2
    cloud -= cloud.min()
    cloud /= max(float(cloud.max()), 1e-12)
    return cloud[: shape[0], : shape[1], None].astype(np.float32)
