"""Bootstrap intervals (Efron's percentiles, seeded), and measures of many resamples at once: rows
[repeat, sample] give values [repeat].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.statistics.metrics import BINS

Interval = tuple[float, float]
"""The ends of a bootstrap interval."""
Rows = Int[Tensor, "repeat sample"]
Values = Float[Tensor, " repeat"]

REPEATS = 1000
"""Resamples: the ends of a 95 % interval then move by less than a tenth of its width."""
TOGETHER = 1 << 20
"""Samples that are drawn at a time, over all resamples of a step: some 10 MB for each measure."""
RISK = 0.05
"""The share of wrong answers that `cov5` allows."""


def bootstrap(
    measure: Callable[..., Mapping[str, Values]],
    *counts: int,
    level: float = 0.95,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, Interval]:
    """[low, high] of each measure over resamples with replacement, leaving out what came to
    nothing.

    `measure` takes the rows that were drawn of each kind of sample, of which there are `counts`.
    """
    random = torch.Generator().manual_seed(seed)
    some = max(1, min(repeats, TOGETHER // sum(counts)))
    drawn: dict[str, list[float]] = {}
    for start in range(0, repeats, some):
        rows = [
            torch.randint(count, (min(some, repeats - start), count), generator=random)
            for count in counts
        ]
        for name, values in measure(*rows).items():
            # As numbers: tensors this small would lie between large ones, and keep the heap from
            # shrinking.
            drawn.setdefault(name, []).extend(values.tolist())
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    intervals = {}
    for name, numbers in drawn.items():
        values = torch.tensor(numbers, dtype=torch.float64)
        if values.isfinite().any():
            low, high = values[values.isfinite()].quantile(ends).tolist()
            intervals[name] = (low, high)
    return intervals


class Promises(Protocol):
    """Answers, how sure they are, and what came of them."""

    @property
    def confidence(self) -> Tensor:
        """The probability of the answer."""

    @property
    def correct(self) -> Tensor:
        """Whether it is right."""

    @property
    def promised(self) -> Tensor:
        """What calibration is measured of: confidence, or the probability of yes."""

    @property
    def kept(self) -> Tensor:
        """What came true of it."""


class Selective:
    """Answers by their confidence, the surest first: what rows of them are worth then takes
    counting, not sorting.

    AURC is the area under r(c), the share of wrong answers among the surest c (Geifman, Uziel,
    El-Yaniv, ICLR 2019); AUGRC that under c · r(c), an average over all samples (Traub et al.,
    NeurIPS 2024); cov5 the largest c with at most `RISK`; mis_auroc P(a right answer is surer than
    a wrong one).
    """

    def __init__(self, inside: Promises) -> None:
        values, ranks = (-inside.confidence.double()).unique(return_inverse=True)
        self.count = len(values)
        self.ranks = 2 * ranks + inside.correct
        order = inside.promised.argsort()
        self.gaps = (inside.kept - inside.promised.double())[order]
        self.places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))

    def metrics(self, rows: Rows) -> dict[str, Values]:
        """These of each resample, and its AECE; NaN where there is nothing to tell."""
        parts = [self._metrics(some) for some in rows.split(max(1, TOGETHER // rows.shape[1]))]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _metrics(self, rows: Rows) -> dict[str, Values]:
        return {"aece": self._aece(rows), **self._selective(rows)}

    def _aece(self, rows: Rows) -> Values:
        gaps = spread(self.gaps.expand(len(rows), -1), counted(self.places[rows], len(self.gaps)))
        parts = [part.sum(dim=1).abs() for part in gaps.tensor_split(BINS, dim=1)]
        return torch.stack(parts).sum(dim=0) / rows.shape[1]

    def _selective(self, rows: Rows) -> dict[str, Values]:
        """Of a million rows each of these tensors takes 8 MB: none is kept beyond its use."""
        n = rows.shape[1]
        counts = counted(self.ranks[rows], 2 * self.count).reshape(len(rows), self.count, 2)
        sizes = counts.sum(dim=-1)
        wrong, right = (side.double() for side in counts.unbind(-1))
        del counts
        # So many wrong ones among those of a confidence or above it.
        so_far = wrong.cumsum(1)
        below = so_far[:, -1:] - so_far + wrong / 2
        auroc = (right * below).sum(dim=1) / (right.sum(dim=1) * wrong.sum(dim=1))
        del right, below
        answered = sizes.cumsum(1)
        allowed = (so_far / answered.clamp_min(1) <= RISK + 1e-12) & (sizes > 0)
        covered = (allowed * answered).amax(dim=1).double() / n
        del so_far, answered, allowed
        # Those of equal confidence are answered together: each is as wrong as they are on average.
        among_first = spread(wrong / sizes.clamp_min(1), sizes).cumsum(1)
        return {
            "aurc": torch.trapezoid(among_first / torch.arange(1, n + 1)) / (n - 1),
            "augrc": torch.trapezoid(among_first / n) / (n - 1),
            "cov5": covered,
            "mis_auroc": auroc,
        }


def counted(places: Int[Tensor, "repeat sample"], count: int) -> Int[Tensor, "repeat place"]:
    """How often each resample has each of so many places."""
    shifted = places + torch.arange(len(places))[:, None] * count
    return torch.bincount(shifted.flatten(), minlength=len(places) * count).reshape(
        len(places), count
    )


def spread(values: Tensor, counts: Int[Tensor, "repeat place"]) -> Float[Tensor, "repeat sample"]:
    """Each value as often as it was drawn."""
    return values.flatten().repeat_interleave(counts.flatten()).reshape(len(values), -1)


class Ranked:
    """Scores of both kinds by their distinct values: what rows of them are worth then takes
    counting, not sorting.
    """

    def __init__(self, id_scores: Tensor, ood_scores: Tensor) -> None:
        values, ranks = torch.cat([id_scores, ood_scores]).unique(return_inverse=True)
        self.count = len(values)
        self.id_ranks, self.ood_ranks = ranks.split([len(id_scores), len(ood_scores)])

    def metrics(self, id_rows: Rows, ood_rows: Rows) -> dict[str, Values]:
        """`metrics.ood_metrics` of these rows."""
        inside = counted(self.id_ranks[id_rows], self.count).double()
        outside = counted(self.ood_ranks[ood_rows], self.count).double()
        n, m = id_rows.shape[1], ood_rows.shape[1]
        # So many at a value or below it; and so many at it or above.
        id_below, ood_below = inside.cumsum(1), outside.cumsum(1)
        id_above, ood_above = n - id_below + inside, m - ood_below + outside
        needed = max(1, math.ceil(0.95 * m - 1e-9))
        threshold = (ood_above >= needed).sum(dim=1, keepdim=True) - 1
        return {
            "auroc": (outside * (id_below - inside / 2)).sum(dim=1) / n / m,
            "fpr95": id_above.gather(1, threshold)[:, 0] / n,
            "aupr": (outside * (ood_above / (ood_above + id_above).clamp_min(1))).sum(dim=1) / m,
            "aupr_id": (inside * (id_below / (ood_below + id_below).clamp_min(1))).sum(dim=1) / n,
        }
