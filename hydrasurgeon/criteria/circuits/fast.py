"""Most of the order of Algorithm 1 for a fraction of the work: what each removal does to each sample is remembered.

What a removal does to a sample's margin and familiarity changes little when other heads go, so that

    S(present circuit without h) ≈ S(present circuit + effect of h as last seen)

predicts every candidate for free. Each round corrects the better half of the predictions on a few samples. What was
seen says how far off they still may be, and those that may yet be the best go on to more samples, at last to all: a
clear
winner is found at once, and close candidates are told apart at length. Samples are drawn in proportion to how much they
moved
the objective when heads went, and count by one over their chance to be drawn (Horvitz–Thompson): most hardly matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hydrasurgeon.criteria.circuits.exact import Counts, Exact, Memory
from hydrasurgeon.criteria.circuits.fast_round import Look, assumptions
from hydrasurgeon.criteria.circuits.objective import Outcomes
from hydrasurgeon.criteria.circuits.packed import HALF, Packed, pack, rows_of, unpack
from hydrasurgeon.criteria.circuits.problem import NextHead, Problem
from hydrasurgeon.criteria.circuits.race import Runner
from hydrasurgeon.heads import Head


class FastCounts(Counts):
    predictions_off_by: float = Field(strict=True, ge=0)


class FastMemory(Memory):
    counts: FastCounts
    effects: Packed


class Fast(Exact):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.effects: Outcomes | None = None
        """Of each candidate's removal on each sample, as last seen; None before the first round."""
        self.off = 0.0
        """How far the predictions of those that were measured were off at most."""

    @property
    def guarantee(self) -> str:
        return (
            "none; assumed: what a removal does to a sample changes little from round to round, so that"
            f" {assumptions()}"
        )

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> NextHead:
        self.engine.remove(removed)
        heads = self.problem.left(removed)
        assert self.present is not None
        look = Look(Runner(self.problem, self.engine), heads, self.present, self.guess(heads), len(removed))
        if self.effects is None:
            look.first()
        else:
            self.off = max(self.off, look.narrow())
        self.tally["evaluations"] += len(heads)
        self.tally["stopped"] += len(heads) - len(look.rows)
        self._remember(heads, look.seen)
        return self._settle(removed, {heads[row]: look.seen.of(row) for row in look.rows.tolist()})

    def resume(self, removed: Sequence[Head], counts: Mapping[str, Any]) -> bool:
        """Its next round needs every candidate's effects, which no order tells."""
        return False

    def guess(self, heads: Sequence[Head]) -> Outcomes:
        """The present circuit's predictions, with what these removals did to them when last seen."""
        assert self.present is not None
        if self.effects is None:
            return self.present.repeated(len(heads))
        rows = self._rows(heads)
        return self.present.one().map(lambda now, effect: now + effect[rows].double(), self.effects)

    def _remember(self, heads: Sequence[Head], seen: Outcomes) -> None:
        """Effects in half precision: they only guide, and are written to disk after every removal."""
        assert self.present is not None
        if self.effects is None:
            self.effects = self.present.repeated(len(self.problem.candidates)).map(
                lambda part: torch.zeros_like(part, dtype=torch.half)
            )
        rows = self._rows(heads)

        def keep(effect: Tensor, now: Tensor, before: Tensor) -> Tensor:
            effect[rows] = (now - before).nan_to_num().clamp(-6e4, 6e4).half()
            return effect

        self.effects = self.effects.map(keep, seen, self.present)

    def _rows(self, heads: Sequence[Head]) -> list[int]:
        where = {head: row for row, head in enumerate(self.problem.candidates)}
        return [where[head] for head in heads]

    def counts(self) -> dict[str, Any]:
        return {**super().counts(), "predictions_off_by": self.off}

    def memory(self) -> dict[str, Any]:
        assert self.effects is not None
        return {**super().memory(), "effects": pack(self.effects, HALF)}

    def recall(self, memory: dict[str, Any]) -> None:
        recorded = FastMemory.model_validate(memory)
        super().recall(
            {
                "counts": recorded.counts.model_dump(exclude={"predictions_off_by"}),
                "present": recorded.present,
                "favourites": recorded.favourites,
            }
        )
        count = len(self.problem.candidates)
        self.off = recorded.counts.predictions_off_by
        rows = [count * part for part in rows_of(self.problem.objective)]
        self.effects = unpack(recorded.effects, rows, HALF).map(lambda part: part.reshape(count, part.numel() // count))
