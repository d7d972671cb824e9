"""What pictures of answers are drawn from: reliability, histograms, ROC and risk over coverage, in a few hundred
points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.measuring.metrics import BINS, bins_of, risks

POINTS = 160
"""Of a curve: more than a chart has pixels for tells nothing."""
BARS = (8, 40)
"""Of a histogram, the fewest and the most: in bars of a few samples each one sees chance alone."""
TAIL = 0.002
"""The share of samples at either end that a histogram may leave out: a few far ones would squeeze all others."""

Values = Float[Tensor, " sample"]
Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Bin:
    """Answers of about the same confidence."""

    confidence: float
    """Their mean."""
    accuracy: float
    count: int


def reliability(confidence: Values, correct: Bool[Tensor, " sample"]) -> list[Bin]:
    """The bins of the ECE that hold anything."""
    bins = bins_of(confidence)
    counts = torch.zeros(BINS + 1, dtype=torch.float64).index_add_(
        0, bins, torch.ones_like(confidence, dtype=torch.float64)
    )
    sure = torch.zeros_like(counts).index_add_(0, bins, confidence.double())
    right = torch.zeros_like(counts).index_add_(0, bins, correct.double())
    return [
        Bin(float(sure[at] / counts[at]), float(right[at] / counts[at]), int(counts[at]))
        for at in range(BINS + 1)
        if counts[at]
    ]


def histogram(sets: Sequence[Values]) -> tuple[float, float, list[list[float]]]:
    """Low and high end, and for each set the share of its samples in each of some equal steps between."""
    # Rice's rule, for the smallest set.
    bars = min(max(round(2 * min(map(len, sets)) ** (1 / 3)), BARS[0]), BARS[1])
    ends = [_ends(values) for values in sets]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    shares = []
    for values in sets:
        # What lies beyond the ends is counted in the last bars.
        place = ((values.double() - low) / (high - low) * bars).long().clamp(0, bars - 1)
        shares.append((torch.bincount(place, minlength=bars) / len(values)).tolist())
    return low, high, shares


def _ends(values: Values) -> tuple[float, float]:
    order = values.double().sort().values
    tail = int(TAIL * len(order))
    return float(order[tail]), float(order[len(order) - 1 - tail])


def roc(inside: Values, outside: Values) -> Curve:
    """(share of ID samples flagged, share of OOD samples flagged), from nothing flagged to everything."""
    thresholds = torch.cat([inside, outside]).unique(sorted=True).flip(0)
    at = _spread(len(thresholds))
    chosen = thresholds[at]
    false = _flagged(inside, chosen)
    true = _flagged(outside, chosen)
    return [(0.0, 0.0), *zip(false, true, strict=True)]


def _flagged(scores: Values, thresholds: Tensor) -> list[float]:
    """The share of scores at or above each threshold."""
    below = torch.searchsorted(scores.sort().values, thresholds, right=False)
    shares: list[float] = (1 - below.double() / len(scores)).tolist()
    return shares


def risk_coverage(confidence: Values, correct: Bool[Tensor, " sample"]) -> Curve:
    """(share answered, share wrong among them), the surest first."""
    risk = risks(confidence, correct)
    at = _spread(len(risk))
    return [(float((i + 1) / len(risk)), float(risk[i])) for i in at]


def _spread(count: int) -> Tensor:
    """At most `POINTS` places from the first to the last."""
    return torch.linspace(0, count - 1, min(count, POINTS)).round().long().unique()
