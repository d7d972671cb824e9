"""Random numbers equal to torch's for the same seed (MT19937), without torch.

Fits and intervals then agree with those of older versions.
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Float, Int

WORDS = 1 << 20
"""Words that are drawn at a time."""


class Drawing:
    """A sequence of random numbers."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed & 0xFFFFFFFF)

    def _words(self, count: int) -> Int[ndarray, " word"]:
        """Draw words of 32 random bits."""
        return self._state.randint(0, 1 << 32, size=count, dtype=np.uint32)

    def integers(self, below: int, shape: tuple[int, ...]) -> Int[ndarray, ...]:
        """Draw integers from 0 to below − 1 with equal probability."""
        words = self._words(int(np.prod(shape)))
        words %= np.uint32(below)
        return words.astype(np.int64).reshape(shape)

    def order(self, count: int) -> Int[ndarray, " place"]:
        """Draw a random order of the numbers below `count` (Fisher and Yates)."""
        places = list(range(count))
        words = self._words(max(0, count - 1)).astype(np.int64)
        steps = (words % (count - np.arange(len(words)))).tolist()
        for at, step in enumerate(steps):
            other = at + step
            places[at], places[other] = places[other], places[at]
        return np.array(places, dtype=np.int64)

    def fractions(self, count: int) -> Float[ndarray, " number"]:
        """Draw numbers from [0, 1) with 53 random bits."""
        words = self._words(2 * count).astype(np.uint64).reshape(-1, 2)
        bits = (words[:, 0] << np.uint64(32)) | words[:, 1]
        return (bits & np.uint64((1 << 53) - 1)) * 2.0**-53

    def singles(self, shape: tuple[int, ...]) -> Float[ndarray, ...]:
        """Draw float32 numbers from [0, 1) with 24 random bits."""
        words = self._words(int(np.prod(shape))) & np.uint32((1 << 24) - 1)
        return (words * np.float32(2.0**-24)).astype(np.float32).reshape(shape)
