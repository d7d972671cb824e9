"""Conformal sets against MAPIE, against the definition, and over many splits."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Penalty
from hydrasurgeon.statistics.conformal import (
    METHODS,
    Method,
    conformity,
    fit_conformal,
    fit_penalty,
    prediction_sets,
    samples_needed,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mapie.conformity_scores.sets import aps, raps
    from mapie.conformity_scores.sets.aps import APSConformityScore
    from mapie.conformity_scores.sets.lac import LACConformityScore
    from mapie.utils import _compute_classification_quantile


def made(count: int, klasses: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(count, klasses, generator=random, dtype=torch.float64)).softmax(dim=-1)
    return p, torch.multinomial(p, 1, generator=random)[:, 0]


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("count", [19, 40, 199, 500])
def test_lac_is_mapies(coverage: float, count: int) -> None:
    p, y = made(count)
    others, _ = made(100, seed=1)
    score = LACConformityScore()
    score.set_external_attributes(classes=np.arange(6), random_state=0)
    of_truth = score.get_conformity_scores(y.numpy(), p.numpy(), y.numpy())
    alpha = np.array([1 - coverage])
    score.quantiles_ = _compute_classification_quantile(of_truth, alpha)
    theirs = score.get_prediction_sets(
        np.repeat(others.numpy()[:, :, None], 1, axis=2), of_truth, alpha, cv="prefit"
    )
    ours = fit_conformal(p, y, method="lac", coverage=coverage)
    assert ours.threshold == pytest.approx(float(score.quantiles_[0]), abs=1e-12)
    assert np.array_equal(prediction_sets(ours, others).numpy(), theirs[:, :, 0])


class NoDice:
    """In place of the random numbers with which MAPIE takes a part of the true label's probability off."""

    def uniform(self, size: object) -> np.ndarray:
        return np.zeros(size)


def test_aps_is_mapies_without_its_dice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aps, "check_random_state", lambda seed: NoDice())
    p, y = made(300)
    others, _ = made(200, seed=1)
    score = APSConformityScore()
    score.set_external_attributes(classes=np.arange(6), random_state=0)
    of_truth = score.get_conformity_scores(y.numpy(), p.numpy(), y.numpy())
    alpha = np.array([0.1])
    score.quantiles_ = _compute_classification_quantile(of_truth, alpha)
    ours = fit_conformal(p, y, method="aps", coverage=0.9)
    assert ours.threshold == pytest.approx(float(score.quantiles_[0]), abs=1e-12)
    theirs = score.get_prediction_sets(
        others.numpy()[:, :, None], of_truth, alpha, cv="prefit", include_last_label=False
    )[:, :, 0]
    sets = prediction_sets(ours, others).numpy()
    # They put the most probable label into a set that would be empty.
    theirs[~sets.any(axis=1)] = False
    assert np.array_equal(sets, theirs)
    assert (~sets.any(axis=1)).any()


def test_raps_scores_are_mapies() -> None:
    p, y = made(50)
    cumulated, rank = APSConformityScore.get_true_label_cumsum_proba(
        y.numpy(), p.numpy(), np.arange(6)
    )
    theirs = raps.RAPSConformityScore._regularize_conformity_score(
        np.array([2]), 0.1, cumulated, rank
    )
    ours = conformity(p, "raps", Penalty(weight=0.1, free_ranks=2)).gather(1, y[:, None])
    np.testing.assert_allclose(ours, theirs[:, :, 0], atol=1e-12)


def test_the_threshold_is_the_order_statistic() -> None:
    p = torch.tensor([[0.1 * i, 1 - 0.1 * i] for i in range(1, 10)], dtype=torch.float64)
    y = torch.zeros(9, dtype=torch.int64)
    # ⌈10 · 0.5⌉ = 5th smallest of 1 − p: 0.1 … 0.9
    assert fit_conformal(p, y, coverage=0.5).threshold == pytest.approx(0.5)
    assert fit_conformal(p, y, coverage=0.9).threshold == pytest.approx(0.9)
    with pytest.raises(DataError, match=r"9 samples cannot promise a coverage of 0\.91") as caught:
        fit_conformal(p, y, coverage=0.91)
    assert "at least 11" in str(caught.value.hint)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_samples_needed_are_exactly_enough(coverage: float) -> None:
    count = samples_needed(coverage)
    p, y = made(count)
    fit_conformal(p, y, coverage=coverage)
    with pytest.raises(DataError):
        fit_conformal(p[1:], y[1:], coverage=coverage)


@pytest.mark.parametrize("method", METHODS)
def test_covers_what_it_promises_over_many_splits(method: Method) -> None:
    p, y = made(4000)
    p = p.sqrt() / p.sqrt().sum(dim=-1, keepdim=True)  # a model that is miscalibrated
    random = torch.Generator().manual_seed(3)
    penalty = fit_penalty(p[:500], y[:500]) if method == "raps" else None
    shares = []
    for _ in range(100):
        order = 500 + torch.randperm(3500, generator=random)
        fitted, tested = order[:1000], order[1000:]
        conformal = fit_conformal(p[fitted], y[fitted], method=method, penalty=penalty)
        sets = prediction_sets(conformal, p[tested])
        shares.append(float(sets.gather(1, y[tested][:, None]).double().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.9, abs=0.005)


def test_the_penalty_is_the_one_with_the_smallest_sets() -> None:
    p, y = made(500, klasses=30)
    found = fit_penalty(p, y, coverage=0.8)
    ranks = sorted(1 + int((row > row[truth]).sum()) for row, truth in zip(p, y, strict=True))
    assert found.free_ranks == ranks[math.ceil(501 * 0.8) - 1]
    sizes = {}
    for weight in (0.001, 0.01, 0.1, 0.2, 0.5):
        penalty = Penalty(weight=weight, free_ranks=found.free_ranks)
        fitted = fit_conformal(p, y, method="raps", coverage=0.8, penalty=penalty)
        sizes[weight] = float(prediction_sets(fitted, p).sum(dim=-1).double().mean())
    assert found.weight == min(sizes, key=sizes.__getitem__)
    assert len(set(sizes.values())) > 1


def test_equal_probabilities_are_ranked_in_one_way() -> None:
    p = torch.full((3, 4), 0.25, dtype=torch.float64)
    expected = torch.tensor([[0.25, 0.5, 0.75, 1.0]], dtype=torch.float64).expand(3, 4)
    torch.testing.assert_close(conformity(p, "aps"), expected)
