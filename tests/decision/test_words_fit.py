"""The reader of words against scikit-learn and sums by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from hydrasurgeon.decision.beside import fit_beside, losses
from hydrasurgeon.decision.words import Kind, fit_words, path
from hydrasurgeon.run.words import BUCKETS, FACTOR, Words

TEXTS = 60
CLASSES = 3


def drawn(seed: int, count: int = TEXTS) -> tuple[list[np.ndarray], np.ndarray]:
    """Texts of ids whose first ids depend on the class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    texts = [
        np.concatenate([[10 + label] * random.integers(1, 3), random.integers(20, 40, 6)])
        for label in labels
    ]
    return texts, labels


def dense(texts: list[np.ndarray], words: Words) -> np.ndarray:
    """Counts × idf of unit length, cell by cell."""
    table = np.zeros((len(texts), len(words.idf)))
    for row, text in enumerate(texts):
        for token in text:
            for column, known in enumerate(words.ids):
                table[row, column] += token == known
        if words.pairs:
            for first, second in pairwise(text):
                table[row, len(words.ids) + (first * FACTOR + second) % BUCKETS] += 1
    table *= words.idf
    return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)


@pytest.mark.parametrize("pairs", [False, True])
def test_outputs_are_a_sum_over_columns(pairs: bool) -> None:
    texts, labels = drawn(0)
    ids = np.unique(np.concatenate(texts))
    words = path(texts, np.eye(CLASSES)[labels], "softmax", ids, (1.0,), pairs=pairs)[1.0]
    new = [*drawn(1, 5)[0], np.array([999, 998]), np.zeros(0, np.int64), np.array([10, 10, 999])]
    expected = dense(new, words) @ words.weight + words.bias
    assert words.outputs(new) == pytest.approx(expected, abs=1e-12)
    if not pairs:
        assert words.outputs(new)[5] == pytest.approx(words.bias)
    novel = words.read(new)[:, -1]
    assert novel[5] == novel[6] == 1.0
    assert words.read(texts)[:, -1] == pytest.approx(0)
    known = 2 * words.idf[words.ids.tolist().index(10)]
    unknown = words.idf.max()
    assert novel[7] == pytest.approx(unknown / (known + unknown))


def test_classes_are_those_of_scikit_learn() -> None:
    texts, labels = drawn(0)
    ids = np.unique(np.concatenate(texts))
    words = path(texts, np.eye(CLASSES)[labels], "softmax", ids, (0.3, 3.0))[3.0]
    theirs = LogisticRegression(C=3.0, tol=1e-8, max_iter=2000).fit(dense(texts, words), labels)
    new = drawn(1)[0]
    ours = np.exp(words.outputs(new))
    ours /= ours.sum(axis=1, keepdims=True)
    assert ours == pytest.approx(theirs.predict_proba(dense(new, words)), abs=2e-3)


def test_labels_and_numbers_are_those_of_scikit_learn() -> None:
    texts, labels = drawn(0)
    ids = np.unique(np.concatenate(texts))
    several = np.stack([labels == 0, labels != 1], axis=1).astype(float)
    words = path(texts, several, "sigmoid", ids, (3.0,))[3.0]
    for column in range(2):
        model = LogisticRegression(C=3.0, tol=1e-8, max_iter=2000)
        theirs = model.fit(dense(texts, words), several[:, column])
        expected = theirs.decision_function(dense(texts, words))
        assert words.outputs(texts)[:, column] == pytest.approx(expected, abs=0.02)
    numbers = labels[:, None] + 0.5
    words = path(texts, numbers, "square", ids, (3.0,))[3.0]
    ridge = Ridge(alpha=1 / 3).fit(dense(texts, words), numbers[:, 0])
    expected = ridge.predict(dense(texts, words))
    assert words.outputs(texts)[:, 0] == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_val_chooses(kind: Kind) -> None:
    texts, labels = drawn(0)
    val, truth = drawn(2)

    def loss(outputs: np.ndarray) -> float:
        return float((outputs.argmax(axis=1) != truth).mean() + 1e-3 * np.abs(outputs).mean())

    fitted = fit_words(texts, np.eye(CLASSES)[labels], kind, loss, val)
    assert fitted.loss == loss(fitted.reader.outputs(val))
    assert fitted.loss < 0.1


@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "square"])
def test_weights_are_those_of_least_loss(kind: Kind) -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, (200, 3)).astype(float)
    if kind == "softmax":
        truth = np.eye(3)[random.integers(0, 3, 200)]
    model = truth[:, None] + random.normal(0, 1, (200, 2, 3))
    reader = truth + random.normal(0, 1, (200, 3))
    fitting, certifying = np.arange(100), np.arange(100, 200)
    found = fit_beside(kind, model, reader, truth, fitting, certifying)

    def loss(weights: tuple[float, float], rows: np.ndarray) -> float:
        mixed = weights[0] * model[rows] + weights[1] * reader[rows][:, None]
        return float(losses(kind, mixed, truth[rows]).mean())

    best = loss(found.weights, fitting)
    for step in ((0.05, 0), (-0.05, 0), (0, 0.05), (0, -0.05)):
        moved = (found.weights[0] + step[0], found.weights[1] + step[1])
        assert loss(moved, fitting) > best - 1e-6
    assert found.together == pytest.approx(loss(found.weights, certifying))
