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

from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes, pairs_above

Lengths = tuple[Int[Tensor, " id"] | None, Int[Tensor, " ood"] | None]
NEIGHBOURS = 8
"""Batches among which texts are sorted by length: padding that nobody reads costs as much as words do."""


@dataclass(frozen=True)
class Part:
    """One batch of the walk."""

    foreign: bool
    index: Int[Tensor, " sample"]


def hard_first(objective: Objective, present: Outcomes, size: int, lengths: Lengths = (None, None)) -> list[Part]:
    """All samples, in batches; `lengths` of ID and OOD texts."""
    if objective.kind == "acc" or not len(present.margin) or not len(present.foreign):
        ids = batched(False, present.margin.argsort(stable=True), size, lengths)
        return ids + batched(True, present.foreign.argsort(descending=True, stable=True), size, lengths)
    lost = _rank(present.foreign, present.familiar)  # share of OOD samples that look more familiar
    if objective.per_answer:
        lost = lost + torch.sigmoid(-4 * present.margin)
    ids = batched(False, lost.argsort(descending=True, stable=True), size, lengths)
    oods = batched(True, present.foreign.argsort(descending=True, stable=True), size, lengths)
    lost_answers = torch.tensor([int((present.margin[p.index] <= 0).sum()) for p in ids])
    lost_pairs = torch.stack([_discordant(present, p.index, oods) for p in ids])
    gained = torch.zeros(len(ids) + 1, len(oods) + 1, dtype=torch.float64)
    gained[1:] += objective.per_answer * lost_answers.cumsum(0)[:, None]
    gained[1:, 1:] += 2 * lost_pairs.cumsum(0).cumsum(1)
    queues = {False: iter(ids), True: iter(oods)}
    return [next(queues[foreign]) for foreign in _walk(gained.max() - gained)]


def warm_first(
    objective: Objective, present: Outcomes, size: int, share: float, lengths: Lengths = (None, None)
) -> tuple[list[Part], int]:
    """A random share of the samples before the hard ones, and how many batches it takes.

    On hard samples alone a head that does harm looks good: where the circuit is wrong, any change is for the better.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> tuple[Tensor, Tensor]:
        mixed = torch.randperm(rows, generator=generator)
        first = max(1, round(share * rows)) if rows else 0
        return mixed[:first], mixed[first:]

    (ids, id_rest), (oods, ood_rest) = drawn(objective.id_rows), drawn(len(present.foreign))
    warm = batched(False, ids, size, lengths) + batched(True, oods, size, lengths)
    left = Outcomes(present.margin[id_rest], present.familiar[id_rest], present.foreign[ood_rest])
    id_lengths, ood_lengths = lengths
    of_rest = (
        None if id_lengths is None else id_lengths[id_rest],
        None if ood_lengths is None else ood_lengths[ood_rest],
    )
    rest = [
        Part(part.foreign, (ood_rest if part.foreign else id_rest)[part.index])
        for part in hard_first(objective, left, size, of_rest)
    ]
    return warm + rest, len(warm)


def lost_along(objective: Objective, present: Outcomes, path: list[Part]) -> list[int]:
    """Points the present circuit has lost after each batch."""
    wrong = discordant = torch.zeros(1, dtype=torch.int64)
    ids, oods, lost = [torch.zeros(0).long()], [torch.zeros(0).long()], []
    for part in path:
        if part.foreign:
            seen = present.familiar[torch.cat(ids)]
            discordant = discordant + pairs_above(present.foreign[part.index][None], seen[None])
            oods.append(part.index)
        else:
            wrong = wrong + (present.margin[part.index] < 0).sum()
            if objective.needs_ood:
                seen = present.foreign[torch.cat(oods)]
                discordant = discordant + pairs_above(seen[None], present.familiar[part.index][None])
            ids.append(part.index)
        lost.append(objective.total - int(objective.best_left(wrong, discordant)))
    return lost


def batched(foreign: bool, order: Int[Tensor, " sample"], size: int, lengths: Lengths = (None, None)) -> list[Part]:
    """Batches in this order; texts change places with their neighbours, so that those of a batch are alike in
    length."""
    length = lengths[foreign]
    if length is not None:
        near = order.split(NEIGHBOURS * size)
        order = torch.cat([part[length[part].argsort(stable=True)] for part in near])
    return [Part(foreign, part) for part in order.split(size) if len(part)]


def _rank(above: Float[Tensor, " a"], of: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """For each of `of`, the share of `above` that is higher."""
    return 1 - torch.searchsorted(above.sort().values, of, right=True) / max(1, len(above))


def _discordant(present: Outcomes, ids: Tensor, oods: list[Part]) -> Tensor:
    """Discordant pairs between one batch of ID samples and each batch of OOD samples."""
    ordered = present.familiar[ids].sort().values
    below = torch.searchsorted(ordered, present.foreign)
    return torch.stack([below[part.index].sum() for part in oods])


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
