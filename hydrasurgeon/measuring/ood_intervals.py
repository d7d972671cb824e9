"""Bootstrap intervals of OOD detection: familiar and foreign samples drawn anew, each kind by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.measuring.intervals import bootstrap

Interval = tuple[float, float]
Scores = Float[Tensor, " sample"]
Rows = Int[Tensor, " drawn"]
OF_ALL = "all"
"""The group that every OOD set belongs to."""


class Ranked:
    """Familiar and foreign scores by their distinct values, so that what rows of them are worth takes counting, not
    sorting."""

    def __init__(self, id_scores: Scores, ood_scores: Scores) -> None:
        values, ranks = torch.cat([id_scores, ood_scores]).unique(return_inverse=True)
        self.count = len(values)
        self.id_ranks, self.ood_ranks = ranks.split([len(id_scores), len(ood_scores)])

    def metrics(self, id_rows: Rows, ood_rows: Rows) -> dict[str, float]:
        """`metrics.ood_metrics` of these rows."""
        inside = torch.bincount(self.id_ranks[id_rows], minlength=self.count).double()
        outside = torch.bincount(self.ood_ranks[ood_rows], minlength=self.count).double()
        n, m = len(id_rows), len(ood_rows)
        # So many at a value or below it; and so many at it or above.
        id_below, ood_below = inside.cumsum(0), outside.cumsum(0)
        id_above, ood_above = n - id_below + inside, m - ood_below + outside
        needed = max(1, math.ceil(0.95 * m - 1e-9))
        threshold = int((ood_above >= needed).sum()) - 1
        return {
            "auroc": float(outside @ (id_below - inside / 2)) / n / m,
            "fpr95": float(id_above[threshold]) / n,
            "aupr": float(outside @ (ood_above / (ood_above + id_above).clamp_min(1))) / m,
            "aupr_id": float(inside @ (id_below / (ood_below + id_below).clamp_min(1))) / n,
        }


def ood_intervals(
    row: Answered, *, level: float, seed: int
) -> tuple[list[dict[str, Interval]], dict[str, dict[str, Interval]]]:
    """Of each OOD set, and of each group's mean over its sets: the interval of each metric."""
    inside = row.scores[row.used] if row.foreign else torch.empty(0)
    outside = [each.scores[row.used] for each in row.foreign]
    if not outside or not len(inside) or not all(map(len, outside)):
        return [{} for _ in outside], {}
    ranked = [Ranked(inside, scores) for scores in outside]
    groups = {
        group: [at for at, each in enumerate(row.foreign) if group in (OF_ALL, each.group)]
        for group in ("near", "far", OF_ALL)
    }

    def measure(rows: Rows, *of_sets: Rows) -> Mapping[str, float]:
        sets = [each.metrics(rows, chosen) for each, chosen in zip(ranked, of_sets, strict=True)]
        values = {f"{at}.{name}": value for at, each in enumerate(sets) for name, value in each.items()}
        for group, members in groups.items():
            for name in sets[0] if members else ():
                values[f"{group}.{name}"] = sum(sets[at][name] for at in members) / len(members)
        return values

    intervals: dict[str, dict[str, Interval]] = {}
    for name, ends in bootstrap(measure, len(inside), *map(len, outside), level=level, seed=seed).items():
        place, _, metric = name.partition(".")
        intervals.setdefault(place, {})[metric] = ends
    return [intervals.pop(str(at)) for at in range(len(outside))], intervals
