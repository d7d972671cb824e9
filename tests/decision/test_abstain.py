"""Abstention: the binomial bound against SciPy's, the sequence against MAPIE's, and how often a promise breaks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy import ndarray
from scipy.stats import beta, binom

from hydrasurgeon.statistics.abstain import (
    Graded,
    Unpromised,
    fit_abstention,
    fit_limits,
    keeps,
    least_risk,
    risk_bound,
    samples_needed,
)


def shape(accuracy: float, concentration: float = 4.6) -> tuple[float, float]:
    """Of the Beta distribution that calibrated confidences are drawn from."""
    return concentration * accuracy, concentration * (1 - accuracy)


def drawn(
    count: int, accuracy: float, random: np.random.Generator, concentration: float = 4.6
) -> Graded:
    """Draw answers that are right as often as they say."""
    confidence = random.beta(*shape(accuracy, concentration), count)
    return Graded(confidence, np.asarray(random.random(count) < confidence))


def parted(graded: Graded) -> tuple[Graded, Graded]:
    """A third that fits, and the others."""
    cut = len(graded.right) // 3
    parts = (slice(cut), slice(cut, None))
    first, second = (Graded(graded.confidence[at], graded.right[at]) for at in parts)
    return first, second


def outcome(threshold: float, accuracy: float, concentration: float = 4.6) -> tuple[float, ...]:
    """Answers above a threshold, the wrong ones among them, and the right ones that lie below it:
    fractions of all answers, of these, and of all that are right.
    """
    first, second = shape(accuracy, concentration)
    answered = float(beta.sf(threshold, first, second))
    right = float(beta.sf(threshold, first + 1, second))
    return answered, 1 - accuracy * right / max(answered, 1e-12), 1 - right


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


def test_a_risk_is_kept_by_the_exact_tail() -> None:
    for wrong, answered in ((0, 58), (0, 59), (3, 153), (3, 154), (40, 1000), (39, 1000)):
        tail = binom.cdf(wrong, answered, 0.05)
        assert keeps(wrong, answered, 0.05, 0.05) is bool(tail <= 0.05)
    assert not keeps(0, 0, 0.05, 0.05)


def test_enough_samples_are_exactly_enough() -> None:
    needed = samples_needed(0.02, 0.05)
    assert binom.cdf(0, needed, 0.02) <= 0.05 < binom.cdf(0, needed - 1, 0.02)
    assert least_risk(needed) <= 0.02 < least_risk(needed - 1)
    sure = np.linspace(0.9, 1, needed, dtype=np.float64)
    right = np.ones(needed, dtype=bool)
    ordering = Graded(np.repeat(0.5, 20), right[:20])
    fitted = fit_abstention(ordering, [Graded(sure, right)], risk=0.02)
    assert fitted.bound <= 0.02
    assert fitted.coverage == 1
    with pytest.raises(Unpromised):
        fit_abstention(ordering, [Graded(sure[1:], right[1:])], risk=0.02)


def test_a_model_that_is_wrong_where_it_is_sure_gets_no_threshold() -> None:
    sure = np.linspace(0.5, 1, 2000, dtype=np.float64)
    graded = Graded(sure, sure < 0.8)
    with pytest.raises(Unpromised) as caught:
        fit_abstention(graded, [graded], risk=0.02)
    assert caught.value.needed is None  # as many rows as one likes


def test_the_sequence_is_tested_as_mapie_tests_one() -> None:
    control = pytest.importorskip("mapie.risk_control").control_fwer
    random = np.random.default_rng(0)
    stopped = []
    for _ in range(30):
        ordering, certifying = parted(drawn(900, 0.9, random))
        sequence = ordering.sequence(0.05, 59 / 600 * 300)
        above = certifying.confidence >= sequence[:, None]
        wrong = (above & ~certifying.right).sum(axis=1)
        tails = binom.cdf(wrong, above.sum(axis=1), 0.05)
        passed = control(tails, 0.05, fwer_method="fixed_sequence")
        if len(passed):
            fitted = fit_abstention(ordering, [certifying], risk=0.05)
            assert fitted.threshold == sequence[passed[-1]]
            stopped.append(len(passed) < len(sequence))
        else:
            with pytest.raises(Unpromised):
                fit_abstention(ordering, [certifying], risk=0.05)
    assert sum(stopped) > 20


@pytest.mark.parametrize("sharper", [1.0, 3.0])
def test_testing_begins_where_there_is_most_evidence(sharper: float) -> None:
    """By a plain loop, where counts confirm the probabilities and where they do not; all thresholds
    below follow, down to one that answers all.
    """
    ordering, _ = parted(drawn(120, 0.9, np.random.default_rng(1)))
    ordering = Graded(ordering.confidence ** (1 / sharper), ordering.right)
    values = sorted({*ordering.confidence.tolist()}, reverse=True)
    sums, distances = [], [0.0]
    for value in values:
        doubt = 1 - ordering.confidence[ordering.confidence >= value]
        wrong = int((~ordering.right[ordering.confidence >= value]).sum())
        sums.append((len(doubt), wrong, float(doubt.sum())))
        error = np.sqrt(0.25 + float((doubt * (1 - doubt)).sum()))
        distances.append(abs(wrong - float(doubt.sum())) / float(error))
    belief = min(1.0, (2 / max(distances)) ** 4)
    assert (belief == 1) is (sharper == 1)
    evidence = []
    for answered, wrong, expected in sums:
        rate = (belief * expected + (1 - belief) * wrong) / answered
        rate = min(max(rate, 1e-12), 1 - 1e-12)
        distance = rate * np.log(rate / 0.05) + (1 - rate) * np.log((1 - rate) / 0.95)
        evidence.append(float(answered * distance) * (1 if rate < 0.05 else -1))
    begins = int(np.argmax(evidence))
    assert begins > 0
    assert ordering.sequence(0.05, 0).tolist() == [*values[begins:], 0.0]
    least = begins + 3  # what leaves fewer answers is not where it begins
    assert ordering.sequence(0.05, least).tolist()[0] <= values[least - 1]
    assert ordering.sequence(0.05, 1000).tolist() == [0.0]


def test_thresholds_of_many_answers_are_few_and_evenly_ranked() -> None:
    thresholds = Graded(np.arange(5001) / 5001, np.ones(5001, dtype=bool)).thresholds()
    assert len(thresholds) == 51
    assert thresholds[0] == 5000 / 5001
    assert thresholds[-2:].tolist() == [0.0, 0.0]
    assert np.ptp(np.diff(thresholds[:-1])) < 3e-4


def test_the_stricter_of_two_sets_says_where_testing_ends() -> None:
    random = np.random.default_rng(2)
    ordering, certifying = parted(drawn(3000, 0.9, random))
    other = Graded(certifying.confidence, certifying.right & (random.random(2000) > 0.01))
    alone, worse, both = (
        fit_abstention(ordering, sets, risk=0.05)
        for sets in ([certifying], [other], [certifying, other])
    )
    assert alone.threshold < worse.threshold == both.threshold
    assert both.coverage == worse.coverage < alone.coverage
    assert both.bound == worse.bound


def test_samples_of_equal_confidence_are_answered_together() -> None:
    sure = np.concatenate([np.full((1000,), 0.9), np.full((1000,), 0.6)]).astype(np.float64)
    right = np.ones(2000, dtype=bool)
    right[1000:1500] = False
    graded = Graded(sure, right)
    assert fit_abstention(graded, [graded], risk=0.02).threshold == 0.9


def test_what_is_missed_is_an_order_statistic() -> None:
    """Of 100 positives at most so many may lie below the limit as the binomial tail allows."""
    yes = np.linspace(0.01, 1, 100)
    graded = Graded(yes, np.ones(100, dtype=bool))
    limits = fit_limits(graded, [graded], risk=0.1)
    allowed = max(missed for missed in range(20) if binom.cdf(missed, 100, 0.1) <= 0.05)
    assert limits.no == yes[allowed]
    assert limits.bounds[1] == risk_bound(allowed, 100, 0.05)
    fewer = Graded(yes[::2], np.ones(50, dtype=bool))
    assert fit_limits(graded, [graded, fewer], risk=0.1).no < limits.no


CELLS = [
    (0.97, 200, 0.05, 0.62),
    (0.97, 600, 0.02, 0.54),
    (0.97, 2000, 0.02, 0.89),
    (0.90, 200, 0.10, 0.62),
    (0.90, 600, 0.05, 0.51),
    (0.90, 2000, 0.02, 0.32),
]
"""Accuracy, rows of VAL, the risk, and what testing from the least p-value on answers."""


@pytest.mark.slow
@pytest.mark.parametrize(("accuracy", "rows", "risk", "usual"), CELLS)
def test_promises_hold_and_answer_much(
    accuracy: float, rows: int, risk: float, usual: float
) -> None:
    random, answered, broken = np.random.default_rng(3), [], 0
    for _ in range(400):
        ordering, certifying = parted(drawn(rows, accuracy, random))
        try:
            fitted = fit_abstention(ordering, [certifying], risk=risk)
        except Unpromised:
            answered.append(0.0)
            continue
        share, wrong, _ = outcome(fitted.threshold, accuracy)
        answered.append(share)
        broken += wrong > risk
    assert broken <= 0.05 * 400
    assert np.mean(answered) >= usual


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "skew"), [(1.7, 0.0), (1.7, 0.02), (0.3, 0.0)])
def test_promises_hold_of_probabilities_that_are_not_calibrated(slope: float, skew: float) -> None:
    """Far sharper or flatter than the truth, or with labels that are wrong anywhere."""
    random, broken, kept = np.random.default_rng(4), 0, 0
    population = drawn(200_000, 0.9, random)
    right = population.right & (random.random(200_000) >= skew)
    odds = np.log(population.confidence / (1 - population.confidence))
    with np.errstate(over="ignore"):
        shown = 1 / (1 + np.exp(-slope * odds))
    for _ in range(300):
        rows = random.integers(0, 200_000, 600)
        ordering, certifying = parted(Graded(shown[rows], right[rows]))
        try:
            fitted = fit_abstention(ordering, [certifying], risk=0.08)
        except Unpromised:
            continue
        kept += 1
        broken += _wrong(shown, right, fitted.threshold) > 0.08
    assert broken <= 0.05 * 300
    assert kept > 100


def _wrong(confidence: ndarray, right: ndarray, threshold: float) -> float:
    return float((~right[confidence >= threshold]).mean())


@pytest.mark.slow
def test_limits_of_yes_and_no_hold() -> None:
    """Each with its own confidence."""
    random, wrong_yes, missed, kept = np.random.default_rng(5), 0, 0, []
    for _ in range(400):
        ordering, certifying = parted(drawn(400, 0.6, random, 0.6))
        limits = fit_limits(ordering, [certifying], risk=0.1)
        missed += outcome(limits.no, 0.6, 0.6)[2] > 0.1
        wrong_yes += limits.yes is not None and outcome(limits.yes, 0.6, 0.6)[1] > 0.1
        kept.append(limits.answered)
    assert wrong_yes <= 0.05 * 400
    assert missed <= 0.05 * 400 + 2 * np.sqrt(0.05 * 0.95 * 400)
    assert np.mean(kept) > 0.7
