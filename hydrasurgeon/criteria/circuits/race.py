"""Candidates side by side over a path of batches; whoever cannot win any more drops out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.criteria.circuits.engine import Engine
from hydrasurgeon.criteria.circuits.objective import Outcomes, margins, pairs_above
from hydrasurgeon.criteria.circuits.order import Part, batched, hard_first, lost_along, warm_first
from hydrasurgeon.criteria.circuits.problem import Problem
from hydrasurgeon.heads import Head

WARM_UP = 0.15
"""Share of the samples that is drawn at random to find the favourites of the first round."""
LEADERS = 2
"""How many favourites run to the end before the others."""
LOST = 0.7
"""Of the points the present circuit loses, the share after which favourites run ahead."""
FEW = 4
"""So many candidates are faster run together to the end than one after another."""


@dataclass(frozen=True)
class BatchOutcomes:
    """What a batch brought, for each circuit that ran over it."""

    part: Part
    margin: Float[Tensor, "circuit sample"]
    familiar: Float[Tensor, "circuit sample"]


class Runner:
    """Runs circuits over parts of the data; where there are several processes, each takes a batch in turn."""

    def __init__(self, problem: Problem, engine: Engine) -> None:
        self.problem, self.engine = problem, engine

    @property
    def stride(self) -> int:
        return self.problem.world.size

    def batches(self, parts: Sequence[Part], heads: Sequence[Head] | None) -> list[BatchOutcomes]:
        """One batch for each process; `heads` are the candidates, None is the present circuit itself."""
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
        inputs = (self.problem.ood_inputs if part.foreign else self.problem.id_inputs).take(part.index)
        logits = self.engine.present(inputs)[None] if heads is None else self.engine.without_each(inputs, heads)
        logits = logits.double().cpu()
        margin = margins(logits, self.problem.labels[part.index]) if not part.foreign else logits.new_zeros(0)
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
        return Scorecard(self.margin[rows], self.familiar[rows], self.foreign[rows], [*self.id_seen], [*self.ood_seen])

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

    def __init__(self, runner: Runner, heads: Sequence[Head], present: Outcomes, tolerance: float) -> None:
        self.runner, self.heads, self.present, self.tolerance = runner, heads, present, tolerance
        self.objective = runner.problem.objective
        self.card = Scorecard.of(runner.problem, len(heads))
        self.wrong = torch.zeros(len(heads), dtype=torch.int64)
        self.discordant = torch.zeros(len(heads), dtype=torch.int64)
        self.alive = torch.ones(len(heads), dtype=torch.bool)
        self.expected = torch.zeros(len(heads), dtype=torch.int64)
        """Points of each candidate, if on what it has not seen it does as well as the present circuit."""
        self.finished: dict[int, Outcomes] = {}
        self.bar = -1
        """Points that some candidate surely has."""
        self.holder = len(heads)
        """The first of those that have them: who comes later must have more."""

    def run(self, favourites: Sequence[Head]) -> dict[Head, Outcomes]:
        """Those that could win, seen on every sample. Favourites run ahead, for the others to be measured by."""
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
                chosen = [self.heads.index(head) for head in favourites] or self._leaders()[:LEADERS]
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
        return int(self.expected[self._leaders()[0]]) > self.objective.total - lost - self.rest[at - 1]

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
