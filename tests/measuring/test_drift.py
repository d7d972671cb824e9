"""Drift: p-values against scipy's and against all that could have come, and how often nothing is called drift."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from tallies import decision, tally

from hydrasurgeon.measuring.drift import DRAWS, classes_p, drift_of, unfamiliar_p


@pytest.mark.parametrize(
    ("count", "rows", "promised", "certified"),
    [(3, 20, 0.05, 45), (80, 1000, 0.05, 500), (7, 7, 0.1, 30), (1, 9, 0.5, 3)],
)
def test_the_unfamiliar_fraction_against_scipy(
    count: int, rows: int, promised: float, certified: int
) -> None:
    below = int(np.ceil((certified + 1) * (1 - promised) - 1e-9))
    expected = stats.betabinom.sf(count - 1, rows, certified + 1 - below, below)
    assert unfamiliar_p(count, rows, promised, certified) == pytest.approx(expected, rel=1e-9)
    assert unfamiliar_p(0, rows, promised, certified) == 1.0


def test_with_a_threshold_of_ever_more_samples_it_is_the_binomial_test() -> None:
    expected = stats.binomtest(80, 1000, 0.05, alternative="greater").pvalue
    assert unfamiliar_p(80, 1000, 0.05, 10**9 - 1) == pytest.approx(expected, rel=1e-4)


def test_it_is_how_often_so_many_lie_above_a_threshold() -> None:
    """By drawing thresholds as calibration takes them: a binomial test would call every other of them broken."""
    random = np.random.default_rng(0)
    scores = np.sort(random.random((20_000, 59)), axis=1)
    above = (random.random((20_000, 400)) > scores[:, 53:54]).sum(axis=1)  # ⌈60 · 0.9⌉ = 54th of 59
    for count in (40, 60, 80):
        assert unfamiliar_p(count, 400, 0.1, 59) == pytest.approx((above >= count).mean(), abs=0.01)


def test_classes_of_few_answers_are_compared_by_all_that_could_have_come() -> None:
    one, other = [3, 0, 0, 1], [0, 2, 3, 0]
    pool = [klass for klass, n in enumerate(np.add(one, other)) for _ in range(n)]

    def distance(rows: list[int]) -> float:
        table = np.array(
            [np.bincount(rows, minlength=4), np.add(one, other) - np.bincount(rows, minlength=4)]
        )
        return float(stats.contingency.chi2_contingency(table, correction=False).statistic)

    observed = distance([1, 1, 2, 2, 2])
    drawn = Counter(
        distance([pool[i] for i in rows]) >= observed - 1e-9 for rows in combinations(range(9), 5)
    )
    assert classes_p(one, other, seed=0) == pytest.approx(drawn[True] / drawn.total(), abs=0.005)


def test_classes_of_many_answers_against_scipy() -> None:
    one, other = [520, 480, 30], [260, 250, 6]
    expected = stats.contingency.chi2_contingency([one, other], correction=False).pvalue
    assert classes_p(one, other, seed=0) == pytest.approx(expected, abs=0.01)
    assert classes_p([50, 0], [0, 50], seed=0) == 1 / (DRAWS + 1)
    assert classes_p([5, 0], [50, 0], seed=0) == 1.0


def test_the_verdict_is_of_both_tests_together() -> None:
    seen = tally(40, 500, 300, 200)
    calm = drift_of(tally(15, 150, 90, 60), decision(seen), "abc", alpha=0.01)
    assert not calm.drifted
    assert calm.sentence == "no drift is shown by one look at 300 answers at alpha 0.01"
    shifted = drift_of(tally(15, 90, 150, 60), decision(seen), "abc", alpha=0.01)
    assert [test.drifted for test in shifted.tests] == [False, True]
    assert shifted.sentence == "drifted: predictions shifted, most of all a from 50.0% to 30.0%"
    odd = drift_of(tally(60, 150, 90, 60), decision(None), "abc", alpha=0.01)
    assert [test.name for test in odd.tests] == ["unfamiliar"]
    assert (
        odd.sentence == "drifted: 20.0% of the inputs look unfamiliar, at most 5.0% were promised"
    )
    # Each test has half of alpha: what is barely below it alone is no drift beside the other.
    p = unfamiliar_p(29, 300, 0.05, 500)
    assert 0.005 < p < 0.01
    assert drift_of(tally(29, 150, 90, 60), decision(None), "abc", alpha=0.01).drifted
    assert not drift_of(tally(29, 150, 90, 60), decision(seen), "abc", alpha=0.01).drifted
