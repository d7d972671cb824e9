"""OOD scores against formulas written out slowly, against pytorch-ood, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy import ndarray
from references import pytorch_ood as reference
from sklearn.covariance import EmpiricalCovariance, ledoit_wolf
from torch import nn

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.statistics.probabilities import in_pieces, softmax
from hydrasurgeon.statistics.scores.evidence import Accumulator, Evidence, Gathering, shrinkage
from hydrasurgeon.statistics.scores.fitted import fit, scores_of
from hydrasurgeon.statistics.scores.on_features import on_features, principal
from hydrasurgeon.statistics.scores.on_logits import score_of

CLASSES, WIDTH, COUNT = 4, 10, 600
CLOSE = 1e-6


class Data:
    """Features of four Gaussian classes with unequal spread, a classifier, and samples from elsewhere."""

    def __init__(self, classes: int = CLASSES, width: int = WIDTH, count: int = COUNT) -> None:
        random = torch.Generator().manual_seed(0)
        self.weight = torch.randn(classes, width, generator=random, dtype=torch.float64).numpy()
        self.bias = torch.randn(classes, generator=random, dtype=torch.float64).numpy()
        self.labels = np.arange(count) % classes
        spread = np.linspace(0.3, 3, width, dtype=np.float64)
        noise = torch.randn(count, width, generator=random, dtype=torch.float64).numpy() * spread
        self.features = 5 + 2 * self.weight[self.labels] + noise
        self.logits = self.features @ self.weight.T + self.bias
        self.others = 5 + 4 * torch.randn(90, width, generator=random, dtype=torch.float64).numpy()
        self.other_logits = self.others @ self.weight.T + self.bias

    def evidence(self, rows: slice = slice(None), batch: int = 128) -> Evidence:
        gathering = Gathering(self.weight, self.bias)
        parts = (in_pieces(each[rows], batch) for each in (self.features, self.logits, self.labels))
        for features, logits, labels in zip(*parts, strict=True):
            gathering.add(features, logits, labels)
        return gathering.evidence()


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


@pytest.fixture
def double() -> Iterator[None]:
    """The reference makes its tensors in the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def raw(kind: str, data: Data) -> ndarray:
    """A member's score before it is standardised."""
    state, _ = on_features(kind).fit(data.evidence())
    return on_features(kind).score(state, data.others, data.other_logits)


def precision(covariance: np.ndarray) -> np.ndarray:
    return np.linalg.inv(covariance)


def slow_mahalanobis(x: np.ndarray, y: np.ndarray, others: np.ndarray) -> np.ndarray:
    means = [x[y == c].mean(axis=0) for c in range(CLASSES)]
    centred = np.concatenate([x[y == c] - means[c] for c in range(CLASSES)])
    inverse = EmpiricalCovariance(assume_centered=False).fit(centred).precision_
    return np.array([min((o - m) @ inverse @ (o - m) for m in means) for o in others])


def slow_background(x: np.ndarray, others: np.ndarray) -> np.ndarray:
    inverse = EmpiricalCovariance(assume_centered=False).fit(x).precision_
    return np.array([(o - x.mean(axis=0)) @ inverse @ (o - x.mean(axis=0)) for o in others])


def slow(kind: str, data: Data) -> np.ndarray:
    """OpenOOD's postprocessors, their confidence with the sign turned, sample by sample."""
    x, y, others = (t for t in (data.features, data.labels, data.others))
    w, b, logits = data.weight, data.bias, data.other_logits
    if kind == "mds":
        return slow_mahalanobis(x, y, others)
    if kind == "rmds":
        return slow_mahalanobis(x, y, others) - slow_background(x, others)
    if kind == "maha++":
        unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, others)]
        return slow_mahalanobis(unit[0], y, unit[1])
    if kind in ("residual", "vim"):
        u = -np.linalg.pinv(w) @ b
        covariance = EmpiricalCovariance(assume_centered=True).fit(x - u).covariance_
        values, vectors = np.linalg.eig(covariance)
        rest = vectors.T[np.argsort(-values)[WIDTH // 2 :]].T
        outside = np.linalg.norm((others - u) @ rest, axis=-1)
        if kind == "residual":
            return outside
        alpha = (x @ w.T + b).max(axis=-1).mean() / np.linalg.norm((x - u) @ rest, axis=-1).mean()
        return alpha * outside - np.log(np.exp(logits).sum(axis=-1))
    if kind == "knn":
        unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, others)]
        return np.array([np.sort(np.linalg.norm(unit[0] - o, axis=1))[49] for o in unit[1]])
    assert kind == "mcm"
    cosines = others @ w.T / np.linalg.norm(others, axis=1)[:, None] / np.linalg.norm(w, axis=1)
    shares = np.exp(cosines) / np.exp(cosines).sum(axis=1, keepdims=True)
    return 1 - shares.max(axis=1)


@pytest.mark.parametrize("kind", FITTED)
def test_agrees_with_the_formula_written_out(kind: str, data: Data) -> None:
    np.testing.assert_allclose(raw(kind, data), slow(kind, data), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("kind", ["mds", "rmds", "knn", "mcm", "vim"])
def test_agrees_with_pytorch_ood(kind: str, data: Data, double: None) -> None:
    head = nn.Linear(WIDTH, CLASSES)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(data.weight))
        head.bias.copy_(torch.from_numpy(data.bias))
    x, y, others = map(torch.from_numpy, (data.features, data.labels, data.others))
    close = CLOSE
    if kind == "mds":
        theirs = reference.Mahalanobis(None).fit_features(x, y).predict_features(others)
        theirs = 2 * COUNT * theirs  # they leave the covariance a sum, and halve the distance
    elif kind == "rmds":
        theirs = COUNT * reference.RMD(None).fit_features(x, y).predict_features(others)
    elif kind == "knn":
        theirs = reference.KNN(None, k=50).fit_features(x, y).predict_features(others)
    elif kind == "mcm":
        theirs = reference.MCM(None, torch.from_numpy(data.weight)).predict_features(others)
        theirs = theirs + 1 if float(theirs.max()) <= 0 else theirs
    else:
        detector = reference.ViM(
            None, d=principal(WIDTH), w=torch.from_numpy(data.weight), b=torch.from_numpy(data.bias)
        )
        theirs = detector.fit_features(x, y).predict_features(others)
        close = 1e-4
    np.testing.assert_allclose(raw(kind, data), theirs.double().numpy(), rtol=close, atol=close)


@pytest.mark.parametrize(
    ("kind", "detector"),
    [
        ("msp", "MaxSoftmax"),
        ("max-logit", "MaxLogit"),
        ("energy", "EnergyBased"),
        ("entropy", "Entropy"),
    ],
)
def test_scores_of_logits_agree_with_pytorch_ood(kind: str, detector: str, data: Data) -> None:
    z = data.other_logits / 10
    theirs = getattr(reference, detector)(None).predict_logits(torch.from_numpy(z))
    ours = score_of(kind, z[:, None])
    if kind == "msp" and float(theirs.max()) <= 0:
        theirs = theirs + 1
    np.testing.assert_allclose(ours, theirs.double().numpy(), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(
    ("batch", "rows"), [(1, 2048), (1, 50), (37, 50), (37, 37), (600, 250), (600, 2048)]
)
def test_moments_do_not_depend_on_the_batches(
    batch: int, rows: int, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrasurgeon.statistics.scores.evidence.ROWS", rows)
    accumulator = Accumulator(CLASSES, WIDTH)
    shifted = data.features + 1e4  # far from the origin, where naive sums lose their digits
    for x, y in zip(in_pieces(shifted, batch), in_pieces(data.labels, batch), strict=True):
        accumulator.add(x, y)
    moments = accumulator.moments()
    x, y = shifted, data.labels
    means = np.stack([x[y == c].mean(axis=0) for c in range(CLASSES)])
    np.testing.assert_allclose(moments.means, means, rtol=1e-12)
    centred = x - means[y]
    np.testing.assert_allclose(moments.within, centred.T @ centred / COUNT, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(moments.total, np.cov(x.T, bias=True), rtol=1e-8, atol=1e-8)
    origin = x[0]
    about = (x - origin).T @ (x - origin) / COUNT
    np.testing.assert_allclose(moments.about(np.array(origin)), about, rtol=1e-8, atol=1e-8)


def test_shrinkage_is_that_of_scikit_learn() -> None:
    x = torch.randn(30, 50, generator=torch.Generator().manual_seed(2), dtype=torch.float64).numpy()
    x = (x - x.mean(axis=0)) * np.linspace(0.1, 2, 50)
    covariance = x.T @ x / len(x)
    _, rho = ledoit_wolf(x, assume_centered=True)
    assert shrinkage(covariance, x) == pytest.approx(rho, rel=1e-9)
    assert 0 < rho < 1


@pytest.mark.parametrize("kind", ["mds", "rmds", "maha++"])
def test_a_singular_covariance_is_shrunk_and_said(kind: str, data: Data) -> None:
    flat = Data()
    flat.features[:, 3] = flat.features[:, 2]
    state, notes = on_features(kind).fit(flat.evidence())
    assert any("Ledoit-Wolf" in note for note in notes) or kind == "maha++"
    assert np.isfinite(on_features(kind).score(state, flat.others, flat.other_logits)).all()
    assert on_features(kind).fit(data.evidence())[1] == []
    few, _ = on_features(kind).fit(data.evidence(slice(8)))  # fewer samples than dimensions
    assert np.isfinite(on_features(kind).score(few, data.others, data.other_logits)).all()


def test_shrinking_gives_the_distances_of_scikit_learns_covariance() -> None:
    few = Data(classes=2, width=12, count=10)
    x, y = few.features, few.labels
    means = np.stack([x[y == c].mean(axis=0) for c in range(2)])
    covariance, _ = ledoit_wolf(x - means[y], assume_centered=True)
    inverse = precision(covariance)
    expected = [min((o - m) @ inverse @ (o - m) for m in means) for o in few.others]
    state, _ = on_features("mds").fit(few.evidence())
    found = on_features("mds").score(state, few.others, few.other_logits)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_members_join_standardised(data: Data) -> None:
    both = np.stack([data.others, 3 * data.others + 1], axis=1)
    logits = np.stack([data.other_logits, data.other_logits], axis=1)
    first = data.evidence()
    stretched = Gathering(data.weight, data.bias)
    stretched.add(3 * data.features + 1, data.logits, data.labels)
    held = np.stack([data.features, 3 * data.features + 1], axis=1)
    held_logits = np.stack([data.logits, data.logits], axis=1)
    joined = fit("rmds", [first, stretched.evidence()], (held, held_logits), precise=True)
    alone = fit("rmds", [first], (held[:, :1], held_logits[:, :1]), precise=True)
    # Distances do not care how features are stretched: both members say the same, and so does their mean.
    np.testing.assert_allclose(joined(both, logits), alone(both[:, :1], logits[:, :1]))
    inside = alone(held[:, :1], held_logits[:, :1])
    assert float(inside.mean()) == pytest.approx(0, abs=1e-12)
    assert float(inside.std()) == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(
        scores_of("rmds", logits, both, joined), joined(both, logits), rtol=0, atol=0
    )
    msp = scores_of("msp", logits, None, None, temperature=2.0)
    np.testing.assert_allclose(msp, 1 - softmax(np.log(softmax(data.other_logits)) / 2).max(-1))


@pytest.mark.parametrize("kind", FITTED)
def test_float32_states_give_nearly_the_same(kind: str, data: Data) -> None:
    held = data.features[:, None], data.logits[:, None]
    there = data.others[:, None], data.other_logits[:, None]
    stored, exact = (fit(kind, [data.evidence()], held, precise=p)(*there) for p in (False, True))
    np.testing.assert_allclose(stored, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["entropy", "rmds", "knn"])
def test_scores_do_not_depend_on_how_many_are_scored_at_a_time(
    kind: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = data.features[:, None], data.logits[:, None]
    there = data.other_logits[:, None], data.others[:, None]
    whole = scores_of(kind, *there, fit(kind, [data.evidence()], held) if kind in FITTED else None)
    monkeypatch.setattr("hydrasurgeon.statistics.scores.fitted.ROWS", 7)
    pieces = scores_of(kind, *there, fit(kind, [data.evidence()], held) if kind in FITTED else None)
    assert len(whole) == 90
    np.testing.assert_allclose(whole, pieces, rtol=1e-9, atol=1e-9)


def test_samples_that_are_all_the_same_are_refused(data: Data) -> None:
    alike = Data()
    alike.features[:] = alike.features[0]
    rounded = Data()
    rounded.features[:] = rounded.features[0] * (1 + 1e-8 * np.arange(COUNT)[:, None] / COUNT)
    held = data.features[:, None], data.logits[:, None]
    for broken in (alike, rounded):
        for kind in ("mds", "vim", "knn"):
            with pytest.raises(DataError, match=f"^{kind}.*all have the same features"):
                fit(kind, [broken.evidence()], held)


def test_a_class_that_never_occurs(data: Data) -> None:
    some = Data()
    some.labels[some.labels == 2] = 1
    for kind in ("mds", "rmds", "maha++"):
        with pytest.raises(DataError, match=r"1 of [0-9]+ classes never occur") as caught:
            on_features(kind).fit(some.evidence())
        assert caught.value.message.startswith(kind)
    for kind in ("vim", "residual", "knn"):
        on_features(kind).fit(some.evidence())


def test_too_few_samples(data: Data) -> None:
    with pytest.raises(DataError, match="nothing to estimate"):
        on_features("mds").fit(data.evidence(slice(4)))
    with pytest.raises(DataError, match="no 50th neighbour"):
        fit("knn", [data.evidence(slice(49))], (data.features[:, None], data.logits[:, None]))
    with pytest.raises(DataError, match="no samples"):
        Gathering(data.weight, data.bias).evidence()


@pytest.mark.parametrize("what", ["features", "logits"])
def test_nan_is_refused(what: str, data: Data) -> None:
    broken = {"features": data.features[:5].copy(), "logits": data.logits[:5].copy()}
    broken[what][3, 1] = float("nan")
    with pytest.raises(DataError, match=f"{what} hold NaN or infinity for 1 of 5"):
        Gathering(data.weight, data.bias).add(broken["features"], broken["logits"], data.labels[:5])


def test_the_bank_is_a_capped_sample_and_said(data: Data) -> None:
    gathering = Gathering(data.weight, data.bias, seed=1, bank=100)
    for x, z, y in zip(
        *(in_pieces(each, 64) for each in (data.features, data.logits, data.labels)), strict=True
    ):
        gathering.add(x, z, y)
    evidence = gathering.evidence()
    assert evidence.features.shape == (100, WIDTH)
    assert evidence.moments.count == COUNT
    rows = [int(np.flatnonzero((data.features == row).all(axis=1))[0]) for row in evidence.features]
    assert len(set(rows)) == 100
    assert min(rows) < 150
    assert max(rows) > 450
    assert on_features("knn").fit(evidence)[1] == ["knn keeps 100 of 600 features, drawn at random"]


@pytest.mark.parametrize("kind", FITTED)
def test_a_fit_holds_what_the_record_says(kind: str, data: Data) -> None:
    state, _ = on_features(kind).fit(data.evidence())
    assert set(state) == set(FITTED[kind])
