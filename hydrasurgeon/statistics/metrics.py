"""Accuracy, calibration, OOD detection and diversity of member logits [sample, member, klass]; pure
functions.

Conventions are torch-uncertainty's, which the paper follows: probabilities (not logits) are
averaged over the members; OOD samples are the positive class, with score 1 − max mean probability;
Brier sums over the classes; calibration errors have 15 bins. Everything is computed in float64.

Risk over coverage: with samples by falling confidence, r(k/n) is the fraction of wrong answers among
the first k. Samples of equal confidence come in no order: each counts as wrong by their mean.

Answers of yes or no, of one logit in their order and of many labels by label:

    average precision   Σ (R_k − R_{k−1}) P_k over distinct probabilities
    mAP                 its mean over labels that occur
    micro, macro F1     2 TP / (2 TP + FP + FN) of all decisions; the mean over labels
    exact match         the fraction of samples of which every label is right
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from hydrasurgeon.run.shapes import Bool, Float
from hydrasurgeon.statistics.probabilities import (
    YES,
    Labels,
    Logits,
    Probs,
    Scores,
    falling,
    runs,
    spaced,
    sums_at,
    surest,
)

Array = npt.NDArray[np.float64]

BINS = 15
"""Bins of ECE and its variants, as in Guo et al. (2017)."""
DIGITS = 12
"""Decimals of a score: sums in another order differ behind them, and would pass for a ranking."""
POINTS, GRID = 200, 2000
"""Points of SmoothECE's integral and of its grid, for wide kernels; narrow ones need 10 and 20 to a
bandwidth.
"""
NARROWEST = 0.001
"""Bandwidths below this are not looked for."""
FLOOR = 0.0001
"""Constant added to a density, so that it is not 0."""
HALVINGS = 10
"""Halvings of the range that holds the bandwidth; 2⁻¹⁰ is about the narrowest."""


def accuracy(probs: Probs, labels: Labels) -> float:
    return float((probs.argmax(axis=-1) == labels).astype(np.float64).mean())


def ece(probs: Probs, labels: Labels) -> float:
    """Return Σ_b |B_b|/n · |acc(B_b) − conf(B_b)|.

    There are 15 equally wide bins [low, high), and one for a confidence of 1.
    """
    confidence, predicted = surest(probs)
    return ece_of(confidence, predicted == labels)


def ece_of(confidence: Scores, correct: ndarray) -> float:
    """Return `ece` from the confidences and the correctness of answers."""
    gap = sums_at(bins_of(confidence), correct - confidence.astype(np.float64), BINS + 1)
    return float(np.abs(gap).sum() / len(confidence))


def bins_of(confidence: Scores) -> ndarray:
    """Return the bin, of `BINS` + 1, that each confidence falls into."""
    # Bins are told apart in float32, as torchmetrics does: what is 1 there has a bin to itself.
    return np.searchsorted(spaced(1, BINS + 1), confidence.astype(np.float32), side="right") - 1


def pairs_above(high: Scores, low: Scores) -> int:
    """Count the pairs with `high` > `low`; the shorter side is sorted."""
    if len(low) <= len(high):
        return int(np.searchsorted(np.sort(low), high, side="left").sum())
    below = np.searchsorted(np.sort(high), low, side="right")
    return len(high) * len(low) - int(below.sum())


def auroc(id_scores: Scores, ood_scores: Scores) -> float | None:
    """Return P(an OOD sample scores above an ID sample); ties count half, None without either."""
    if not len(id_scores) or not len(ood_scores):
        return None
    pairs = len(id_scores) * len(ood_scores)
    won = pairs_above(ood_scores, id_scores) + pairs - pairs_above(id_scores, ood_scores)
    return won / 2 / len(id_scores) / len(ood_scores)


def aupr(negative: Scores, positive: Scores) -> float | None:
    """Return the average precision Σ (R_k − R_{k−1}) P_k over distinct thresholds."""
    if not len(negative) or not len(positive):
        return None
    scores = np.concatenate([negative, positive])
    truth = np.concatenate([np.zeros(len(negative)), np.ones(len(positive))]).astype(np.float64)
    order = falling(scores)
    scores = scores[order]
    hits = truth[order].cumsum(0)
    last = np.append(scores[1:] != scores[:-1], True)  # a tie is one threshold
    hits_so_far = hits[last]
    flagged = np.arange(1, len(scores) + 1, dtype=np.float64)[last]
    gained = np.diff(hits_so_far, prepend=0.0)
    return float((gained / len(positive) * hits_so_far / flagged).sum())


def disagreements(logits: Logits) -> Scores:
    """Return the fraction of member pairs that disagree about each sample.

    Of n (n − 1) / 2 pairs, those within one class agree.
    """
    votes = logits.argmax(axis=-1)
    members = votes.shape[1]
    if members < 2:
        return np.zeros(len(votes), dtype=np.float64)
    classes = logits.shape[-1]
    places = np.arange(len(votes))[:, None] * classes + votes
    counts = np.bincount(places.ravel(), minlength=len(votes) * classes)
    counts = counts.reshape(len(votes), classes)
    return 1 - (counts * (counts - 1)).sum(axis=-1) / (members * (members - 1))


def risks(confidence: Scores, correct: ndarray) -> Float[ndarray, " sample"]:
    """Return the fraction of wrong answers among the first k, for each k.

    Equally sure answers count by their mean.
    """
    order = falling(confidence)
    group, sizes = runs(confidence[order])
    wrong = sums_at(group, ~correct[order], len(sizes))
    return (wrong / sizes)[group].cumsum() / np.arange(1, len(order) + 1)


def smooth_ece(confidence: Scores, correct: ndarray) -> float:
    """Compute SmoothECE, the calibration error without bins (Błasiok, Nakkiran, ICLR 2024).

        smECE_σ = ∫ |Σ_i K_σ(t, f_i) (f_i − y_i)| dt / ∫ Σ_i K_σ(t, f_i) dt

    K_σ is Gaussian, reflected at 0 and 1, at the smallest bandwidth σ with smECE_σ ≤ σ. Discretised as its authors' package does it:
    samples are spread over the two nearest points of a grid, the grid is convolved, and the
    integral is taken over 200 points or more.
    """
    f = confidence.astype(np.float64)
    gap = f - correct.astype(np.float64)

    def wide_enough(sigma: float) -> bool:
        return sigma < NARROWEST or sigma < _at(f, gap, sigma)

    sigma, low = 1.0, 0.0
    if wide_enough(sigma):
        return _at(f, gap, sigma)
    high = 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if wide_enough(middle):
            low = middle
        else:
            high = middle
    return _at(f, gap, high)


def _at(f: Array, gap: Array, sigma: float) -> float:
    points = np.linspace(0, 1, max(POINTS, round(10 / sigma)))
    size = max(GRID, round(20 / sigma)) // 2 + 1
    error = np.interp(points, np.linspace(0, 1, size), _smoothed(f, gap, sigma, size))
    density = (
        np.interp(points, np.linspace(0, 1, size), _smoothed(f, np.ones_like(gap), sigma, size))
        + FLOOR
    )
    return float(np.abs(error).sum() / density.sum())


def _smoothed(f: Array, values: Array, sigma: float, size: int) -> Array:
    """Return Σ_i K_σ(t, f_i) v_i at the points t of a grid over [0, 1]."""
    place = f * (size - 1)
    left = np.clip(place.astype(np.int64), 0, size - 2)
    share = place - left
    grid = np.bincount(left, (1 - share) * values, size) + np.bincount(
        left + 1, share * values, size
    )
    around = np.linspace(0, 1, size) - 0.5
    kernel = np.exp(-(around**2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
    mirrored = np.concatenate([grid[:0:-1], grid, grid[-2::-1]])
    return _convolved(mirrored, kernel)[size // 2 : size // 2 + size]


def _convolved(values: Array, kernel: Array) -> Array:
    """Convolve by FFT; return the part where the kernel lies within the values."""
    length = len(values) + len(kernel) - 1
    padded = 1 << (length - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(values, padded) * np.fft.rfft(kernel, padded), padded)
    return np.asarray(product[len(kernel) - 1 : len(values)])


def ranking(
    yes: Float[ndarray, " sample"], truth: Float[ndarray, " sample"]
) -> dict[str, float | None]:
    """Measure how well the probability of yes orders samples."""
    positive = truth >= YES
    return {
        "auroc": auroc(yes[~positive], yes[positive]),
        "ap": aupr(yes[~positive], yes[positive]),
    }


def labelling(
    yes: Float[ndarray, "sample label"],
    predicted: Bool[ndarray, "sample label"],
    truth: Bool[ndarray, "sample label"],
) -> dict[str, float | None]:
    """Measure how well the labels of samples are predicted."""
    hits, errors = (
        (predicted & truth).astype(np.float64).sum(axis=0),
        (predicted ^ truth).astype(np.float64).sum(axis=0),
    )
    f1_by_label = 2 * hits / np.maximum(2 * hits + errors, 1)
    micro_f1 = 2 * hits.sum() / np.maximum(2 * hits.sum() + errors.sum(), 1)
    precisions = [aupr(p[~t], p[t]) for p, t in zip(yes.T, truth.T, strict=True)]
    occurring = [
        value
        for value, t in zip(precisions, truth.T, strict=True)
        if value is not None or bool(t.any())
    ]
    return {
        "micro_f1": float(micro_f1),
        "macro_f1": float(f1_by_label.mean()),
        "map": mean_of([1.0 if value is None else value for value in occurring]),
        "exact_match": float(((predicted == truth).all(axis=1)).astype(np.float64).mean()),
    }


def mean_of(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
