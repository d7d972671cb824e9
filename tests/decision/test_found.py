"""Whether anything was found for a query: scores by plain loops, and the promise over many draws."""

from __future__ import annotations

import numpy as np
import pytest

from hydrasurgeon.decision.split import split_rows
from hydrasurgeon.files.decided import Found
from hydrasurgeon.statistics.found import Groups, fit_found, measures_of

RISK, DELTA, DRAWS = 0.2, 0.1, 40


def test_groups_by_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    groups = np.concatenate([random.integers(0, 30, 200), [31]])
    yes = random.integers(0, 20, 201) / 20  # with equals
    ranked = Groups.of(np.asarray(yes), np.asarray(groups))
    assert ranked.number.tolist() == sorted({*groups.tolist()})
    scores = {kind: ranked.score(kind).tolist() for kind in ("best", "margin", "count")}
    for at, number in enumerate(ranked.number.tolist()):
        rows = np.flatnonzero(groups == number)
        first, *rest = sorted(rows, key=lambda row: -yes[row])
        assert int(ranked.first[at]) == first
        second = yes[rest[0]] if rest else 0.0
        assert scores["best"][at] == yes[first]
        np.testing.assert_allclose(scores["margin"][at], yes[first] - second, atol=1e-6)
        np.testing.assert_allclose(scores["count"][at], yes[rows].sum(), atol=1e-6)
    assert rest == []  # the last group has one row


def drawn(count: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Queries of five rows; the probabilities of a query lean to one side together."""
    lean = random.normal(0, 1.5, (count, 1))
    odds = random.normal(-1, 2, (count, 5)) + lean
    truth = random.random((count, 5)) < 1 / (1 + np.exp(-odds + 0.5 * lean))
    yes = 1 / (1 + np.exp(-odds))
    rows = (yes.ravel(), truth.ravel().astype(float), np.repeat(np.arange(count), 5))
    return tuple(rows)


@pytest.mark.slow
def test_the_promise_holds_over_many_draws() -> None:
    """In at most δ of the draws more than the risk is wrong, of the first rows that are shown; taken
    without its confidence, a threshold breaks it in nearly half of them."""
    random = np.random.default_rng(1)
    world = drawn(10_000, random)
    broken, answered = 0, []
    for _ in range(DRAWS):
        rule = fit_found(*drawn(300, random), risk=RISK, delta=DELTA)
        if rule is None:
            continue
        assert rule.bound <= RISK
        measures, count = measures_of(*world, rule)
        shown = {name: value.item() for name, value in measures(np.arange(count)[None]).items()}
        broken += shown["found_risk"] > RISK
        answered.append(shown["found"])
        assert abs(shown["found"] - rule.answered) < 0.12
    assert broken <= DRAWS * DELTA + 3 * np.sqrt(DRAWS * DELTA * (1 - DELTA))
    assert len(answered) > 0.7 * DRAWS
    assert 0.05 < np.mean(answered) < 0.95


def test_a_query_with_one_answer_is_told_by_its_margin() -> None:
    """Each best row is as probable, and right where no other comes near."""
    random = np.random.default_rng(2)
    second = np.repeat([0.1, 0.7], 100)
    yes = np.stack([np.full(200, 0.8), second], axis=1).ravel()
    truth = np.stack([second < 0.5, second > 0.5], axis=1).ravel().astype(float)
    order = random.permutation(200)
    groups = np.repeat(order, 2)
    parts = (yes, truth, groups)
    rule = fit_found(*parts, risk=0.1, delta=0.05)
    assert rule is not None
    assert (rule.score, rule.threshold) == ("margin", 0.7)
    assert abs(rule.answered - 0.5) < 0.05


def test_too_few_groups_promise_nothing() -> None:
    assert fit_found(*drawn(20, np.random.default_rng(3)), risk=0.05, delta=0.05) is None


def test_what_eval_measures() -> None:
    rule = Found(
        score="best", threshold=0.5, risk=0.1, delta=0.1, bound=0.1, answered=0.5, groups=9
    )
    yes = np.array([0.9, 0.1, 0.6, 0.5, 0.2, 0.3])
    truth = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    measures, count = measures_of(yes, truth, np.array([0, 0, 1, 1, 2, 2]), rule)
    assert count == 3
    rows = np.array([[0, 1, 2], [1, 1, 2], [2, 2, 2]])
    values = measures(rows)
    np.testing.assert_allclose(values["found"], np.array([2 / 3, 2 / 3, 0]).astype(np.float64))
    assert values["found_risk"][:2].tolist() == [0.5, 1.0]
    assert np.isnan(values["found_risk"][2])


def test_a_split_keeps_groups_whole() -> None:
    groups = np.asarray(np.random.default_rng(4).integers(0, 40, 500))
    parts = split_rows(500, 7, groups=groups)
    rows = [*parts.fitting.tolist(), *parts.certifying.tolist()]
    assert sorted(rows) == [*range(500)]
    apart = {*groups[parts.fitting].tolist()}, {*groups[parts.certifying].tolist()}
    assert [len(numbers) for numbers in apart] == [13, 27]
    assert apart[0].isdisjoint(apart[1])
    assert len({*groups[parts.fitting[:85]].tolist()}) > 10  # in no order
    few = split_rows(500, 7, groups=groups % 19)
    assert (len(few.fitting), len(few.certifying)) == (166, 334)
