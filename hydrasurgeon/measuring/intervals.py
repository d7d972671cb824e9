"""Bootstrap intervals: what a measure would be on other samples of the same kind (Efron's percentiles, seeded)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

# Resamples: the ends of a 95 % interval then move by less than a tenth of its width.
REPEATS = 1000


def bootstrap(
    measure: Callable[..., Mapping[str, float | None]],
    *counts: int,
    level: float = 0.95,
    repeats: int = REPEATS,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """[low, high] of each measure, over resamples with replacement; without those that came to nothing.

    `measure` takes the rows that were drawn of each kind of sample, of which there are `counts`.
    """
    random = torch.Generator().manual_seed(seed)
    drawn: dict[str, list[float]] = {}
    for _ in range(repeats):
        rows = [torch.randint(count, (count,), generator=random) for count in counts]
        for name, value in measure(*rows).items():
            if value is not None and math.isfinite(value):
                drawn.setdefault(name, []).append(value)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    intervals = {}
    for name, values in drawn.items():
        low, high = torch.tensor(values, dtype=torch.float64).quantile(ends).tolist()
        intervals[name] = (low, high)
    return intervals
