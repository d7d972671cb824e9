"""Calibration by its parts: conformal sets against MAPIE and over many splits, the temperature against a fine grid."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.conformal import (
    fit_conformal,
    prediction_sets,
    samples_needed,
)
from hydrasurgeon.statistics.probabilities import mean_probs, nll, softmax, tempered
from hydrasurgeon.statistics.temperature import temperature_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mapie.conformity_scores.sets.lac import LACConformityScore
    from mapie.utils import _compute_classification_quantile


def made(count: int, klasses: int = 6, seed: int = 0) -> tuple[ndarray, ndarray]:
    random = torch.Generator().manual_seed(seed)
    p = softmax(2 * torch.randn(count, klasses, generator=random, dtype=torch.float64).numpy())
    return p, torch.multinomial(torch.from_numpy(p), 1, generator=random)[:, 0].numpy()


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("count", [19, 40, 199, 500])
def test_lac_is_mapies(coverage: float, count: int) -> None:
    p, y = made(count)
    others, _ = made(100, seed=1)
    score = LACConformityScore()
    score.set_external_attributes(classes=np.arange(6), random_state=0)
    of_truth = score.get_conformity_scores(y, p, y)
    alpha = np.array([1 - coverage])
    score.quantiles_ = _compute_classification_quantile(of_truth, alpha)
    theirs = score.get_prediction_sets(
        np.repeat(others[:, :, None], 1, axis=2), of_truth, alpha, cv="prefit"
    )
    ours = fit_conformal(p, y, coverage=coverage)
    assert ours.threshold == pytest.approx(float(score.quantiles_[0]), abs=1e-12)
    assert np.array_equal(prediction_sets(ours, others), theirs[:, :, 0])


def test_the_threshold_is_the_order_statistic() -> None:
    p = np.array([[0.1 * i, 1 - 0.1 * i] for i in range(1, 10)], dtype=np.float64)
    y = np.zeros(9, dtype=np.int64)
    # ⌈10 · 0.5⌉ = 5th smallest of 1 − p: 0.1 … 0.9
    assert fit_conformal(p, y, coverage=0.5).threshold == pytest.approx(0.5)
    assert fit_conformal(p, y, coverage=0.9).threshold == pytest.approx(0.9)
    with pytest.raises(
        DataError, match=r"9 rows are too few to certify a coverage of 0\.91"
    ) as caught:
        fit_conformal(p, y, coverage=0.91)
    assert "at least 11" in str(caught.value.hint)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_samples_needed_are_exactly_enough(coverage: float) -> None:
    count = samples_needed(coverage)
    p, y = made(count)
    fit_conformal(p, y, coverage=coverage)
    with pytest.raises(DataError):
        fit_conformal(p[1:], y[1:], coverage=coverage)


def test_covers_what_it_promises_over_many_splits() -> None:
    p, y = made(4000)
    p = np.sqrt(p) / np.sqrt(p).sum(axis=-1, keepdims=True)  # a model that is miscalibrated
    random = torch.Generator().manual_seed(3)
    shares = []
    for _ in range(100):
        order = 500 + torch.randperm(3500, generator=random).numpy()
        fitted, tested = order[:1000], order[1000:]
        conformal = fit_conformal(p[fitted], y[fitted])
        sets = prediction_sets(conformal, p[tested])
        shares.append(
            float(np.take_along_axis(sets, y[tested][:, None], 1).astype(np.float64).mean())
        )
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.005)


def members(count: int = 400, klasses: int = 4, apart: float = 1.0, seed: int = 0) -> ndarray:
    random = torch.Generator().manual_seed(seed)
    shared = 2 * torch.randn(count, 1, klasses, generator=random, dtype=torch.float64).numpy()
    own = apart * torch.randn(count, 3, klasses, generator=random, dtype=torch.float64).numpy()
    return shared + own


def drawn(probs: ndarray, seed: int = 1) -> ndarray:
    return torch.multinomial(
        torch.from_numpy(probs), 1, generator=torch.Generator().manual_seed(seed)
    )[:, 0].numpy()


def test_temperature_is_no_worse_than_any_point_of_a_grid() -> None:
    p = mean_probs(members(300))
    y = drawn(tempered(p, 1.7))
    best = nll(tempered(p, temperature_of(np.log(p)[:, None], y)), y)
    for t in np.exp(np.linspace(math.log(0.06), math.log(18), 200)).tolist():
        assert best <= nll(tempered(p, t), y) + 1e-9


def test_temperature_of_answers_that_are_sure_and_wrong() -> None:
    logits = 1e4 * np.array([[1.0, 0.0, 0.0]] * 3 + [[0.0, 1.0, 0.0]], dtype=np.float64)
    found = temperature_of(logits[:, None], np.array([0, 0, 0, 0]))
    assert found == pytest.approx(20.0, rel=1e-4)
