"""Perturbed samples: a substitute for OOD data."""

from __future__ import annotations

import numpy as np
from PIL import Image

from hydrasurgeon.data.samples import Decoded, Samples, Subset
from hydrasurgeon.errors import DataError

TILES = 3
"""Tiles along each side of a perturbed image."""


class Perturbed(Subset):
    """Perturbed copies of another set's samples, as a substitute for OOD data; without labels.

    Images are cut into tiles that change places; texts are put together from words of all samples.
    """

    def __init__(self, parent: Samples, seed: int = 0) -> None:
        super().__init__(parent, None)
        self.spec, self.seed = f"{parent.spec}, perturbed", seed

    def read(self, i: int) -> Decoded:
        random = np.random.default_rng((self.seed, i))
        raw = self.parent.read(i)
        if isinstance(raw, str):
            return self._salad(raw, random)
        if isinstance(raw, tuple):
            return self._salad(raw[0], random), self._salad(raw[1], random)
        return _shuffled(raw, random)

    def _salad(self, text: str, random: np.random.Generator) -> str:
        """Return a text of as many words, each from a randomly drawn sample."""
        words = []
        for _ in text.split():
            at = int(random.integers(len(self.parent)))
            try:
                choice = _words(self.parent.read(at))
            except DataError:  # of a row without text, which --skip-bad leaves out
                choice = _words(text)
            words += [choice[int(random.integers(len(choice)))]] if choice else []
        return " ".join(words)


def _words(sample: Decoded) -> list[str]:
    """Return all words of a text, or of a pair of texts."""
    text = " ".join(sample) if isinstance(sample, tuple) else str(sample)
    return text.split()


def _shuffled(image: Image.Image, random: np.random.Generator) -> Image.Image:
    pixels = np.asarray(image)
    rows, columns = (np.linspace(0, size, TILES + 1).astype(int) for size in pixels.shape[:2])
    height, width = np.diff(rows).min(), np.diff(columns).min()
    if not height or not width:
        return image
    places = [(int(r), int(c)) for r in rows[:-1] for c in columns[:-1]]
    spoiled = pixels.copy()
    for (r, c), at in zip(places, random.permutation(len(places)), strict=True):
        top, left = places[int(at)]
        spoiled[r : r + height, c : c + width] = pixels[top : top + height, left : left + width]
    return Image.fromarray(spoiled)
