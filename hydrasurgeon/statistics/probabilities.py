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
"""Smallest truth that counts as yes."""


def true_classes(labels: ndarray) -> Int[ndarray, "*any"]:
    """Return class numbers; a fraction of yes becomes the nearer of no and yes."""
    return (labels >= YES).astype(np.int64) if labels.dtype.kind == "f" else labels


def yes_or_no(logits: ndarray) -> ndarray:
    """Return a single logit z as the logits of two classes, 0 and z; others unchanged."""
    return (
        np.concatenate([np.zeros_like(logits), logits], axis=-1)
        if logits.shape[-1] == 1
        else logits
    )


def softmax(logits: ndarray) -> ndarray:
    """Apply softmax over the last axis."""
    exponentials: ndarray = np.exp(logits - logits.max(axis=-1, keepdims=True))
    exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return exponentials


def logsumexp(values: ndarray, axis: int = -1) -> ndarray:
    """Return ln Σ exp over an axis."""
    most = values.max(axis=axis, keepdims=True)
    total = np.log(np.exp(values - most).sum(axis=axis, keepdims=True)) + most
    return np.squeeze(total, axis=axis)


def log_softmax(logits: ndarray) -> ndarray:
    """Return ln softmax over the last axis."""
    return logits - logsumexp(logits)[..., None]


def surest(probs: ndarray) -> tuple[ndarray, ndarray]:
    """Return the largest value of the last axis and its place; the first of equal ones."""
    place = probs.argmax(axis=-1)
    return np.take_along_axis(probs, place[..., None], axis=-1)[..., 0], place


def of_labels(values: ndarray, labels: ndarray) -> ndarray:
    """Select the value at each label from the last axis."""
    return np.take_along_axis(values, labels[..., None], axis=-1)[..., 0]


def falling(values: ndarray) -> ndarray:
    """Return the order of falling values; equal ones keep their order."""
    return np.argsort(-values, axis=-1, kind="stable")


def runs(ordered: ndarray) -> tuple[ndarray, ndarray]:
    """Return the number of each sorted value's run, and the lengths of the runs."""
    starts = np.ones(len(ordered), dtype=bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    number = starts.cumsum() - 1
    return number, np.bincount(number)


def spaced(high: float, count: int) -> ndarray:
    """Return `count` evenly spaced numbers from 0 to `high`, with the rounding of torch.linspace."""
    places = np.arange(count, dtype=np.float32)
    step = np.float32(high) / np.float32(max(1, count - 1))
    from_high = np.float32(high) - step * (np.float32(count - 1) - places)
    return np.where(places < count // 2, step * places, from_high)


def sums_at(places: ndarray, values: ndarray, count: int) -> ndarray:
    """Sum the values at each of `count` places."""
    return np.bincount(places, weights=values, minlength=count)


def member_probs(logits: Logits) -> Float[ndarray, "sample member klass"]:
    """Return each member's probabilities."""
    return softmax(logits.astype(np.float64))


def mean_probs(logits: Logits, temperature: float | ndarray = 1.0) -> Probs:
    """Return the mean over members of softmax(z_m), then softmax(ln p / T).

    Temperature acts after averaging.
    """
    return tempered(member_probs(logits).mean(axis=1), temperature)


def tempered(probs: Probs, temperature: float | ndarray) -> Probs:
    if np.all(temperature == 1.0):
        return probs
    return softmax(np.log(np.maximum(probs, TINY)) / temperature)


def entropy(probs: ndarray) -> ndarray:
    """Return the entropy over the classes, in nats."""
    logs = np.log(np.maximum(probs, TINY))
    return np.where(probs > 0, -probs * logs, 0.0).sum(axis=-1)


def nll(probs: Probs, labels: Labels) -> float:
    """Return the mean of −ln p_y; a probability of exactly 0 counts as 1e-300."""
    return float(-np.log(np.maximum(of_labels(probs, labels), TINY)).mean())


def by_pieces(function: Callable[[ndarray], ndarray], rows: ndarray, most: int) -> ndarray:
    """Apply a function to `most` rows at a time.

    No more than one piece is in memory beside the result.
    """
    first, *rest = in_pieces(rows, most)
    part = function(first)
    if not rest:
        return part
    results = np.empty((len(rows), *part.shape[1:]), part.dtype)
    results[: len(part)] = part
    done = len(part)
    for piece in rest:
        results[done : done + len(piece)] = function(piece)
        done += len(piece)
    return results


def in_pieces(rows: ndarray, most: int) -> Sequence[ndarray]:
    """Split rows into pieces of `most` rows, to save memory; no rows give one empty piece."""
    return [rows[start : start + most] for start in range(0, max(1, len(rows)), most)]
