"""One model against another on the same samples: paired bootstrap intervals of what differs.

Every resample weights each sample by how often it was drawn, and all models are measured with the same weights. A mean
is then a product with the weights, and so is all that is told here: accuracy, Brier and NLL are means; ECE is made of a
sum for each bin; AUROC is the mean of each sample's placement among those of the other kind (DeLong et al., 1988). Only
FPR95
needs the weights themselves: those of foreign samples for its threshold, those of familiar ones for what lies above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.measuring.answers import Answered, Answers
from hydrasurgeon.measuring.metrics import BINS, bins_of

Judgement = Literal["better", "equal", "worse"]

# Resamples: as many as the intervals of `--ci` rest on.
REPEATS = 1000
# Numbers of weights that are held at a time: 64 MB.
ELEMENTS = 1 << 23
NEGLIGIBLE = 5e-5
"""What a difference must reach to be one: less reads +0.0000 wherever it is printed, and may be rounding."""
HIGHER = ("accuracy", "auroc")
"""Metrics of which more is better."""
MEANS = ("accuracy", "brier", "nll")
"""Metrics that are means over samples, in the order of their columns."""


@dataclass(frozen=True)
class Difference:
    """By how much a model's metric lies above the reference's, and between what."""

    metric: str
    value: float
    low: float
    high: float

    @property
    def judgement(self) -> Judgement:
        """Equal where the interval holds 0, for the samples do not tell the two apart, or where the difference is none
        to speak of."""
        if self.low <= 0 <= self.high or abs(self.value) < NEGLIGIBLE:
            return "equal"
        return "better" if (self.value > 0) == (self.metric in HIGHER) else "worse"


def is_paired(row: Answered, reference: Answered) -> bool:
    """Whether both answered for the same labelled samples, as far as labels tell."""
    return torch.equal(row.inside.labels, reference.inside.labels)


def same_foreign(row: Answered, reference: Answered) -> bool:
    """Whether both were shown as many samples of the same OOD sets."""

    def shapes(each: Answered) -> list[tuple[str, int]]:
        return [(s.name, len(s.scores[each.used])) for s in each.foreign]

    return bool(row.foreign) and shapes(row) == shapes(reference)


def compared(row: Answered, reference: Answered, *, level: float = 0.95, seed: int = 0) -> tuple[Difference, ...]:
    """What differs from the reference, on samples that both have answered for."""
    generator = torch.Generator().manual_seed(seed)
    pair = (row, reference)
    sets = range(len(row.foreign) if same_foreign(row, reference) else 0)
    placements = [_placements(each) for each in pair] if sets else []
    # Foreign samples are drawn first: they say from which score on a familiar one is flagged.
    of_sets = [
        _of_set([below[k] for _, below in placements], [each.foreign[k].scores[each.used] for each in pair], generator)
        for k in sets
    ]
    columns = [_columns(each.inside) for each in pair]
    columns += [above[:, None] for above, _ in placements]
    scores = [each.scores[each.used] for each in pair] if sets else []
    means, flagged = _of_inside(torch.cat(columns, dim=1), scores, [limits for _, limits in of_sets], generator)
    width = len(MEANS) + BINS + 1
    metrics = [_metrics(means[:, at * width :][:, :width]) for at in (0, 1)]
    differences = {name: metrics[0][name] - metrics[1][name] for name in metrics[0]}
    if sets:
        # The placements of both kinds have the AUROC as their mean; each moves by its own samples.
        moved = torch.stack([of_set for of_set, _ in of_sets]).mean(dim=0)
        area = means[:, 2 * width :] + moved - moved[:1]
        differences["auroc"] = area[:, 0] - area[:, 1]
        differences["fpr95"] = flagged[:, 0] - flagged[:, 1]
    return tuple(_difference(name, values, level) for name, values in differences.items())


def _difference(name: str, values: Float[Tensor, " resample"], level: float) -> Difference:
    """The first value is of the samples themselves, the others of resamples."""
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = values[1:].quantile(ends).tolist()
    return Difference(name, float(values[0]), low, high)


def _columns(inside: Answers) -> Float[Tensor, "sample column"]:
    """What is to be averaged over samples: the means, and the gap of each bin of the ECE."""
    gap = inside.correct.double() - inside.confidence.double()
    bins = torch.zeros(len(gap), BINS + 1, dtype=torch.float64)
    bins.scatter_(1, bins_of(inside.confidence)[:, None], gap[:, None])
    return torch.cat([inside.correct.double()[:, None], inside.brier[:, None], inside.nll[:, None], bins], dim=1)


def _metrics(means: Float[Tensor, "resample column"]) -> dict[str, Float[Tensor, " resample"]]:
    values = {name: means[:, at] for at, name in enumerate(MEANS)}
    return values | {"ece": means[:, len(MEANS) :].abs().sum(dim=1)}


def _placements(row: Answered) -> tuple[Tensor, list[Tensor]]:
    """Of each ID sample, the share of OOD samples above it, a mean over sets; of each OOD sample, the share of ID ones
    below."""
    mine = row.scores[row.used]
    above, below = [], []
    for each in row.foreign:
        theirs = each.scores[row.used]
        above.append(1 - _share_below(theirs, mine))
        below.append(_share_below(mine, theirs))
    return torch.stack(above).mean(dim=0), below


def _share_below(scores: Tensor, points: Tensor) -> Tensor:
    """The share of `scores` below each point, ties counting half."""
    order = scores.sort().values
    low = torch.searchsorted(order, points, right=False)
    high = torch.searchsorted(order, points, right=True)
    return (low + high).double() / 2 / len(order)


def _of_set(
    placements: Sequence[Tensor], scores: Sequence[Tensor], generator: torch.Generator
) -> tuple[Float[Tensor, "resample model"], Float[Tensor, "resample model"]]:
    """Of one OOD set, first of itself and then of resamples: each model's mean placement, and the threshold that flags
    95 % of it."""
    stacked = torch.stack(list(placements), dim=1)
    # As many as FPR95 must flag, less half a sample for what sums are off by.
    needed = (max(1, math.ceil(0.95 * len(stacked) - 1e-9)) - 0.5) / len(stacked)
    orders = [each.sort(descending=True) for each in scores]
    means, thresholds = [], []
    for weights in _weights(len(stacked), generator):
        means.append(weights @ stacked)
        limits = [order.values[(weights[:, order.indices].cumsum(dim=1) < needed).sum(dim=1)] for order in orders]
        thresholds.append(torch.stack(limits, dim=1))
    return torch.cat(means), torch.cat(thresholds)


def _of_inside(
    columns: Float[Tensor, "sample column"],
    scores: Sequence[Tensor],
    thresholds: Sequence[Float[Tensor, "resample model"]],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "resample column"], Float[Tensor, "resample model"]]:
    """Of the labelled set, first of itself and then of resamples: the mean of each column, and each model's FPR95, a
    mean over OOD sets."""
    means, flagged = [], []
    done = 0
    for weights in _weights(len(columns), generator):
        means.append(weights @ columns)
        shares = torch.zeros(len(weights), len(scores), dtype=torch.float64)
        for limits in thresholds:
            for model, mine in enumerate(scores):
                above = mine >= limits[done : done + len(weights), model, None]
                shares[:, model] += (weights * above).sum(dim=1) / len(thresholds)
        flagged.append(shares)
        done += len(weights)
    return torch.cat(means), torch.cat(flagged)


def _weights(count: int, generator: torch.Generator) -> Iterator[Float[Tensor, "resample sample"]]:
    """How often each sample was drawn, as a share of all that were; first each once."""
    yield torch.full((1, count), 1 / count, dtype=torch.float64)
    most = max(1, ELEMENTS // count)
    for start in range(0, REPEATS, most):
        rows = min(most, REPEATS - start)
        picked = torch.randint(count, (rows, count), generator=generator)
        picked += torch.arange(rows)[:, None] * count
        counts = torch.bincount(picked.flatten(), minlength=rows * count)
        yield counts.reshape(rows, count).double() / count
