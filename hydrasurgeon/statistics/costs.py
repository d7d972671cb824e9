"""One number for three answers: what it costs to answer, to abstain, and to call a row unfamiliar.

Selective classification with OOD detection (SCOD; Narasimhan et al., ICLR 2024). With π the
fraction of OOD rows,

    loss = (1 − π) · mean over ID rows + π · mean over OOD sets of their mean

    ID row:   unfamiliar → c_unfamiliar, else abstain → c_abstain, else wrong → c_wrong, else 0
    OOD row:  unfamiliar → 0,            else abstain → c_abstain, else c_wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.files.decided import Costs
from hydrasurgeon.statistics.probabilities import Scores

Flags = Bool[Tensor, " sample"]
MOST = 512
"""Thresholds of the OOD score that are tried: of more scores, so many quantiles."""


class Rows(NamedTuple):
    """What thresholds see of some rows."""

    score: Scores
    confidence: Scores
    wrong: Flags
    """Of what would be answered; of OOD rows all is."""


class Thresholds(NamedTuple):
    """A row is unfamiliar above `score`, and else answered from `confidence` on."""

    score: float
    confidence: float
    loss: float


def losses(
    costs: Costs, unfamiliar: Flags, abstain: Flags, wrong: Flags, *, ood: bool
) -> Float[Tensor, " sample"]:
    """What the answers to some rows cost."""
    answered = costs.wrong * wrong.double()
    known = torch.where(abstain, costs.abstain, answered)
    return torch.where(unfamiliar, 0.0 if ood else costs.unfamiliar, known)


def together(costs: Costs, inside: float, outside: Sequence[float]) -> float:
    """One number of the means over ID rows and over each OOD set; without any, the first."""
    if not outside:
        return inside
    return (1 - costs.ood) * inside + costs.ood * sum(outside) / len(outside)


def cheapest(costs: Costs, inside: Rows, outside: Sequence[Rows]) -> Thresholds:
    """The pair of thresholds with the smallest loss on these rows.

    For each threshold of the score, all thresholds of the confidence are tried at once: answering
    ever more rows, the most confident first, adds up what that costs more than to abstain. The most
    familiar ID row stays familiar, and the most confident one is answered.
    """
    parts = [inside, *outside]
    shares = [1 - costs.ood, *[costs.ood / len(outside)] * len(outside)]
    score, confidence, wrong = (torch.cat(each) for each in zip(*parts, strict=True))
    sizes = torch.tensor([len(part.score) for part in parts])
    weight = (torch.tensor(shares).double() / sizes).repeat_interleave(sizes)
    refused = torch.zeros_like(weight)
    refused[: sizes[0]] = costs.unfamiliar
    order = confidence.double().argsort(descending=True)
    values, score, weight, refused = (
        each[order] for each in (confidence.double(), score.double(), weight, refused)
    )
    more = weight * (costs.wrong * wrong[order].double() - costs.abstain)
    # Rows of equal confidence are answered together.
    ends = torch.cat([values.diff() != 0, torch.ones(1, dtype=torch.bool)]).nonzero()[:, 0]
    tried = inside.score.double().unique()
    if len(tried) > MOST:
        tried = tried[torch.linspace(0, len(tried) - 1, MOST).long()]
    best = Thresholds(0.0, 0.0, float("inf"))
    for threshold in tried.tolist():
        known = score <= threshold
        path = (more * known).cumsum(0)[ends]
        place = int(path.argmin())
        others = torch.where(known, costs.abstain, refused)
        loss = float((weight * others).sum() + path[place])
        if loss < best.loss:
            # Where all are answered, whoever comes later is too.
            least = 0.0 if place == len(ends) - 1 else float(values[ends[place]])
            best = Thresholds(threshold, least, loss)
    return best
