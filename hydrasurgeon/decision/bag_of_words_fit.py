"""Fit the bag-of-words model: a convex problem without a seed, solved by L-BFGS; for large tables by
passes over the texts in the order of a hash of their content.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.memo import digest_of, shared
from hydrasurgeon.run.bag_of_words import BUCKETS, BagOfWords, Floats, Ids, counted, unit
from hydrasurgeon.statistics.minimum import minimize

Kind = Literal["softmax", "sigmoid", "square"]
"""Meaning of the outputs: log-odds of classes, log-odds of each label, or numbers."""
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Weights of the texts' loss against that of the penalty, |W|² / 2; VAL chooses."""
FEWEST = 50
"""Samples that a reader is fitted on at least."""
STEPS, CHANGE = 200, 1e-6
"""Steps of a fit at most, and the fraction by which its loss changes in the last one."""
LARGE = 500_000
"""Texts × outputs above which weights are learnt in passes."""
PASSES = 5
"""Passes over the texts."""
LEAST_AT_ONCE, AT_ONCE, PARTS = 16, 512, 400
"""Texts of one step of a pass, so that a pass has about so many steps."""
RATE = 0.6
"""Length of the first step of each weight (AdaGrad, Duchi et al. 2011)."""
STRENGTH = 10.0
"""Weight of the texts' loss against that of the penalty, in passes."""


@dataclass(frozen=True)
class Fitted:
    """The reader that VAL chose, and its loss there."""

    reader: BagOfWords
    strength: float
    loss: float


def fit_words(
    texts: Sequence[Ids],
    targets: Floats,
    kind: Kind,
    loss: Callable[[Floats], float],
    val: Sequence[Ids],
) -> Fitted:
    """Fit the bag-of-words model with the least loss of its outputs on VAL.

    All strengths are tried, and the best one again with pairs of words. Targets are [text, output]:
    probabilities, or numbers. A large table is learnt in `passes`. All files of a build share the fits.
    """
    if kind != "square" and targets.size > LARGE:
        reader = shared(
            "bag of words of a large table",
            lambda: (kind, _digest(texts, targets)),
            lambda: passes(texts, targets, kind),
        )
        return chosen({STRENGTH: reader}, loss, val)
    ids = np.unique(np.concatenate(texts))

    def fit(strengths: Sequence[float], *, pairs: bool) -> Fitted:
        readers = shared(
            f"bag of words, pairs: {pairs}",
            lambda: (kind, strengths, _digest(texts, targets)),
            lambda: path(texts, targets, kind, ids, strengths, pairs=pairs),
        )
        return chosen(readers, loss, val)

    alone = fit(STRENGTHS, pairs=False)
    return min(alone, fit((alone.strength,), pairs=True), key=lambda fitted: fitted.loss)


def fit_words_in_folds(
    texts: Sequence[Ids],
    targets: Floats,
    kind: Kind,
    loss: Callable[[Floats], float],
    folds: NDArray[np.int64],
) -> tuple[Fitted, Floats]:
    """Fit a reader to all texts, by the strength of least loss on texts that readers of the other
    folds read; and return what these say of the texts that have a fold, and how novel they are.
    """
    judged = np.flatnonzero(folds >= 0)

    def read(strengths: Sequence[float], *, pairs: bool) -> dict[float, Floats]:
        reads = {strength: np.zeros((len(texts), targets.shape[1] + 1)) for strength in strengths}
        for fold in np.unique(folds[judged]):
            rest, held = (np.flatnonzero(rows).tolist() for rows in (folds != fold, folds == fold))
            seen = [texts[row] for row in rest]
            ids = np.unique(np.concatenate(seen))
            readers = path(seen, targets[rest], kind, ids, strengths, pairs=pairs)
            for strength, reader in readers.items():
                reads[strength][held] = reader.read([texts[row] for row in held])
        return {strength: values[judged] for strength, values in reads.items()}

    def least(reads: Mapping[float, Floats]) -> tuple[float, float]:
        return min((loss(values[:, :-1]), strength) for strength, values in reads.items())

    def read_once(strengths: Sequence[float], *, pairs: bool) -> dict[float, Floats]:
        return shared(
            f"bag of words in folds, pairs: {pairs}",
            lambda: (kind, strengths, _digest(texts, targets, folds)),
            lambda: read(strengths, pairs=pairs),
        )

    alone = read_once(STRENGTHS, pairs=False)
    value, strength = least(alone)
    paired = read_once((strength,), pairs=True)
    pairs = least(paired)[0] < value
    strengths = STRENGTHS[: STRENGTHS.index(strength) + 1] if not pairs else (strength,)
    ids = np.unique(np.concatenate(texts))
    reader = path(texts, targets, kind, ids, strengths, pairs=pairs)[strength]
    reads = paired if pairs else alone
    return Fitted(reader, strength, least(reads)[0]), reads[strength]


def chosen(readers: Mapping[float, Any], loss: Callable[[Floats], float], val: Any) -> Fitted:
    """Return the model with the least loss on VAL."""
    losses = {strength: loss(reader.outputs(val)) for strength, reader in readers.items()}
    best = min(losses, key=lambda strength: losses[strength])
    return Fitted(readers[best], best, losses[best])


def path(
    texts: Sequence[Ids],
    targets: Floats,
    kind: Kind,
    ids: Ids,
    strengths: Sequence[float],
    *,
    pairs: bool = False,
) -> dict[float, BagOfWords]:
    """Fit a model for each strength, each started from the one before."""
    from scipy.sparse import csr_matrix

    word_counts = counted(texts, ids, pairs=pairs)
    width = len(ids) + BUCKETS * pairs
    seen = np.bincount(word_counts.columns, minlength=width)
    idf = np.log((1 + len(texts)) / (1 + seen)) + 1
    table = csr_matrix(
        (unit(word_counts, idf), (word_counts.rows, word_counts.columns)), shape=(len(texts), width)
    )
    # The weights of a column that no text has are zero.
    columns = np.flatnonzero(seen)
    table = table[:, columns]
    outputs = targets.shape[1]
    at = np.zeros((len(columns) + 1) * outputs)
    at[-outputs:] = targets.mean(axis=0) if kind == "square" else 0
    readers = {}
    for strength in strengths:
        at = solved(table, targets, kind, strength, at)
        weight = np.zeros((width, outputs))
        weight[columns] = at[:-outputs].reshape(-1, outputs)
        readers[strength] = BagOfWords(ids, idf, weight, at[-outputs:].copy())
    return readers


def _digest(texts: Sequence[Ids], *more: NDArray[Any]) -> str:
    """Hash what a fit depends on."""
    return digest_of([np.concatenate(texts), np.array([len(text) for text in texts]), *more])


def passes(texts: Sequence[Ids], targets: Floats, kind: Kind) -> BagOfWords:
    """Return the reader of single tokens that AdaGrad learns in `PASSES` passes: time grows with the texts, and memory with
    columns × outputs. The order of the texts is that of a hash of their ids.
    """
    from scipy.sparse import csr_matrix

    outputs = targets.shape[1]
    ids = np.unique(np.concatenate(texts))
    word_counts, width = counted(texts, ids, pairs=False), len(ids)
    seen = np.bincount(word_counts.columns, minlength=width)
    idf = np.log((1 + len(texts)) / (1 + seen)) + 1
    values = unit(word_counts, idf).astype(np.float32)
    table = csr_matrix((values, (word_counts.rows, word_counts.columns)), shape=(len(texts), width))
    order = np.argsort([zlib.crc32(text.tobytes()) for text in texts], kind="stable")
    table = table[order]
    at_once = min(max(len(texts) // PARTS, LEAST_AT_ONCE), AT_ONCE)
    # The penalty of a column is spread over the steps that it takes part in.
    penalty = 1 / STRENGTH / np.clip(seen, 1, 1 + len(texts) / at_once)
    weight, squares = (np.full((width, outputs), value, np.float32) for value in (0, 1e-4))
    bias = np.zeros(outputs, np.float32)
    for _ in range(PASSES):
        for start in range(0, len(texts), at_once):
            check_deadline()
            some = table[start : start + at_once]
            columns, places = np.unique(some.indices, return_inverse=True)
            shape = (some.shape[0], len(columns))
            part = csr_matrix((some.data, places.reshape(-1), some.indptr), shape=shape)
            at = weight[columns]
            _, slope = LOSSES[kind](part @ at + bias, targets[order[start : start + at_once]])
            slope = slope.astype(np.float32)
            gradient = part.T @ slope + at * penalty[columns, None].astype(np.float32)
            squares[columns] += gradient**2
            weight[columns] = at - RATE * gradient / np.sqrt(squares[columns])
            bias -= RATE / 10 * slope.mean(axis=0)
    return BagOfWords(ids, idf, weight.astype(np.float64), bias.astype(np.float64))


def solved(table: Any, targets: Floats, kind: Kind, strength: float, at: Floats) -> Floats:
    """Return the weights of least loss, with the bias in the last row."""
    from scipy.sparse import csr_matrix

    outputs = targets.shape[1]
    transposed = csr_matrix(table.T)

    def objective(flat: Floats) -> tuple[float, Floats]:
        weight = flat.reshape(-1, outputs)
        scores = table @ weight[:-1] + weight[-1]
        value, slope = LOSSES[kind](scores, targets)
        gradient = np.empty_like(weight)
        gradient[:-1] = strength * (transposed @ slope) + weight[:-1]
        gradient[-1] = strength * slope.sum(axis=0)
        return strength * value + 0.5 * float((weight[:-1] ** 2).sum()), gradient.ravel()

    return minimize(objective, at, steps=STEPS, change=CHANGE)


def _softmax(scores: Floats, targets: Floats) -> tuple[float, Floats]:
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -float((targets * logs).sum()), np.exp(logs) - targets


def _sigmoid(scores: Floats, targets: Floats) -> tuple[float, Floats]:
    losses = np.logaddexp(0, scores) - targets * scores
    return float(losses.sum()), 1 / (1 + np.exp(-scores)) - targets


def _square(scores: Floats, targets: Floats) -> tuple[float, Floats]:
    apart = scores - targets
    return 0.5 * float((apart**2).sum()), apart


LOSSES: dict[Kind, Callable[[Floats, Floats], tuple[float, Floats]]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "square": _square,
}
"""The loss of some scores and its slope in them."""
