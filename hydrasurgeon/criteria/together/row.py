"""What a combination is worth and costs, as the table shows it; in float64, by the same metrics as eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from hydrasurgeon.criteria.together.objective import Answers
from hydrasurgeon.measuring import metrics


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    members: int
    cost: Mapping[str, float]
    """Multiply-adds and parameters, times the backbone's; milliseconds where they were measured."""
    worth: Mapping[str, float]
    """accuracy, nll, ece; and auroc, fpr95 of msp, the mean over foreign sets."""
    crossed: bool = False
    """Whether it was chosen on other samples than it was measured on; else nothing was chosen."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measured(members: Sequence[Answers]) -> dict[str, float]:
    """What members are worth together."""
    logits = torch.stack([member.val for member in members], dim=1)
    probs = metrics.mean_probs(logits)
    labels = members[0].labels
    worth = {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
    }
    foreign = [torch.stack(rows, dim=1) for rows in zip(*(m.foreign for m in members), strict=True)]
    if foreign:
        inside = 1 - probs.amax(dim=-1)
        outside = [1 - metrics.mean_probs(rows).amax(dim=-1) for rows in foreign]
        for name, measure in (("auroc", metrics.auroc), ("fpr95", metrics.fpr95)):
            values = [measure(inside, each) for each in outside]
            worth[name] = sum(value for value in values if value is not None) / len(values)
    return worth


def averaged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of several measurements."""
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}
