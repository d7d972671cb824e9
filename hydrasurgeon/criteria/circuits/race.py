"""Candidates side by side over a path of batches, those that cost a circuit points first; who
cannot win drops out.

The present circuit's predictions foretell where its candidates will lose points. ID samples go
wrong-first, then by rising certainty; OOD samples by falling familiarity; how the two take turns is
the monotone walk through the grid of batches along which the points still missing shrink fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.criteria.circuits.engine import Engine
from hydrasurgeon.criteria.circuits.objective import (
    Objective,
    Outcomes,
    Problem,
    margins,
    pairs_above,
)
from hydrasurgeon.heads import Head

Lengths = tuple[Int[Tensor, " id"] | None, Int[Tensor, " ood"] | None]
NEIGHBOURS = 8
"""Batches among which texts are sorted by length: padding that nobody reads costs as much as words
do.
"""


@dataclass(frozen=True)
class Part:
    """One batch of the walk."""

    foreign: bool
    index: Int[Tensor, " sample"]


def hard_first(
    objective: Objective, present: Outcomes, size: int, lengths: Lengths = (None, None)
) -> list[Part]:
    """All samples, in batches; `lengths` of ID and OOD texts."""
    if objective.kind == "acc" or not len(present.margin) or not len(present.foreign):
        ids = batched(False, present.margin.argsort(stable=True), size, lengths)
        return ids + batched(
            True, present.foreign.argsort(descending=True, stable=True), size, lengths
        )
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
    objective: Objective,
    present: Outcomes,
    size: int,
    share: float,
    lengths: Lengths = (None, None),
) -> tuple[list[Part], int]:
    """A random share of the samples before the hard ones, and how many batches it takes.

    On hard samples alone a head that does harm looks good: where the circuit is wrong, any change
    is for the better.
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
                discordant = discordant + pairs_above(
                    seen[None], present.familiar[part.index][None]
                )
            ids.append(part.index)
        lost.append(objective.total - int(objective.best_left(wrong, discordant)))
    return lost


def batched(
    foreign: bool, order: Int[Tensor, " sample"], size: int, lengths: Lengths = (None, None)
) -> list[Part]:
    """Batches in this order; texts change places with their neighbours, so that those of a batch
    are alike in length.
    """
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
    """The monotone path from corner to corner with the least Σ log missing: True = an OOD batch is
    next.

    A candidate lives as long as more is missing than it is behind; how far candidates are behind
    spreads over orders of magnitude, hence the logarithm.
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


WARM_UP = 0.15
"""Share of the samples that is drawn at random to find the favourites of the first round."""
LEADERS = 2
"""How many favourites run to the end before the others."""
LOST = 0.7
"""Fraction of the points the present circuit loses, after which favourites run ahead."""
FEW = 4
"""So many candidates are faster run together to the end than one after another."""


@dataclass(frozen=True)
class BatchOutcomes:
    """What a batch brought, for each circuit that ran over it."""

    part: Part
    margin: Float[Tensor, "circuit sample"]
    familiar: Float[Tensor, "circuit sample"]


class Runner:
    """Runs circuits over parts of the data; where there are several processes, each takes a batch
    in turn.
    """

    def __init__(self, problem: Problem, engine: Engine) -> None:
        self.problem, self.engine = problem, engine

    @property
    def stride(self) -> int:
        return self.problem.world.size

    def batches(self, parts: Sequence[Part], heads: Sequence[Head] | None) -> list[BatchOutcomes]:
        """One batch for each process; `heads` are the candidates, None is the present circuit
        itself.
        """
        world = self.problem.world
        results = []
        if world.rank < len(parts):
            results.append(self._one(parts[world.rank], heads))
        return [batch for mine in world.gather(results) for batch in mine]

    def present(self) -> Outcomes:
        """Predictions of the present circuit on all samples, in the order of the sets."""
        size, lengths = self.problem.batch_size, self.problem.lengths
        objective = self.problem.objective
        parts = batched(False, torch.arange(objective.id_rows), size, lengths)
        if objective.needs_ood:
            parts += batched(True, torch.arange(objective.ood_rows), size, lengths)
        card = Scorecard.of(self.problem, 1)
        for at in range(0, len(parts), self.stride):
            for batch in self.batches(parts[at : at + self.stride], None):
                card.write(slice(None), batch)
        return card.outcomes(0)

    def _one(self, part: Part, heads: Sequence[Head] | None) -> BatchOutcomes:
        inputs = (self.problem.ood_inputs if part.foreign else self.problem.id_inputs).take(
            part.index
        )
        logits = (
            self.engine.present(inputs)[None]
            if heads is None
            else self.engine.without_each(inputs, heads)
        )
        logits = logits.double().cpu()
        margin = (
            margins(logits, self.problem.labels[part.index])
            if not part.foreign
            else logits.new_zeros(0)
        )
        return BatchOutcomes(part, margin, self.problem.objective.familiarity(logits))


@dataclass
class Scorecard:
    """Outcomes as they come in, for several circuits, in the order in which samples are seen."""

    margin: Tensor
    familiar: Tensor
    foreign: Tensor
    id_seen: list[Tensor]
    ood_seen: list[Tensor]

    @classmethod
    def of(cls, problem: Problem, circuits: int) -> Scorecard:
        n, m = problem.objective.id_rows, problem.objective.ood_rows
        m = m if problem.objective.needs_ood else 0
        ids, familiar, foreign = (torch.zeros(circuits, k, dtype=torch.float64) for k in (n, n, m))
        return cls(ids, familiar, foreign, [], [])

    def copy(self, rows: list[int]) -> Scorecard:
        """Some circuits' predictions so far, to go on by themselves."""
        return Scorecard(
            self.margin[rows],
            self.familiar[rows],
            self.foreign[rows],
            [*self.id_seen],
            [*self.ood_seen],
        )

    @property
    def ids(self) -> int:
        return sum(len(index) for index in self.id_seen)

    @property
    def oods(self) -> int:
        return sum(len(index) for index in self.ood_seen)

    def write(self, rows: slice | Tensor, batch: BatchOutcomes) -> None:
        if batch.part.foreign:
            at = self.oods
            self.foreign[rows, at : at + len(batch.part.index)] = batch.familiar
            self.ood_seen.append(batch.part.index)
        else:
            at = self.ids
            self.familiar[rows, at : at + len(batch.part.index)] = batch.familiar
            self.margin[rows, at : at + len(batch.part.index)] = batch.margin
            self.id_seen.append(batch.part.index)

    def outcomes(self, row: int) -> Outcomes:
        """In the order of the sets; every sample must have been seen."""
        ids = torch.cat(self.id_seen).argsort()
        oods = torch.cat(self.ood_seen).argsort() if self.ood_seen else torch.zeros(0).long()
        return Outcomes(self.margin[row, ids], self.familiar[row, ids], self.foreign[row, oods])


class Race:
    """One round: all candidates start, those that cannot win drop out."""

    def __init__(
        self, runner: Runner, heads: Sequence[Head], present: Outcomes, tolerance: float
    ) -> None:
        self.runner, self.heads, self.present, self.tolerance = runner, heads, present, tolerance
        self.objective = runner.problem.objective
        self.card = Scorecard.of(runner.problem, len(heads))
        self.wrong = torch.zeros(len(heads), dtype=torch.int64)
        self.discordant = torch.zeros(len(heads), dtype=torch.int64)
        self.alive = torch.ones(len(heads), dtype=torch.bool)
        self.expected = torch.zeros(len(heads), dtype=torch.int64)
        """Points of each candidate, if on what it has not seen it does as well as the present
        circuit.
        """
        self.finished: dict[int, Outcomes] = {}
        self.bar = -1
        """Points that some candidate surely has."""
        self.holder = len(heads)
        """The first of those that have them: who comes later must have more."""

    def run(self, favourites: Sequence[Head]) -> dict[Head, Outcomes]:
        """Those that could win, seen on every sample. Favourites run ahead, for the others to be
        measured by.
        """
        problem, stride = self.runner.problem, self.runner.stride
        size, lengths = problem.batch_size, problem.lengths
        if favourites or len(self.heads) <= FEW:
            self.path, warm = hard_first(self.objective, self.present, size, lengths), 0
        else:
            self.path, warm = warm_first(self.objective, self.present, size, WARM_UP, lengths)
        lost = lost_along(self.objective, self.present, self.path)
        self.rest = [lost[-1] - points for points in lost]
        if favourites:  # before most points are lost nobody can be far enough behind to drop out
            warm = next(k for k, points in enumerate(lost, 1) if points >= LOST * lost[-1])
        half = len(self.path) // 2
        for at in range(0, len(self.path), stride):
            if at - stride < warm <= at and at:
                chosen = [self.heads.index(head) for head in favourites] or self._leaders()[
                    :LEADERS
                ]
                self._finish(at, chosen)
                self._drop(at)
            if at - stride < half <= at and self.finished and self._ahead_of_the_bar(at):
                self._finish(at, self._leaders()[:1])
                self._drop(at)
            if not bool(self.alive.any()):
                break
            self._advance(at)
            self._drop(at + stride)
            self._tick((at + stride) / len(self.path))
        for row in self.alive.nonzero().flatten().tolist():
            self._keep(row, self.card.outcomes(row))
        return {self.heads[row]: seen for row, seen in sorted(self.finished.items())}

    def _advance(self, at: int) -> None:
        """The next batches, for all that are still running."""
        rows = self.alive.nonzero().flatten()
        heads = [self.heads[row] for row in rows.tolist()]
        for batch in self.runner.batches(self.path[at : at + self.runner.stride], heads):
            self._count(rows, batch)
            self.card.write(rows, batch)

    def _count(self, rows: Tensor, batch: BatchOutcomes) -> None:
        """Points that are surely lost: pairs of the new samples with those seen before."""
        gap = self.objective.gap(self.tolerance)
        if batch.part.foreign:
            seen = self.card.familiar[rows, : self.card.ids]
            self.discordant[rows] += pairs_above(batch.familiar, seen, gap)
            return
        self.wrong[rows] += (batch.margin < -2 * self.tolerance).sum(dim=-1)
        if self.objective.needs_ood:
            seen = self.card.foreign[rows, : self.card.oods]
            self.discordant[rows] += pairs_above(seen, batch.familiar, gap)

    def _drop(self, at: int) -> None:
        """Leave behind who cannot reach the bar with the batches from `at` on."""
        rest = self.rest[min(at, len(self.path)) - 1] if at else self.rest[0]
        reach = self.objective.best_left(self.wrong, self.discordant)
        self.expected = torch.where(self.alive, reach - rest, self.expected)
        later = torch.arange(len(self.heads)) > self.holder
        self.alive &= (reach > self.bar) | ((reach == self.bar) & ~later)

    def _leaders(self) -> list[int]:
        expected = torch.where(self.alive, self.expected, -self.objective.total)
        return expected.argsort(descending=True, stable=True)[: int(self.alive.sum())].tolist()

    def _ahead_of_the_bar(self, at: int) -> bool:
        """Whether somebody has lost fewer points so far than the holder of the bar had by then."""
        if self.holder not in self.finished or not bool(self.alive.any()):
            return False
        lost = lost_along(self.objective, self.finished[self.holder], self.path[:at])[-1]
        return (
            int(self.expected[self._leaders()[0]]) > self.objective.total - lost - self.rest[at - 1]
        )

    def _finish(self, at: int, rows: list[int]) -> None:
        """Run these to the end; their points are what the others have to beat."""
        card = self.card.copy(rows)
        stride = self.runner.stride
        heads = [self.heads[row] for row in rows]
        for step in range(at, len(self.path), stride):
            for batch in self.runner.batches(self.path[step : step + stride], heads):
                card.write(slice(None), batch)
        for i, row in enumerate(rows):
            self._keep(row, card.outcomes(i))

    def _keep(self, row: int, seen: Outcomes) -> None:
        self.finished[row] = seen
        self.alive[row] = False
        (points,) = self.objective.points(seen.one(), self.tolerance)
        ((exact, _),) = self.objective.points(seen.one())
        self.expected[row] = exact
        if points.low > self.bar or (points.low == self.bar and row < self.holder):
            self.bar, self.holder = points.low, row

    def _tick(self, share: float) -> None:
        gone = 1 - float(self.alive.double().mean())
        self.runner.problem.tick(min(1.0, max(share, gone)))
