"""Conformal prediction sets: {c: s(x, c) ≤ q}, q the ⌈(n + 1) · coverage⌉-th smallest s(x_i, y_i)
of n calibration samples.

    s = 1 − p_c    (LAC; Sadinle et al., JASA 2019)

The true label is in the set with probability ≥ coverage, on average over samples exchangeable with
those of the calibration, whatever the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Conformal
from hydrasurgeon.run.shapes import Bool
from hydrasurgeon.statistics.probabilities import Labels, Probs, Scores, of_labels

SUMMED = 1e-12
"""Sums of probabilities in another order differ by less: what a set holds must not depend on it."""


SOME = 0.02
"""The fraction of sets with several labels from which on sets help a person choose."""


def prediction_sets(conformal: Conformal, probs: Probs) -> Bool[ndarray, "sample klass"]:
    """Return which labels belong to each sample's set."""
    return 1 - probs <= conformal.threshold + SUMMED


def samples_needed(coverage: float) -> int:
    """Return the fewest calibration samples n for which ⌈(n + 1) · coverage⌉ ≤ n."""
    count = max(1, math.ceil(coverage / (1 - coverage)) - 2)
    while _rank(count, coverage) > count:
        count += 1
    return count


def _rank(count: int, coverage: float) -> int:
    # 0.9 · 10 is 9.000000000000002 in floating point for some.
    return math.ceil((count + 1) * coverage - 1e-9)


def quantile(scores: Scores, coverage: float) -> float:
    """Return the finite-sample quantile; raise DataError if there are too few samples."""
    rank = _rank(len(scores), coverage)
    if rank > len(scores):
        raise DataError(
            f"{len(scores)} rows are too few to certify a coverage of {coverage:g}",
            hint=(
                f"Give at least {samples_needed(coverage)} rows that certify; two thirds of the "
                "validation rows do."
            ),
        )
    return float(np.partition(scores, rank - 1)[rank - 1])


def sets_of(scores: Scores, coverage: float) -> Conformal:
    """Fit prediction sets to the scores of the calibration samples' true labels."""
    return Conformal(method="lac", coverage=coverage, threshold=quantile(scores, coverage))


def largest(sets: Iterable[Conformal]) -> Conformal:
    """Choose the rule with the largest sets."""
    return max(sets, key=lambda rule: rule.threshold)


def fit_conformal(probs: Probs, labels: Labels, *, coverage: float = 0.9) -> Conformal:
    """Calibrate on samples that neither the model nor its temperature was fitted on."""
    return sets_of(1 - of_labels(probs, labels), coverage)


def coverage_that_helps(probs: Probs, labels: Labels, coverage: float) -> float | None:
    """Return the lowest coverage at which a fraction `SOME` of the sets has several labels.

    The search begins at `coverage`. None if these samples cannot promise one.
    """
    tried = (coverage, *(percent / 100 for percent in range(91, 100)), 0.995, 0.999)
    for higher in (
        level for level in tried if level >= coverage and samples_needed(level) <= len(probs)
    ):
        sets = prediction_sets(fit_conformal(probs, labels, coverage=higher), probs)
        if float((sets.sum(axis=-1) > 1).astype(np.float64).mean()) >= SOME:
            return higher
    return None
