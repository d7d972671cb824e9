"""Abstention: thresholds above which at most a fraction r of the answers is wrong.

The promise holds with confidence 1 − δ.

Split fixed-sequence testing (Angelopoulos et al., 2021, Learn then Test). Rows that fit say in which
order thresholds are tested. Of m rows with a confidence c of at least t, e are wrong, and Σ (1 − c)
are expected to be. Expectations vary less than counts, and are believed as far as the counts allow:

    z = max_t |e − Σ (1 − c)| / √(¼ + Σ c (1 − c))        λ = min(1, (2 / z)⁴)
    ρ = (λ Σ (1 − c) + (1 − λ) e) / m                     evidence for t: m KL(ρ ‖ r), < 0 where ρ > r

The sequence begins at the threshold with the most evidence, of those that leave enough rows to
certify the risk where none of them is wrong, and goes to lower ones. Rows that certify test one
after another, each by δ: it passes where P(Bin(m, r) ≤ e) ≤ δ. The last one before the first that
fails is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Abstention, Limits
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.probabilities import Scores, logsumexp, spaced

MANY = 100_000
"""Largest number of samples that a hint asks for."""
DELTA = 0.05
"""Probability with which a promised risk may be exceeded."""
TRIES = 50
"""Thresholds of a sequence. Fewer stop sooner above what could be certified, more fail by chance."""
APART = 2.0
"""Standard errors by which counts may differ from what probabilities expect before these are believed
less.
"""
CERTIFIES = 2 / 3
"""Fraction of VAL that certifies."""


class Unpromised(DataError):
    """No threshold keeps the risk; `needed` samples of VAL probably have one, None: no number does."""

    def __init__(self, message: str, *, needed: int | None) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Graded:
    """Answers: how likely each is right, and whether it is."""

    confidence: Float[ndarray, " answer"]
    right: Bool[ndarray, " answer"]

    def joined(self, other: Graded) -> Graded:
        """Return these answers followed by the other's."""
        return Graded(
            np.concatenate([self.confidence, other.confidence]),
            np.concatenate([self.right, other.right]),
        )

    def thresholds(self) -> Float[ndarray, " threshold"]:
        """Return at most `TRIES` confidences, evenly ranked, from the highest on, and 0."""
        values = np.unique(self.confidence.astype(np.float64))[::-1]
        places = spaced(len(values) - 1, min(TRIES, len(values))).round().astype(np.int64)
        return np.append(values[places], 0.0)

    def above(
        self, thresholds: Float[ndarray, " threshold"], values: ndarray
    ) -> Float[ndarray, " threshold"]:
        """Sum a value of the answers from each threshold on."""
        order = np.argsort(-self.confidence, kind="stable")
        count = np.searchsorted(-self.confidence[order], -thresholds, side="right")
        return np.concatenate([[0.0], values[order].astype(np.float64).cumsum()])[count]

    def counts(
        self, thresholds: Float[ndarray, " threshold"]
    ) -> tuple[Int[ndarray, " threshold"], Int[ndarray, " threshold"]]:
        """Count answers from each threshold on, and the wrong ones among them."""
        answered = self.above(thresholds, np.ones_like(self.right))
        return answered.astype(np.int64), self.above(thresholds, ~self.right).astype(np.int64)

    def wrong_at(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return the fraction of wrong answers among each fraction of the most confident ones."""
        right = self.right[np.argsort(-self.confidence, kind="stable")]
        counts = [max(1, round(share * len(right))) for share in shares]
        return tuple(float(1 - right[:count].mean()) for count in counts)

    def rates(self, thresholds: Float[ndarray, " threshold"]) -> Float[ndarray, " threshold"]:
        """Estimate how often answers from each threshold on are wrong, ρ."""
        doubt = 1 - self.confidence.astype(np.float64)
        expected = self.above(thresholds, doubt)
        error = np.sqrt(0.25 + self.above(thresholds, doubt * (1 - doubt)))
        answered, wrong = self.counts(thresholds)
        furthest = float((np.abs(wrong - expected) / error).max())
        belief = (APART / max(furthest, APART)) ** 4
        return (belief * expected + (1 - belief) * wrong) / np.maximum(answered, 1)

    def sequence(self, risk: float, answers: float) -> Float[ndarray, " threshold"]:
        """List the thresholds to test for a risk, in their order: none of which fewer than so many
        answers lie above, but for the last.
        """
        thresholds = self.thresholds()
        answered, _ = self.counts(thresholds)
        enough = min(int((answered < answers).sum()), len(thresholds) - 1)
        thresholds, answered = thresholds[enough:], answered[enough:]
        rates = np.clip(self.rates(thresholds), 1e-12, 1 - 1e-12)
        apart = rates * np.log(rates / risk) + (1 - rates) * np.log((1 - rates) / (1 - risk))
        evidence = np.where(rates < risk, answered, -answered) * apart
        return thresholds[int(evidence.argmax()) :]


def _binomial_tail(wrong: int, answered: int) -> Callable[[float], float]:
    """Return P(Bin(answered, p) ≤ wrong) as a function of p between 0 and 1."""
    j = np.arange(wrong + 1, dtype=np.float64)
    ways = np.zeros(wrong + 1)  # ln C(answered, j)
    ways[1:] = np.log((answered + 1 - j[1:]) / j[1:]).cumsum()

    def tail(p: float) -> float:
        logs = ways + j * math.log(p) + (answered - j) * math.log1p(-p)
        return float(np.exp(logsumexp(logs, 0)))

    return tail


def keeps(wrong: int, answered: int, risk: float, delta: float) -> bool:
    """Return True if so few wrong answers show, with confidence 1 − delta, that the risk is kept."""
    return answered > 0 and _binomial_tail(wrong, answered)(risk) <= delta


def risk_bound(wrong: int, answered: int, delta: float) -> float:
    """Return the b with P(Bin(answered, b) ≤ wrong) = delta, by bisection; 1 if no answer is right."""
    if answered == 0 or wrong >= answered:
        return 1.0
    tail = _binomial_tail(wrong, answered)
    low, high = wrong / answered, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if tail(middle) > delta:
            low = middle
        else:
            high = middle
    return high


def samples_needed(risk: float, delta: float = DELTA) -> int:
    """Return the fewest certifying samples that can promise a risk: all answered, none wrong."""
    return math.ceil(math.log(delta) / math.log1p(-risk) - 1e-9)


def least_risk(count: int, delta: float = DELTA) -> float:
    """Return the smallest risk that so many certifying samples can promise."""
    return float(-math.expm1(math.log(delta) / max(1, count)))


def rows_needed(risk: float, accuracy: float, flagged: float = 0.0) -> int | None:
    """Return the fewest rows of VAL with which all familiar rows may be answered.

    A fraction `flagged` of the rows is unfamiliar. None if the error rate reaches the risk, or
    comes so near that `MANY` rows are too few.
    """
    rates, shares = np.array([1 - accuracy]), np.array([CERTIFIES * (1 - flagged)])
    return _fewest(risk, rates, shares, errors=1)


def _fewest(
    risk: float,
    rates: Float[ndarray, " threshold"],
    shares: Float[ndarray, " threshold"],
    errors: float,
) -> int | None:
    """Return the fewest rows that certify one of these thresholds; None if `MANY` are too few.

    At each threshold a fraction of the rows certifies and is answered. A rate of these answers is
    wrong, and by chance so many standard errors more.
    """
    useful = rates < risk
    pairs = list(zip(rates[useful].tolist(), shares[useful].tolist(), strict=True))

    def certified(count: int) -> bool:
        for rate, share in pairs:
            answered = round(count * share)
            wrong = answered * rate + errors * math.sqrt(answered * rate * (1 - rate))
            if keeps(round(wrong), answered, risk, DELTA):
                return True
        return False

    if not pairs:
        return None
    high = math.ceil(samples_needed(risk) / max(share for _, share in pairs))
    while not certified(high):
        high *= 2
        if high > MANY:
            return None
    low = high // 2
    while high - low > max(1, high // 200):  # two digits are printed
        middle = (low + high) // 2
        low, high = (low, middle) if certified(middle) else (middle, high)
    return high


def two_digits(rows: int) -> str:
    """Print a number of rows, rounded up to two digits."""
    unit = 10 ** max(0, len(str(rows)) - 2)
    return f"{-(-rows // unit) * unit:,}"


def fit_abstention(
    ordering: Graded, certifying: Sequence[Graded], *, risk: float, delta: float = DELTA
) -> Abstention:
    """Fit the lowest threshold of the sequence up to which all thresholds keep the promise.

    Every set that certifies must keep it. The rule answers `coverage` of the first set. Raises
    Unpromised if not even the first threshold keeps it.
    """
    least = min(len(graded.right) for graded in certifying)
    share = samples_needed(risk, delta) / max(1, least)
    thresholds = ordering.sequence(risk, share * len(ordering.right))
    counts = [graded.counts(thresholds) for graded in certifying]
    passed = 0
    while passed < len(thresholds) and all(
        keeps(int(wrong[passed]), int(answered[passed]), risk, delta) for answered, wrong in counts
    ):
        passed += 1
    if not passed:
        graded = ordering.joined(certifying[0])
        candidates = graded.thresholds()
        shares = graded.counts(candidates)[0] / max(1, len(graded.right))
        needed = _fewest(risk, graded.rates(candidates), CERTIFIES * shares, errors=2)
        raise Unpromised(f"no threshold keeps a risk of {risk:g}", needed=needed)
    last = passed - 1
    return Abstention(
        threshold=float(thresholds[last]),
        risk=risk,
        delta=delta,
        bound=max(
            risk_bound(int(wrong[last]), int(answered[last]), delta) for answered, wrong in counts
        ),
        coverage=int(counts[0][0][last]) / len(certifying[0].right),
    )


def fit_limits(
    ordering: Graded, certifying: Sequence[Graded], *, risk: float, delta: float = DELTA
) -> Limits:
    """Fit the two limits of a yes-no answer.

    From `yes` on, the precision is at least 1 − risk, as in an abstention. Below `no` lies at most
    a fraction `risk` of the positives, by the binomial tail, which grows with the misses, so that
    no order is needed. For rare positives only the second promise may hold; `yes` is then None.
    """
    missing = [_missing(graded.confidence[graded.right], risk, delta) for graded in certifying]
    threshold, bound = min(missing)
    certain, bounds = None, (0.0, bound)
    try:
        sure = fit_abstention(ordering, certifying, risk=risk, delta=delta)
    except Unpromised:
        if not threshold:
            raise
    else:
        assert sure.bound is not None
        certain, bounds = sure.threshold, (sure.bound, bound)
    yes = certifying[0].confidence
    answered = yes < threshold
    if certain is not None:
        answered |= yes >= certain
    return Limits(
        yes=certain,
        no=threshold,
        risk=risk,
        delta=delta,
        bounds=bounds,
        answered=float(answered.astype(np.float64).mean()),
    )


def _missing(positives: Scores, risk: float, delta: float) -> tuple[float, float]:
    """Return the highest threshold below which few enough positives lie.

    The second value is a bound on their share.

    Both are 0 if there are too few positives.
    """
    positives = np.sort(positives.astype(np.float64))
    count = len(positives)
    allowed = bisect_right(range(count), risk, key=lambda missed: risk_bound(missed, count, delta))
    if not allowed:
        return 0.0, 0.0
    return float(positives[allowed - 1]), risk_bound(allowed - 1, count, delta)
