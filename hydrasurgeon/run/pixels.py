"""The reader of pixels: one linear layer on what numpy sees of an image.

Colours in each quarter (square roots of 4×4×4 counts), directions of edges in 16 cells (nine of
them, weighed by how strong each edge is) and a thumbnail of 8×8 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Image = NDArray[np.uint8]
"""[height, width, 3]."""

SHADES = 4
"""Of each colour."""
DIRECTIONS = 9
CELLS = 4
"""Along each side."""
THUMBNAIL = 8
"""Pixels along each side."""
WIDTH = 4 * SHADES**3 + CELLS**2 * DIRECTIONS + 3 * THUMBNAIL**2
"""Numbers that an image becomes."""


@dataclass(frozen=True)
class Pixels:
    """A fitted reader."""

    mean: Floats
    scale: Floats
    """Mean and deviation of each number over the images it was fitted on."""
    weight: Floats
    """[number, output]."""
    bias: Floats

    def read(self, features: Floats) -> Floats:
        """Outputs, and in the last column how far each image lies from those it was fitted on: the mean
        of its squared numbers.
        """
        novelty = (self.standardised(features) ** 2).mean(axis=1)
        return np.concatenate([self.outputs(features), novelty[:, None]], axis=1)

    def outputs(self, features: Floats) -> Floats:
        """[image, output] of `features_of` some images."""
        result: Floats = self.standardised(features) @ self.weight + self.bias
        return result

    def standardised(self, features: Floats) -> Floats:
        """In deviations from the mean."""
        return (features - self.mean) / self.scale


def features_of(image: Image) -> Floats:
    """The numbers of an image."""
    grey = image.mean(axis=2)
    return np.concatenate([colours(image), edges(grey), thumbnail(image)])


def colours(image: Image) -> Floats:
    """Square roots of the share of each shade in each quarter."""
    height, width, _ = image.shape
    shades = image // (256 // SHADES)
    shade = shades @ np.array([SHADES**2, SHADES, 1])
    below = np.arange(height) >= height / 2
    right = np.arange(width) >= width / 2
    quarter = 2 * below[:, None] + right[None, :]
    counts = np.bincount((quarter * SHADES**3 + shade).ravel(), minlength=4 * SHADES**3)
    parts = counts.reshape(4, -1)
    result: Floats = np.sqrt(parts / np.maximum(parts.sum(axis=1, keepdims=True), 1)).ravel()
    return result


def edges(grey: Floats) -> Floats:
    """The strength of edges in each direction and cell, of unit length."""
    down, across = _slopes(grey, 0), _slopes(grey, 1)
    strength = np.hypot(down, across)
    turned = np.mod(np.arctan2(down, across), np.pi) / np.pi
    direction = np.minimum((turned * DIRECTIONS).astype(int), DIRECTIONS - 1)
    height, width = grey.shape
    rows = np.arange(height) * CELLS // height
    columns = np.arange(width) * CELLS // width
    cell = rows[:, None] * CELLS + columns[None, :]
    places = (cell * DIRECTIONS + direction).ravel()
    summed = np.bincount(places, strength.ravel(), CELLS**2 * DIRECTIONS)
    result: Floats = np.sqrt(summed / max(float(summed.sum()), 1e-12))
    return result


def _slopes(grey: Floats, axis: int) -> Floats:
    """Differences between the neighbours on both sides of each pixel."""
    if grey.shape[axis] < 2:
        return np.zeros_like(grey)
    result: Floats = np.gradient(grey, axis=axis)
    return result


def thumbnail(image: Image) -> Floats:
    """Mean colours of 8×8 parts, from 0 to 1."""
    small = _means(_means(image.astype(np.float64), 0), 1)
    result: Floats = small.ravel() / 255
    return result


def _means(values: Floats, axis: int) -> Floats:
    """Means of equal parts along an axis; a part of a small image may be one pixel, twice."""
    length = values.shape[axis]
    starts = np.arange(THUMBNAIL) * length // THUMBNAIL
    counts = np.maximum(np.diff([*starts, length]), 1)
    summed = np.add.reduceat(values, starts, axis=axis)
    shape = [1] * values.ndim
    shape[axis] = THUMBNAIL
    result: Floats = summed / counts.reshape(shape)
    return result
