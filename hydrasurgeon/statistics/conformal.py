"""Conformal prediction sets: {c: s(x, c) ≤ q}, q the ⌈(n + 1) · coverage⌉-th smallest s(x_i, y_i)
of n calibration samples.

    lac   s = 1 − p_c                                                Sadinle et al., JASA 2019
    aps   s = Σ of the probabilities down to p_c                     Romano et al., NeurIPS 2020
    raps  aps + λ max(0, rank of c − k)                              Angelopoulos et al., ICLR 2021

The true label is in the set with probability ≥ coverage, on average over samples exchangeable with
those of the calibration, whatever the model. No dice are thrown: aps and raps count the whole of
p_c, and a set may be empty.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Conformal, Penalty
from hydrasurgeon.statistics.probabilities import Labels, Probs, Scores, in_pieces

Method = Literal["lac", "aps", "raps"]
METHODS: tuple[Method, ...] = ("lac", "aps", "raps")
"""The same at run time."""
WEIGHTS = (0.001, 0.01, 0.1, 0.2, 0.5)
"""Values that the authors of RAPS try."""
SUMMED = 1e-12
"""Sums of probabilities in another order differ by less: what a set holds must not depend on it."""
ROWS = 4096
"""Samples that are scored at a time."""


def prediction_sets(conformal: Conformal, probs: Probs) -> Bool[Tensor, "sample klass"]:
    """Which labels belong to each sample's set."""
    return conformity(probs, conformal.method, conformal.penalty) <= conformal.threshold + SUMMED


def conformity(
    probs: Probs, method: Method, penalty: Penalty | None = None
) -> Float[Tensor, "sample klass"]:
    """s(x, c) for every class; smaller = fits better."""
    if method == "lac":
        return 1 - probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    scores = ordered.cumsum(dim=-1)
    if method == "raps" and penalty is not None:
        ranks = torch.arange(1, probs.shape[-1] + 1, dtype=probs.dtype)
        scores = scores + penalty.weight * (ranks - penalty.free_ranks).clamp_min(0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def samples_needed(coverage: float) -> int:
    """The fewest calibration samples of which one is far enough out: ⌈(n + 1) · coverage⌉ ≤ n."""
    count = max(1, math.ceil(coverage / (1 - coverage)) - 2)
    while _rank(count, coverage) > count:
        count += 1
    return count


def _rank(count: int, coverage: float) -> int:
    # 0.9 · 10 is 9.000000000000002 in floating point for some.
    return math.ceil((count + 1) * coverage - 1e-9)


def quantile(scores: Scores, coverage: float) -> float:
    """The finite-sample quantile; DataError where there are too few samples to have it."""
    rank = _rank(len(scores), coverage)
    if rank > len(scores):
        what, needed = (
            f"{len(scores)} samples cannot promise a coverage of {coverage:g}",
            samples_needed(coverage),
        )
        hint = (
            f"It takes at least {needed} to calibrate with (half of the validation data certifies)."
        )
        raise DataError(what, hint=hint)
    return float(scores.sort().values[rank - 1])


def fit_conformal(
    probs: Probs,
    labels: Labels,
    *,
    method: Method = "lac",
    coverage: float = 0.9,
    penalty: Penalty | None = None,
) -> Conformal:
    """Calibrate on samples that neither the model nor its temperature, nor `penalty`, was fitted
    on.
    """
    pieces = zip(in_pieces(probs, ROWS), in_pieces(labels, ROWS), strict=True)
    of_truth = torch.cat(
        [
            conformity(rows, method, penalty).gather(1, truth[:, None])[:, 0]
            for rows, truth in pieces
        ]
    )
    threshold = quantile(of_truth, coverage)
    return Conformal(method=method, coverage=coverage, threshold=threshold, penalty=penalty)


def fit_penalty(probs: Probs, labels: Labels, *, coverage: float = 0.9) -> Penalty:
    """The penalty of RAPS: k, the rank that holds the truth in a fraction `coverage`; the λ of the
    smallest sets.
    """
    ranks = (probs > probs.gather(1, labels[:, None])).sum(dim=-1) + 1
    free_ranks = int(quantile(ranks.double(), coverage))

    def size(penalty: Penalty) -> float:
        fitted = fit_conformal(probs, labels, method="raps", coverage=coverage, penalty=penalty)
        return float(prediction_sets(fitted, probs).sum(dim=-1).double().mean())

    return min((Penalty(weight=weight, free_ranks=free_ranks) for weight in WEIGHTS), key=size)
