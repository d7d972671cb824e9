"""When to abstain: the threshold on the probability above which at most a share r of the answers is
wrong, with confidence 1 − δ.

Geifman and El-Yaniv, NeurIPS 2017 (SGR): of the k = ⌈log₂(n + 1)⌉ thresholds that a binary search
may try, each is certified with δ/k by the exact binomial tail: of m answers e are wrong, and b
solves P(Bin(m, b) ≤ e) = δ/k; b bounds the true share.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Abstention, Limits
from hydrasurgeon.statistics.probabilities import Scores, logsumexp

MANY = 100_000
"""More samples than this nobody is told to label."""
DELTA = 0.05
"""How likely a promised risk may be broken."""


def risk_bound(wrong: int, answered: int, delta: float) -> float:
    """The b with P(Bin(answered, b) ≤ wrong) = delta, by bisection; 1 where there is nothing to
    tell from.
    """
    if answered == 0 or wrong >= answered:
        return 1.0
    j = np.arange(wrong + 1, dtype=np.float64)
    ways = np.zeros(wrong + 1)  # ln C(answered, j)
    ways[1:] = np.log((answered + 1 - j[1:]) / j[1:]).cumsum()
    low, high = wrong / answered, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        tail = np.exp(
            logsumexp(ways + j * math.log(middle) + (answered - j) * math.log1p(-middle), 0)
        )
        if float(tail) > delta:
            low = middle
        else:
            high = middle
    return high


def samples_needed(risk: float, delta: float) -> int:
    """The fewest samples that can promise it: all answered, none wrong."""
    count = 1
    while (1 - risk) ** count > delta / _tries(count):
        count += 1
    return count


def _tries(count: int) -> int:
    return math.ceil(math.log2(count + 1))


def rows_needed(risk: float, accuracy: float, flagged: float = 0.0) -> int | None:
    """The fewest rows of VAL by which all familiar ones may be answered, `flagged` of them being
    unfamiliar; None where as much is wrong as may be, or nearly, and `MANY` do not do. Half of them
    certifies.
    """

    def promised(count: int) -> bool:
        wrong = round(count * (1 - accuracy))
        return risk_bound(wrong, count, DELTA / _tries(count)) <= risk

    high = samples_needed(risk, DELTA)
    while not promised(high):
        high *= 2
        if 1 - accuracy >= risk or high > MANY:
            return None
    low = high // 2
    while high - low > max(1, high // 200):  # two digits are told
        middle = (low + high) // 2
        low, high = (low, middle) if promised(middle) else (middle, high)
    return math.ceil(2 * high / (1 - flagged))


def told(rows: int) -> str:
    """Two digits of a number of rows, rounded up."""
    unit = 10 ** max(0, len(str(rows)) - 2)
    return f"{-(-rows // unit) * unit:,}"


def fit_limits(yes: Scores, truth: ndarray, *, risk: float, delta: float = DELTA) -> Limits:
    """From which probability of yes on the precision is at least 1 − risk, and below which at most
    a fraction `risk` of what is yes lies: the binomial tail of the positives, of which ever more
    are missed until it is too many. A guard of rare things may keep the second promise alone: it
    then never says yes.
    """
    positives = np.sort(yes[truth].astype(np.float64))
    # The bound grows with what is missed.
    allowed = bisect_right(
        range(len(positives)), risk, key=lambda missed: risk_bound(missed, len(positives), delta)
    )
    bound, threshold = 0.0, 0.0
    if allowed:
        bound, threshold = (
            risk_bound(allowed - 1, len(positives), delta),
            float(positives[allowed - 1]),
        )
    certain, bounds = None, (0.0, bound)
    try:
        sure = fit_abstention(yes, truth, risk=risk, delta=delta)
    except DataError:
        if not allowed:
            raise
    else:
        assert sure.bound is not None
        certain, bounds = sure.threshold, (sure.bound, bound)
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


def fit_abstention(
    confidence: Scores, correct: ndarray, *, risk: float, delta: float = DELTA
) -> Abstention:
    """The lowest threshold found that keeps the promise; DataError where the samples cannot certify
    any.
    """
    count, needed = len(confidence), samples_needed(risk, delta)
    if count < needed:
        what = f"{count} samples cannot promise a risk of {risk:g} with confidence {1 - delta:g}"
        least = (
            f"It takes at least {needed} of them, even if none is wrong (half of the "
            "validation data certifies); "
        )
        raise DataError(what, hint=f"{least}give more --data, or a larger --risk.")
    order = confidence.argsort(kind="stable")
    values = confidence[order].astype(np.float64)
    wrong = (~correct[order])[::-1].cumsum()[::-1]
    share = delta / _tries(count)
    # Fewer answers than this certify nothing, even if none is wrong.
    fewest = math.ceil(math.log(share) / math.log1p(-risk) - 1e-9)
    low, high = 0, count - fewest
    best, closest = None, 1.0
    while low <= high:
        at = (low + high) // 2
        # Samples of equal confidence are answered together.
        first = int(np.searchsorted(values, values[at]))
        answered = count - first
        bound = risk_bound(int(wrong[first]), answered, share)
        closest = min(closest, bound)
        if bound <= risk:
            high = at - 1
            if best is None or answered / count > best.coverage:
                kept = {"risk": risk, "delta": delta, "bound": bound, "coverage": answered / count}
                best = Abstention(threshold=float(values[at]), **kept)
        else:
            low = at + 1
    if best is None:
        what = (
            f"no threshold keeps a risk of {risk:g} with confidence {1 - delta:g} on {count} "
            "samples"
        )
        best_of_all = f"The best that can be promised is {closest:.3g}: "
        raise DataError(what, hint=f"{best_of_all}give more --data, or a larger --risk.")
    return best
