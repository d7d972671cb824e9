"""In which order samples are worth evaluating: those that cost a circuit points come first.

The present circuit's predictions foretell where its candidates will lose points. ID samples go wrong-first,
then by rising certainty; OOD samples by falling familiarity; how the two take turns is the monotone walk
through the grid of batches along which the points still missing shrink fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.circuits.objective import Objective, Predictions

__all__ = ["Part", "hard_first"]


@dataclass(frozen=True)
class Part:
    """One batch of the walk."""

    foreign: bool
    index: Int[Tensor, " sample"]


def hard_first(objective: Objective, present: Predictions, size: int) -> list[Part]:
    """All samples, in batches."""
    if objective.kind == "acc":
        return [Part(False, index) for index in present.margin.argsort(stable=True).split(size)]
    lost = _rank(present.foreign, present.familiar)  # share of OOD samples that look more familiar
    if objective.per_answer:
        lost = lost + torch.sigmoid(-4 * present.margin)
    ids = lost.argsort(descending=True, stable=True).split(size)
    oods = present.foreign.argsort(descending=True, stable=True).split(size)
    lost_answers = torch.tensor([int((present.margin[i] <= 0).sum()) for i in ids])
    lost_pairs = torch.stack([_discordant(present, i, oods) for i in ids])
    gained = torch.zeros(len(ids) + 1, len(oods) + 1, dtype=torch.float64)
    gained[1:] += objective.per_answer * lost_answers.cumsum(0)[:, None]
    gained[1:, 1:] += 2 * lost_pairs.cumsum(0).cumsum(1)
    walk = _walk(gained.max() - gained)
    queue = {False: iter(ids), True: iter(oods)}
    return [Part(foreign, next(queue[foreign])) for foreign in walk]


def _rank(above: Float[Tensor, " a"], of: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """For each of `of`, the share of `above` that is higher."""
    return 1 - torch.searchsorted(above.sort().values, of, right=True) / max(1, len(above))


def _discordant(present: Predictions, ids: Tensor, oods: tuple[Tensor, ...]) -> Tensor:
    """Discordant pairs between one batch of ID samples and each batch of OOD samples."""
    ordered = present.familiar[ids].sort().values
    below = torch.searchsorted(ordered, present.foreign)
    return torch.stack([below[index].sum() for index in oods])


def _walk(missing: Float[Tensor, "id ood"]) -> list[bool]:
    """The monotone path from corner to corner with the least Σ log missing: True = an OOD batch is next.

    A candidate lives as long as more is missing than it is behind; how far candidates are behind spreads over
    orders of magnitude, hence the logarithm.
    """
    floor = 0.002 * float(missing.max()) + 1e-9
    cost = (missing / floor + 1).log().tolist()
    rows, columns = len(cost), len(cost[0])
    ahead = [[math.inf] * (columns + 1) for _ in range(rows + 1)]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            onward = min(ahead[i + 1][j], ahead[i][j + 1])
            ahead[i][j] = cost[i][j] + (0.0 if math.isinf(onward) else onward)
    walk, i, j = [], 0, 0
    while (i, j) != (rows - 1, columns - 1):
        foreign = ahead[i][j + 1] < ahead[i + 1][j]
        walk.append(foreign)
        i, j = (i, j + 1) if foreign else (i + 1, j)
    return walk
