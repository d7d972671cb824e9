"""One model against another on the same samples: paired bootstrap intervals of what differs.

Every resample weights each sample by how often it was drawn, and all models are measured with the same weights. A mean
is then a product with the weights, and so is all that is told here: accuracy, Brier and NLL are means; ECE is made of a
sum for each bin; AUROC is the mean of each sample's placement among those of the other kind (DeLong et al., 1988).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.measuring.answers import Answered, Answers
from hydrasurgeon.measuring.metrics import BINS, bins_of

__all__ = ["HIGHER", "Difference", "compared", "is_paired"]

Judgement = Literal["better", "equal", "worse"]

# Resamples: as many as the intervals of `--ci` rest on.
REPEATS = 1000
# Numbers of weights that are held at a time: 64 MB.
ELEMENTS = 1 << 23
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
        """Equal where the interval holds 0: the samples do not tell the two apart."""
        if self.low <= 0 <= self.high:
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


def compared(
    row: Answered, reference: Answered, *, level: float = 0.95, seed: int = 0
) -> tuple[Difference, ...]:
    """What differs from the reference, on samples that both have answered for."""
    generator = torch.Generator().manual_seed(seed)
    pair = (row, reference)
    foreign = same_foreign(row, reference)
    inside = torch.cat([_columns(each.inside) for each in pair], dim=1)
    placements = [_placements(each) for each in pair] if foreign else []
    if placements:
        inside = torch.cat([inside, *(of_inside[:, None] for of_inside, _ in placements)], dim=1)
    drawn = _resampled(inside, generator)
    whole = inside.mean(dim=0, keepdim=True)
    width = len(MEANS) + BINS + 1
    metrics = [_metrics(torch.cat([whole, drawn])[:, at * width :][:, :width]) for at in (0, 1)]
    differences = {name: metrics[0][name] - metrics[1][name] for name in metrics[0]}
    if placements:
        # The placements of both kinds have the AUROC as their mean; each moves by its own samples.
        of_drawn = torch.cat([whole, drawn])[:, 2 * width :]
        outside = [_of_sets([sets[k] for _, sets in placements], generator) for k in range(len(row.foreign))]  # fmt: skip
        moved = torch.stack(outside).mean(dim=0)
        area = of_drawn + moved - moved[:1]
        differences["auroc"] = area[:, 0] - area[:, 1]
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
    return torch.cat(
        [inside.correct.double()[:, None], inside.brier[:, None], inside.nll[:, None], bins], dim=1
    )


def _metrics(means: Float[Tensor, "resample column"]) -> dict[str, Float[Tensor, " resample"]]:
    values = {name: means[:, at] for at, name in enumerate(MEANS)}
    return values | {"ece": means[:, len(MEANS) :].abs().sum(dim=1)}


def _placements(row: Answered) -> tuple[Tensor, list[Tensor]]:
    """Of each ID sample, the share of OOD samples above it, a mean over sets; of each OOD sample, the share of ID ones below."""
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


def _of_sets(columns: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Means of one OOD set's placements by each model: of the set, then of resamples."""
    stacked = torch.stack(list(columns), dim=1)
    return torch.cat([stacked.mean(dim=0, keepdim=True), _resampled(stacked, generator)])


def _resampled(
    columns: Float[Tensor, "sample column"], generator: torch.Generator
) -> Float[Tensor, "resample column"]:
    """Means of each column over resamples, with the same samples drawn in all columns."""
    return torch.cat([weights @ columns for weights in _weights(len(columns), generator)])


def _weights(count: int, generator: torch.Generator) -> Iterator[Float[Tensor, "resample sample"]]:
    """How often each sample was drawn, as a share of all that were."""
    most = max(1, ELEMENTS // count)
    for start in range(0, REPEATS, most):
        rows = min(most, REPEATS - start)
        picked = torch.randint(count, (rows, count), generator=generator)
        picked += torch.arange(rows)[:, None] * count
        counts = torch.bincount(picked.flatten(), minlength=rows * count)
        yield counts.reshape(rows, count).double() / count
