"""Member logits → probabilities: the mean over members of softmax(z_m), and temperature after
averaging; in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Float, Int

Logits = Float[ndarray, "sample member klass"]
Probs = Float[ndarray, "sample klass"]
Labels = Int[ndarray, " sample"]
Scores = Float[ndarray, " sample"]
TINY = 1e-300
"""Smallest positive probability: keeps the log finite for a class that got exactly 0."""
YES = 0.5
"""What is at least so true counts as yes."""


def true_classes(labels: ndarray) -> Int[ndarray, "*any"]:
    """Class numbers; of how true yes is the nearer one, no or yes."""
    return (labels >= YES).astype(np.int64) if labels.dtype.kind == "f" else labels


def yes_or_no(logits: ndarray) -> ndarray:
    """One logit z as those of two classes, 0 and z; others as they are."""
    return (
        np.concatenate([np.zeros_like(logits), logits], axis=-1)
        if logits.shape[-1] == 1
        else logits
    )


def softmax(logits: ndarray) -> ndarray:
    """Over the last axis."""
    made: ndarray = np.exp(logits - logits.max(axis=-1, keepdims=True))
    made /= made.sum(axis=-1, keepdims=True)
    return made


def logsumexp(values: ndarray, axis: int = -1) -> ndarray:
    """ln Σ exp over an axis."""
    most = values.max(axis=axis, keepdims=True)
    total = np.log(np.exp(values - most).sum(axis=axis, keepdims=True)) + most
    return np.squeeze(total, axis=axis)


def log_softmax(logits: ndarray) -> ndarray:
    """Over the last axis."""
    return logits - logsumexp(logits)[..., None]


def surest(probs: ndarray) -> tuple[ndarray, ndarray]:
    """The largest over the last axis, and where it stands; of equals the first."""
    place = probs.argmax(axis=-1)
    return np.take_along_axis(probs, place[..., None], axis=-1)[..., 0], place


def of_labels(values: ndarray, labels: ndarray) -> ndarray:
    """What stands in the last axis at each label."""
    return np.take_along_axis(values, labels[..., None], axis=-1)[..., 0]


def falling(values: ndarray) -> ndarray:
    """The order of falling values; equal ones as they come."""
    return np.argsort(-values, axis=-1, kind="stable")


def runs(ordered: ndarray) -> tuple[ndarray, ndarray]:
    """Of sorted values the number of each distinct one, and how many there are of it."""
    starts = np.ones(len(ordered), dtype=bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    number = starts.cumsum() - 1
    return number, np.bincount(number)


def spaced(high: float, count: int) -> ndarray:
    """So many numbers from 0 on at equal distances, in float32 from both ends, as torch has them."""
    places = np.arange(count, dtype=np.float32)
    step = np.float32(high) / np.float32(max(1, count - 1))
    from_high = np.float32(high) - step * (np.float32(count - 1) - places)
    return np.where(places < count // 2, step * places, from_high)


def sums_at(places: ndarray, values: ndarray, count: int) -> ndarray:
    """The sum of the values at each of so many places."""
    return np.bincount(places, weights=values, minlength=count)


def member_probs(logits: Logits) -> Float[ndarray, "sample member klass"]:
    """Each member's probabilities."""
    return softmax(logits.astype(np.float64))


def mean_probs(logits: Logits, temperature: float | ndarray = 1.0) -> Probs:
    """The mean over members of softmax(z_m), then softmax(ln p / T): temperature acts after
    averaging.
    """
    return tempered(member_probs(logits).mean(axis=1), temperature)


def tempered(probs: Probs, temperature: float | ndarray) -> Probs:
    if np.all(temperature == 1.0):
        return probs
    return softmax(np.log(np.maximum(probs, TINY)) / temperature)


def entropy(probs: ndarray) -> ndarray:
    """In nats, over the classes."""
    logs = np.log(np.maximum(probs, TINY))
    return np.where(probs > 0, -probs * logs, 0.0).sum(axis=-1)


def nll(probs: Probs, labels: Labels) -> float:
    """mean −ln p_y; a probability of exactly 0 counts as 1e-300."""
    return float(-np.log(np.maximum(of_labels(probs, labels), TINY)).mean())


def by_pieces(function: Callable[[ndarray], ndarray], rows: ndarray, most: int) -> ndarray:
    """What a function makes of each row, so many rows at a time; beside the result no more than one
    piece is held.
    """
    first, *others = in_pieces(rows, most)
    made = function(first)
    if not others:
        return made
    whole = np.empty((len(rows), *made.shape[1:]), made.dtype)
    whole[: len(made)] = made
    done = len(made)
    for piece in others:
        whole[done : done + len(piece)] = function(piece)
        done += len(piece)
    return whole


def in_pieces(rows: ndarray, most: int) -> Sequence[ndarray]:
    """So many rows at a time, for memory's sake; of none one piece."""
    return [rows[start : start + most] for start in range(0, max(1, len(rows)), most)]
