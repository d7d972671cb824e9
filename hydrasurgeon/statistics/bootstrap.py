"""Bootstrap intervals (Efron's percentiles, seeded), and measures of many resamples at once: rows
[repeat, sample] give values [repeat].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy import ndarray

from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.run.shapes import Float, Int
from hydrasurgeon.statistics.metrics import BINS
from hydrasurgeon.statistics.probabilities import in_pieces

Interval = tuple[float, float]
"""The ends of a bootstrap interval."""
Rows = Int[ndarray, "repeat sample"]
Values = Float[ndarray, " repeat"]

REPEATS = 1000
"""Resamples: the ends of a 95 % interval then move by less than a tenth of its width."""
TOGETHER = 1 << 20
"""Samples that are drawn at a time, over all resamples of a step: some 10 MB for each measure."""
RISK = 0.05
"""The fraction of wrong answers that `cov5` allows."""


def bootstrap(
    measure: Callable[..., Mapping[str, Values]],
    *counts: int,
    level: float = 0.95,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return [low, high] of each measure over resamples with replacement.

    Resamples in which a measure is not finite do not count for it; a measure that never is finite
    is omitted.

    `measure` takes the rows that were drawn of each kind of sample, of which there are `counts`.
    """
    random = np.random.default_rng(seed)
    some = max(1, min(repeats, TOGETHER // sum(counts)))
    drawn: dict[str, list[float]] = {}
    for start in range(0, repeats, some):
        check_deadline()
        rows = [
            random.integers(count, size=(min(some, repeats - start), count)) for count in counts
        ]
        for name, values in measure(*rows).items():
            drawn.setdefault(name, []).extend(values.tolist())
    ends = np.array([(1 - level) / 2, (1 + level) / 2], dtype=np.float64)
    intervals = {}
    for name, numbers in drawn.items():
        values = np.array(numbers, dtype=np.float64)
        if np.isfinite(values).any():
            low, high = np.quantile(values[np.isfinite(values)], ends).tolist()
            intervals[name] = (low, high)
    return intervals


class Selective:
    """Answers by their confidence, the surest first: what rows of them are worth then takes
    counting, not sorting.

    AURC is the area under r(c), the fraction of wrong answers among the surest c (Geifman, Uziel,
    El-Yaniv, ICLR 2019); AUGRC that under c · r(c), an average over all samples (Traub et al.,
    NeurIPS 2024); cov5 the largest c with at most `RISK`; mis_auroc P(a right answer is surer than
    a wrong one).
    """

    def __init__(
        self, confidence: ndarray, correct: ndarray, promised: ndarray, kept: ndarray
    ) -> None:
        """Sort the answers by confidence.

        `promised` are the probabilities whose calibration is measured, `kept` whether they came
        true.
        """
        values, ranks = np.unique(-confidence.astype(np.float64), return_inverse=True)
        self.count = len(values)
        self.ranks = 2 * ranks + correct
        order = promised.argsort(kind="stable")
        self.gaps = (kept - promised.astype(np.float64))[order]
        self.places = np.empty_like(order)
        self.places[order] = np.arange(len(order))

    def metrics(self, rows: Rows) -> dict[str, Values]:
        """Return these metrics and the AECE of each resample; NaN where one is undefined."""
        parts = [
            {"aece": self._aece(some), **self._selective(some)}
            for some in in_pieces(rows, max(1, TOGETHER // rows.shape[1]))
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _aece(self, rows: Rows) -> Values:
        gaps = spread(
            np.broadcast_to(self.gaps, (len(rows), len(self.gaps))),
            counted(self.places[rows], len(self.gaps)),
        )
        parts = [np.abs(part.sum(axis=1)) for part in np.array_split(gaps, BINS, axis=1)]
        return np.stack(parts).sum(axis=0) / rows.shape[1]

    def _selective(self, rows: Rows) -> dict[str, Values]:
        """Return the metrics of selective prediction.

        For a million rows a tensor takes 8 MB, so each is deleted after its last use.
        """
        n = rows.shape[1]
        counts = counted(self.ranks[rows], 2 * self.count).reshape(len(rows), self.count, 2)
        sizes = counts.sum(axis=-1)
        wrong, right = (counts[..., side].astype(np.float64) for side in (0, 1))
        del counts
        # So many wrong ones among those of a confidence or above it.
        so_far = wrong.cumsum(1)
        below = so_far[:, -1:] - so_far + wrong / 2
        with np.errstate(invalid="ignore"):
            auroc = (right * below).sum(axis=1) / (right.sum(axis=1) * wrong.sum(axis=1))
        del right, below
        answered = sizes.cumsum(1)
        allowed = (so_far / np.maximum(answered, 1) <= RISK + 1e-12) & (sizes > 0)
        covered = ((allowed * answered).max(axis=1)).astype(np.float64) / n
        del so_far, answered, allowed
        # Those of equal confidence are answered together: each is as wrong as they are on average.
        among_first = spread(wrong / np.maximum(sizes, 1), sizes).cumsum(1)
        areas = [
            np.trapezoid(risk) for risk in (among_first / np.arange(1, n + 1), among_first / n)
        ]
        with np.errstate(invalid="ignore"):
            aurc, augrc = (area / np.float64(n - 1) for area in areas)
        return {
            "aurc": aurc,
            "augrc": augrc,
            "cov5": covered,
            "mis_auroc": auroc,
        }


def counted(places: Int[ndarray, "repeat sample"], count: int) -> Int[ndarray, "repeat place"]:
    """Count how often each resample has each of `count` places."""
    shifted = places + np.arange(len(places))[:, None] * count
    return np.bincount(shifted.ravel(), minlength=len(places) * count).reshape(len(places), count)


def summed(
    places: Int[ndarray, "repeat sample"], values: Float[ndarray, "repeat sample"], count: int
) -> Float[ndarray, "repeat place"]:
    """Sum each resample's values at each of `count` places."""
    shifted = places + np.arange(len(places))[:, None] * count
    sums = np.bincount(shifted.ravel(), values.ravel(), len(places) * count)
    return sums.reshape(len(places), count)


def spread(
    values: ndarray, counts: Int[ndarray, "repeat place"]
) -> Float[ndarray, "repeat sample"]:
    """Repeat each value as often as it was drawn."""
    return np.repeat(values.ravel(), counts.ravel()).reshape(len(values), -1)


class Ranked:
    """Scores of both kinds by their distinct values: what rows of them are worth then takes
    counting, not sorting.
    """

    def __init__(self, id_scores: ndarray, ood_scores: ndarray) -> None:
        values, ranks = np.unique(np.concatenate([id_scores, ood_scores]), return_inverse=True)
        self.count = len(values)
        self.id_ranks, self.ood_ranks = np.split(ranks, [len(id_scores)])

    def metrics(self, id_rows: Rows, ood_rows: Rows) -> dict[str, Values]:
        """Return the OOD metrics of these rows.

        `fpr95` uses the highest threshold that flags 95 % of the OOD samples. In `aupr` the OOD
        samples are the positive class, in `aupr_id` the ID samples.
        """
        inside = counted(self.id_ranks[id_rows], self.count).astype(np.float64)
        outside = counted(self.ood_ranks[ood_rows], self.count).astype(np.float64)
        n, m = id_rows.shape[1], ood_rows.shape[1]
        # So many at a value or below it; and so many at it or above.
        id_below, ood_below = inside.cumsum(1), outside.cumsum(1)
        id_above, ood_above = n - id_below + inside, m - ood_below + outside
        needed = max(1, math.ceil(0.95 * m - 1e-9))
        threshold = (ood_above >= needed).sum(axis=1, keepdims=True) - 1
        return {
            "auroc": (outside * (id_below - inside / 2)).sum(axis=1) / n / m,
            "fpr95": np.take_along_axis(id_above, threshold, axis=1)[:, 0] / n,
            "aupr": (outside * (ood_above / np.maximum(ood_above + id_above, 1))).sum(axis=1) / m,
            "aupr_id": (inside * (id_below / np.maximum(ood_below + id_below, 1))).sum(axis=1) / n,
        }
