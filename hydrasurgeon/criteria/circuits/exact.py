"""The order of Algorithm 1 for less: shared layers, sound bounds, and a recheck where rounding
could decide.

Candidates run side by side over the hard samples first. One stops as soon as it cannot win any
more, even if all its remaining answers were right and all pairs not yet seen concordant.
Predictions of this arithmetic and of the model's own forward pass differ by rounding: points are
counted as intervals that allow for it, and candidates whose intervals meet are measured again by
the model's own forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.criteria.circuits.engine import Engine, engine_of
from hydrasurgeon.criteria.circuits.greedy import (
    HeadRow,
    Packed,
    Search,
    pack,
    rows_of,
    these,
    unpack,
)
from hydrasurgeon.criteria.circuits.objective import Outcomes, Problem, measure
from hydrasurgeon.criteria.circuits.race import LEADERS, Race, Runner
from hydrasurgeon.files.decided import Record
from hydrasurgeon.heads import Head

SAFETY = 16
"""How many times the rounding difference that was measured is allowed for."""


class Memory(Record):
    """What a file says that the search knew."""

    present: Packed
    favourites: tuple[HeadRow, ...]


class Exact(Search):
    """Every candidate runs until it cannot win any more."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, engine_of(problem), "evaluations", "stopped", "rechecked")
        self.tolerance = tolerance_of(problem, self.engine)
        self.present: Outcomes | None = None
        self.favourites: list[Head] = []

    @property
    def guarantee(self) -> str:  # type: ignore[override]
        if not self.problem.precise:
            return (
                "Algorithm 1 in this precision: every candidate is ruled out by a bound, not "
                "by a sample"
            )
        return (
            "the order of Algorithm 1: a candidate is given up only when no outcome of the "
            "samples it has not seen"
            f" could make it win, with every logit allowed to be off by {self.tolerance:.2g} "
            "through rounding"
        )

    @torch.inference_mode()
    def start(self) -> float:
        runner = Runner(self.problem, self.engine)
        self.present = runner.present()
        ((points, _),) = self.problem.objective.points(self.present.one())
        return self.problem.objective.value(points)

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        assert self.present is not None
        self.engine.remove(removed)
        left = self.problem.left(removed)
        race = Race(Runner(self.problem, self.engine), left, self.present, self.tolerance)
        survivors = race.run([head for head in self.favourites if head in left][:LEADERS])
        self.tally["evaluations"] += len(left)
        self.tally["stopped"] += len(left) - len(survivors)
        return self._settle(removed, survivors)

    def _settle(
        self, removed: Sequence[Head], survivors: Mapping[Head, Outcomes]
    ) -> tuple[Head, float]:
        """Name the winner; the runners-up are the favourites of the next round."""
        objective = self.problem.objective
        head, points = self.decide(removed, survivors)
        self.present = survivors[head]
        ranked = {h: objective.points(seen.one())[0].low for h, seen in survivors.items()}
        self.favourites = sorted((h for h in ranked if h != head), key=lambda h: -ranked[h])
        return head, objective.value(ranked[head] if points is None else points)

    def decide(
        self, removed: Sequence[Head], survivors: Mapping[Head, Outcomes]
    ) -> tuple[Head, int | None]:
        """The winner among candidates seen on every sample, the first of equals; its points where
        they had to be settled.
        """
        objective = self.problem.objective
        points = {
            head: objective.points(seen.one(), self.tolerance)[0]
            for head, seen in survivors.items()
        }
        sure = max(low for low, _ in points.values())
        open_ = [head for head in points if points[head].high >= sure]
        if len(open_) == 1:
            return open_[0], None
        if all(points[head].low == points[head].high for head in open_):
            return open_[0], points[open_[0]].low
        settled = {head: measure(self.problem, (*removed, head)) for head in open_}
        self.tally["rechecked"] += len(open_)
        best = max(settled.values())
        return next((head, best) for head in open_ if settled[head] == best)

    @torch.inference_mode()
    def resume(self, removed: Sequence[Head]) -> bool:
        """The order does not depend on who runs ahead, so that the present circuit is all there is
        to know.
        """
        if self.problem.precise:
            self.engine.remove(removed)
            self.present = Runner(self.problem, self.engine).present()
        return self.problem.precise

    def memory(self) -> dict[str, Any]:
        assert self.present is not None
        return {"present": pack(self.present), "favourites": self.favourites}

    def recall(self, memory: dict[str, Any]) -> None:
        recorded = Memory.model_validate(memory)
        self.present = unpack(recorded.present, rows_of(self.problem.objective))
        self.favourites = these(recorded.favourites, self.problem.candidates)


@torch.inference_mode()
def tolerance_of(problem: Problem, engine: Engine) -> float:
    """How far a logit of the engine may be from the model's own: measured on a batch, times a
    safety factor.

    0 in half precision, where the two differ by more than candidates do: the search is then
    Algorithm 1 in the engine's own arithmetic.
    """
    if not problem.precise:
        return 0.0
    _, batch = next(problem.id_inputs.batches(problem.batch_size))
    with ablated(problem.sites, ()):
        logits: Tensor = problem.module(batch).double()
    difference = float((logits - engine.present(batch).double()).abs().max())
    rounding = 4 * torch.finfo(problem.id_inputs.dtype).eps * float(logits.abs().max())
    return SAFETY * max(difference, rounding)
