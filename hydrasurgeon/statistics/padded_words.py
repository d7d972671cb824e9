"""Places for the words of texts in arrays: the axis of words is as long as the longest text, and a
place without a word holds `NOTHING` in all classes. `anatomy.word_logits` says where it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Bool, Float

NOTHING = -16384.0
"""The logit of every class where there is no word: exact in any floating-point type, and no softmax of
it is NaN.
"""


def are_there(logits: Float[ndarray, "*any word klass"]) -> Bool[ndarray, "*any word"]:
    """Return which places hold a word."""
    there: ndarray = (logits != NOTHING).any(axis=-1)
    return there


def mean_of_words(
    values: Float[ndarray, "text *member word width"],
) -> Float[ndarray, "text *member width"]:
    """Average the values of each text's words; zeros for a text without words."""
    there = are_there(values)[..., None]
    mean: ndarray = (values * there).sum(axis=-2) / np.maximum(there.sum(axis=-2), 1)
    return mean


def widened(values: ndarray, count: int, axis: int) -> ndarray:
    """Pad the axis of words to `count` places: NOTHING in logits, −1 in labels, False in flags."""
    lacking = count - values.shape[axis]
    if lacking <= 0:
        return values
    fill = {"f": NOTHING, "b": 0}.get(values.dtype.kind, -1)
    shape = [*values.shape]
    shape[axis] = lacking
    return np.concatenate([values, np.full(shape, fill, values.dtype)], axis=axis)


def alike(*parts: ndarray) -> list[ndarray]:
    """Pad arrays to the same number of words, if they differ in it."""
    axes = [i for i in range(1, parts[0].ndim) if len({part.shape[i] for part in parts}) > 1]
    if not axes:
        return [*parts]
    (axis,) = axes
    most = max(part.shape[axis] for part in parts)
    return [widened(part, most, axis) for part in parts]


def joined(parts: Sequence[ndarray]) -> ndarray:
    """Concatenate samples."""
    return parts[0] if len(parts) == 1 else np.concatenate(alike(*parts))
