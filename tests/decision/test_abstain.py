"""Abstention: the binomial bound against SciPy's, the threshold by hand, and how often the promise breaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.abstain import fit_abstention, risk_bound, samples_needed


@pytest.mark.parametrize("delta", [0.001, 0.05, 0.5])
@pytest.mark.parametrize(
    ("wrong", "answered"), [(0, 1), (0, 300), (7, 100), (99, 100), (250, 5000), (3, 20_000)]
)
def test_the_bound_inverts_the_binomial_tail(wrong: int, answered: int, delta: float) -> None:
    bound = risk_bound(wrong, answered, delta)
    assert bound == pytest.approx(beta.ppf(1 - delta, wrong + 1, answered - wrong), rel=1e-9)
    assert binom.cdf(wrong, answered, bound) == pytest.approx(delta, rel=1e-6)


def test_nothing_can_be_said_of_no_answers() -> None:
    assert risk_bound(0, 0, 0.05) == 1.0
    assert risk_bound(5, 5, 0.05) == 1.0


def test_enough_samples_are_exactly_enough() -> None:
    needed = samples_needed(0.02, 0.05)
    sure = np.linspace(0.5, 1, needed, dtype=np.float64)
    right = np.ones(needed, dtype=bool)
    fitted = fit_abstention(sure, right, risk=0.02)
    assert fitted.bound <= 0.02
    with pytest.raises(DataError, match=f"{needed - 1} samples cannot promise") as caught:
        fit_abstention(sure[1:], right[1:], risk=0.02)
    assert f"at least {needed}" in str(caught.value.hint)


def test_a_model_that_is_wrong_where_it_is_sure_gets_no_threshold() -> None:
    sure = np.linspace(0.5, 1, 2000, dtype=np.float64)
    with pytest.raises(DataError, match="no threshold keeps") as caught:
        fit_abstention(sure, sure < 0.8, risk=0.02)
    assert "The best that can be promised" in str(caught.value.hint)


def test_answers_as_much_as_it_can_certify() -> None:
    sure = np.linspace(0, 1, 4000, dtype=np.float64)
    fitted = fit_abstention(sure, sure > 0.5, risk=0.05, delta=0.05)
    answered = sure >= fitted.threshold
    wrong = int((answered & (sure <= 0.5)).sum())
    assert fitted.coverage == pytest.approx(float(answered.astype(np.float64).mean()))
    assert fitted.bound == pytest.approx(risk_bound(wrong, int(answered.sum()), 0.05 / 12))
    assert wrong > 0  # it goes below the last wrong answer, as far as the bound allows
    assert risk_bound(wrong + 20, int(answered.sum()) + 20, 0.05 / 12) > 0.05


def test_samples_of_equal_confidence_are_answered_together() -> None:
    sure = np.concatenate([np.full((1000,), 0.9), np.full((1000,), 0.6)]).astype(np.float64)
    right = np.ones(2000, dtype=bool)
    right[1000:1500] = False
    assert fit_abstention(sure, right, risk=0.02).threshold == pytest.approx(0.9, abs=1e-7)


@pytest.mark.slow
def test_the_promise_breaks_in_at_most_delta_of_the_splits() -> None:
    random = torch.Generator().manual_seed(0)
    broken, splits, kept = 0, 200, 0
    for _ in range(splits):
        sure = torch.rand(3000, generator=random, dtype=torch.float64).numpy()
        right = torch.rand(3000, generator=random, dtype=torch.float64).numpy() < 0.6 + 0.4 * sure
        fitted = fit_abstention(sure, right, risk=0.1, delta=0.05)
        # The true risk above a threshold t: the mean of 0.4 (1 − s) over s in [t, 1].
        broken += 0.2 * (1 - fitted.threshold) > 0.1
        kept += 1
    assert kept == splits
    assert broken / splits <= 0.05
