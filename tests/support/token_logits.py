"""Logits of a token classifier that is often right."""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from hydrasurgeon.anatomy.word_logits import NOTHING
from hydrasurgeon.statistics.entities import with_openings

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def drawn(texts: int, seed: int, *, noise: float = 1.5) -> tuple[ndarray, ndarray, list[int]]:
    """Draw logits of two members, tags, which are wider, and the number of words of each text."""
    random = np.random.default_rng(seed)
    counts = random.integers(0, 9, size=texts)
    there = np.arange(8) < counts[:, None]
    tags = random.choice(len(NAMES), size=(texts, 8), p=[0.4, 0.2, 0.1, 0.1, 0.2])
    # What data say has a B wherever an entity begins.
    tags = with_openings(np.asarray(tags))
    scores = noise * random.normal(size=(texts, 2, 8, len(NAMES)))
    scores += 2 * (tags[..., None] == np.arange(len(NAMES)))[:, None]
    logits = np.where(there[:, None, :, None], scores, NOTHING).astype("float32")
    labels = np.full((texts, 9), -1)
    labels[:, :8] = np.where(there, tags, -1)
    return np.asarray(logits), np.asarray(labels), counts.tolist()
