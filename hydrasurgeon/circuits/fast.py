"""Most of the order of Algorithm 1 for a fraction of the work: what each removal does to each sample is remembered.

What a removal does to a sample's margin and log-odds changes little when other heads go, so that

    S(present circuit without h) ≈ S(present circuit + effect of h as last seen)

predicts every candidate for free. Each round corrects the better half of the predictions on a few samples and the best
of them on more, and measures the last few candidates on all. Samples are drawn in proportion to how much they moved
the objective when heads went, and count by one over their chance to be drawn (Horvitz–Thompson): most hardly matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.circuits.draw import Drawn, chances
from hydrasurgeon.circuits.exact import Exact
from hydrasurgeon.circuits.objective import Predictions, contributions
from hydrasurgeon.circuits.packed import HALF, pack, unpack
from hydrasurgeon.circuits.path import Part, batched
from hydrasurgeon.circuits.problem import Found, Problem
from hydrasurgeon.circuits.race import Runner
from hydrasurgeon.heads import Head

__all__ = ["Fast"]

OPENING = ((1.0, 0.5), (1 / 3, 1.0))
"""In the first round: share of the candidates that are looked at, and on which share of the samples."""
STAGES = ((1 / 2, 0.15), (1 / 6, 0.4))
"""The same in later rounds."""
LAST = 4
"""How many are then measured on all samples."""
TRUST = 0.7
"""How far a prediction follows its correction, which is noisy."""
EVEN = 0.2
"""Added to the weight of each sample, in average weights: what never mattered may yet."""


class Fast(Exact):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.effects: Predictions | None = None
        """Of each candidate's removal on each sample, as last seen; None before the first round."""
        self.off = 0.0
        """How far the predictions of those that were measured were off at most."""

    @property
    def guarantee(self) -> str:
        (some, few), (fewer, more) = STAGES
        (_, half), (third, _) = OPENING
        return (
            "none; assumed: what a removal does to a sample changes little from round to round, so that the head to remove is "
            f"predicted among the best {some:.0%} of the candidates, after a look at {few:.0%} of the samples among the best "
            f"{fewer:.0%}, and after {more:.0%} among the best {LAST}; these are measured on all samples. In the first round, "
            f"after a look at {half:.0%} of the samples, it is among the best {third:.0%}"
        )

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> Found:
        self.engine.remove(removed)
        heads = self.problem.left(removed)
        look = Look(self, heads, len(removed))
        for share, samples in OPENING if self.effects is None else STAGES:
            look.at(max(2 * LAST, round(share * len(heads))), samples)
        if self.effects is not None:
            predicted = look.points.clone()
            look.at(LAST, 1.0)
            errors = (look.points - predicted)[look.rows].abs() / self.problem.objective.total
            self.off = max(self.off, float(errors.max()))
        self.tally["evaluations"] += len(heads)
        self.tally["stopped"] += len(heads) - len(look.rows)
        self._remember(heads, look.seen)
        return self._settle(removed, {heads[row]: look.seen.of(row) for row in look.rows.tolist()})

    def guess(self, heads: Sequence[Head]) -> Predictions:
        """The present circuit's predictions, with what these removals did to them when last seen."""
        assert self.present is not None
        if self.effects is None:
            return self.present.repeated(len(heads))
        rows = self._rows(heads)
        return self.present.one().map(lambda now, effect: now + effect[rows].double(), self.effects)

    def _remember(self, heads: Sequence[Head], seen: Predictions) -> None:
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
        super().recall(memory)
        count = len(self.problem.candidates)
        self.off = memory["counts"]["predictions_off_by"]
        self.effects = unpack(memory["effects"], HALF).map(
            lambda part: part.reshape(count, part.numel() // count)
        )


class Look:
    """One round: what is predicted of each candidate, and corrected by what is seen of it."""

    def __init__(self, search: Fast, heads: Sequence[Head], number: int) -> None:
        assert search.present is not None
        self.problem, self.heads, self.present = search.problem, heads, search.present
        self.runner = Runner(search.problem, search.engine)
        self.guessed = search.guess(heads)
        self.seen = self.guessed.map(torch.clone)
        """What is guessed, where it was not seen yet."""
        self.points = self._all_points()
        """Points that each candidate is expected to have."""
        self.rows: Int[Tensor, " candidate"] = torch.arange(len(heads))
        """Who is still looked at."""
        objective = self.problem.objective
        samples = objective.id_rows + (objective.ood_rows if objective.needs_ood else 0)
        self.drawn = Drawn.nothing(samples, seed=number)

    def at(self, count: int, share: float) -> None:
        """The best so many go on to this share of the samples; what is seen corrects their points."""
        best = self.points[self.rows].argsort(descending=True, stable=True)[:count]
        self.rows = self.rows[best].sort().values
        self._run(self._draw(share))
        self.problem.tick(share)
        if share >= 1:
            found = self.seen.map(lambda part: part[self.rows])
            exact = [points.low for points in self.problem.objective.points(found)]
            self.points[self.rows] = torch.tensor(exact, dtype=torch.float64)
        else:
            self.points[self.rows] = self._corrected()

    def _draw(self, share: float) -> Int[Tensor, " new"]:
        samples = len(self.drawn.taken)
        if share >= 1:
            return self.drawn.up_to(torch.ones(samples, dtype=torch.float64), torch.arange(samples))
        weights = self._matters()
        weights = weights + EVEN * weights.mean()
        ids, oods = self.present.familiar.argsort(), self.present.foreign.argsort()
        order = torch.cat([ids, oods + len(ids)])  # alike samples stand together, so few are enough
        return self.drawn.up_to(chances(weights, share), order)

    def _matters(self) -> Float[Tensor, " sample"]:
        """How much each sample moves the objective when a head goes."""
        objective, present = self.problem.objective, self.present.one()
        before = contributions(objective, present, present)
        moved = contributions(objective, self.guessed, present) - before
        return moved.square().mean(dim=0).sqrt()

    def _run(self, new: Int[Tensor, " new"]) -> None:
        ids = self.problem.objective.id_rows
        size, lengths, stride = self.problem.batch_size, self.problem.lengths, self.runner.stride
        parts: list[Part] = batched(False, new[new < ids], size, lengths)
        parts += batched(True, new[new >= ids] - ids, size, lengths)
        heads = [self.heads[row] for row in self.rows.tolist()]
        rows = self.rows[:, None]
        for at in range(0, len(parts), stride):
            for batch in self.runner.batches(parts[at : at + stride], heads):
                if batch.part.foreign:
                    self.seen.foreign[rows, batch.part.index] = batch.odds
                else:
                    self.seen.familiar[rows, batch.part.index] = batch.odds
                    self.seen.margin[rows, batch.part.index] = batch.margin

    def _all_points(self) -> Float[Tensor, " candidate"]:
        found = self.problem.objective.points(self.guessed)
        return torch.tensor([points.low for points in found], dtype=torch.float64)

    def _corrected(self) -> Float[Tensor, " candidate"]:
        """The prediction, and what was seen beyond it, of each drawn sample for all those that it stands for."""
        objective = self.problem.objective
        guessed = self.guessed.map(lambda part: part[self.rows])
        seen = self.seen.map(lambda part: part[self.rows])
        beyond = contributions(objective, seen, guessed) - contributions(
            objective, guessed, guessed
        )
        predicted = torch.tensor(
            [points.low for points in objective.points(guessed)], dtype=torch.float64
        )
        return predicted + TRUST * (beyond / self.drawn.chance.clamp(min=1e-9)).sum(dim=-1)
