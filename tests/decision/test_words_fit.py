"""The reader of words against scikit-learn and sums by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, Ridge

from hydrasurgeon import memo
from hydrasurgeon.decision import bag_of_words_fit
from hydrasurgeon.decision.bag_of_words_fit import Kind, fit_words, path, solved
from hydrasurgeon.decision.blend import fit_blend, losses
from hydrasurgeon.run.bag_of_words import BUCKETS, FACTOR, BagOfWords

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


def dense(texts: list[np.ndarray], words: BagOfWords) -> np.ndarray:
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


def test_the_files_of_a_build_share_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation rows only choose among fits; another table is fitted anew."""
    texts, labels = drawn(0)
    val, truth = drawn(2)
    fits: list[int] = []
    monkeypatch.setattr(
        bag_of_words_fit, "solved", lambda *words: (fits.append(1), solved(*words))[1]
    )

    def fit(targets: np.ndarray, rows: slice) -> bag_of_words_fit.Fitted:
        def loss(outputs: np.ndarray) -> float:
            return float((outputs.argmax(axis=1) != truth[rows]).mean())

        return fit_words(texts, targets, "softmax", loss, val[rows])

    targets = np.eye(CLASSES)[labels]
    with memo.sharing():
        fit(targets, slice(0, 50))
        once = len(fits)
        again = fit(targets, slice(0, 50))
        assert len(fits) == once
        fit(targets[::-1], slice(0, 50))
        assert len(fits) == 2 * once
    alone = fit(targets, slice(0, 50))
    assert len(fits) == 3 * once
    assert again.loss == alone.loss
    assert (again.reader.weight == alone.reader.weight).all()


def test_columns_that_no_text_has_weigh_nothing() -> None:
    texts, labels = drawn(0)
    ids = np.unique(np.concatenate(texts))
    words = path(texts, np.eye(CLASSES)[labels], "softmax", ids, (3.0,), pairs=True)[3.0]
    table = dense(texts, words)
    seen = table.any(axis=0)
    assert not seen.all()
    assert not words.weight[~seen].any()
    expected = LogisticRegression(C=3.0, tol=1e-8, max_iter=1000).fit(table, labels)
    probabilities = softmax(words.outputs(texts), axis=1)
    assert probabilities == pytest.approx(expected.predict_proba(table), abs=0.02)


def outputs_of(kind: Kind, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, and what two members and a reader say of them, each with errors of its own."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, 2, (rows, 3)).astype(float)
    if kind == "softmax":
        truth = np.eye(3)[random.integers(0, 3, rows)]
    model = 2 * truth[:, None] + random.normal(0, 1, (rows, 2, 3))
    return truth, model, truth + random.normal(0, 1, (rows, 3))


def likelihood(kind: Kind, outputs: np.ndarray, truth: np.ndarray) -> float:
    """The logarithm of what is likely: of the targets, and of a row that is of its two likeliest classes
    by halves, of each label true and false.
    """
    if kind == "square":
        errors = outputs.mean(axis=1) - truth
        return float(norm.logpdf(errors, scale=errors.std(ddof=0, mean=0)).sum() / truth.shape[1])
    if kind == "softmax":
        logs = np.log(softmax(outputs, axis=2).mean(axis=1))
        return float((truth * logs).sum() + np.sort(logs)[:, 1:].mean(axis=1).mean())
    yes = expit(outputs).mean(axis=1)
    of_truth = np.where(truth == 1, np.log(yes), np.log(1 - yes))
    return float(of_truth.sum() + (0.5 * (np.log(yes) + np.log(1 - yes))).sum(axis=1).mean())


KINDS: list[Kind] = ["softmax", "sigmoid", "square"]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_highest_posterior(kind: Kind) -> None:
    """By scipy: what VAL says times normal priors, of deviation 1/2, around the model alone."""
    truth, model, reader = outputs_of(kind, 100, 0)
    rows = np.arange(50)
    found = fit_blend(kind, model, reader, truth, rows, rows + 50)
    scales = [1.0, 1.0]
    if kind != "square":
        scales = [
            minimize_scalar(
                lambda at, each=each: -likelihood(kind, at * each[rows], truth[rows]),
                bounds=(0.01, 10),
                options={"xatol": 1e-8},
            ).x
            for each in (model, reader[:, None])
        ]
    assert found.alone == pytest.approx(scales[0], rel=1e-4)

    def posterior(share: np.ndarray) -> float:
        mixed = share[0] * scales[0] * model + share[1] * scales[1] * reader[:, None]
        prior = norm.logpdf(share[0], 1, 0.5) + norm.logpdf(share[1], 0, 0.5)
        return likelihood(kind, mixed[rows], truth[rows]) + float(prior)

    shares = np.array(found.weights) / scales
    assert shares.min() > 0.05
    best = minimize(lambda at: -posterior(at), shares, method="Nelder-Mead", tol=1e-10).x
    assert shares == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_worth_is_of_all_samples_each_by_weights_that_it_did_not_fit(kind: Kind) -> None:
    truth, model, reader = outputs_of(kind, 90, 1)
    parts = np.arange(30), np.arange(30, 90)
    found, other = (fit_blend(kind, model, reader, truth, *pair) for pair in (parts, parts[::-1]))
    judged = []
    for weights in ((found.alone, 0.0, other.alone, 0.0), (*found.weights, *other.weights)):
        a, b, its_a, its_b = weights
        late = losses(kind, a * model[30:] + b * reader[30:, None], truth[30:])
        early = losses(kind, its_a * model[:30] + its_b * reader[:30, None], truth[:30])
        judged.append(np.concatenate([late, early]))
    assert found.without == pytest.approx(judged[0].mean())
    assert found.together == pytest.approx(judged[1].mean())
    gains = judged[0] - judged[1]
    assert found.error == pytest.approx(gains.std(ddof=1) / np.sqrt(90))
    assert found.pays == (gains.mean() > 0)


def test_a_gain_within_a_standard_error_is_a_gain() -> None:
    """The choice is no test: a loss that is lower on average is taken."""
    pays = []
    for seed in range(40):
        truth, model, reader = outputs_of("softmax", 60, seed)
        rows = np.arange(60)
        found = fit_blend("softmax", model, 0.3 * reader, truth, rows[::2], rows[1::2])
        if 0 < found.without - found.together < found.error:
            pays.append(found.pays)
    assert pays
    assert all(pays)


@pytest.mark.parametrize("seed", range(3, 8))
def test_few_samples_and_a_reader_of_noise_do_little_harm(seed: int) -> None:
    """Of 50 samples nearly all are right: weights of the least loss alone reached 20, a loss of 0.7."""
    random = np.random.default_rng(seed)
    truth = np.eye(20)[random.integers(0, 20, 2000)]
    model = 12 * truth[:, None] + random.normal(0, 3, (2000, 1, 20))
    noise = random.normal(0, 1, (2000, 20))
    rows = np.arange(50)
    found = fit_blend("softmax", model, noise, truth, rows, rows + 50)
    assert 0.4 < found.alone < 1.2
    assert found.weights[1] < 0.1
    mixed = found.weights[0] * model + found.weights[1] * noise[:, None]
    best = minimize_scalar(
        lambda at: losses("softmax", at * model[100:], truth[100:]).mean(), bounds=(0.1, 3)
    )
    assert losses("softmax", mixed[100:], truth[100:]).mean() < best.fun + 0.08
