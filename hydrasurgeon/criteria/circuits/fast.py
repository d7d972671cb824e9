"""Most of the order of Algorithm 1 for a fraction of the work: what each removal does to each
sample is remembered.

What a removal does to a sample's margin and familiarity changes little when other heads go, so that

    S(present circuit without h) ≈ S(present circuit + effect of h as last seen)

predicts every candidate for free. Each round corrects the better half of the predictions on a few
samples. What was seen says how far off they still may be, and those that may yet be the best go on
to more samples, at last to all: a clear winner is found at once, and close candidates are told
apart at length. Samples are drawn in proportion to how much they moved the objective when heads
went, and count by one over their chance to be drawn (Horvitz–Thompson): most hardly matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.greedy import HALF, Packed, pack, rows_of, unpack
from hydrasurgeon.criteria.circuits.objective import Outcomes, Problem, contributions
from hydrasurgeon.criteria.circuits.race import Part, Runner, batched
from hydrasurgeon.heads import Head


def inclusion_probabilities(
    size: Float[Tensor, " sample"], share: float
) -> Float[Tensor, " sample"]:
    """Probabilities in proportion to `size`, none above 1, that add up to this share of the
    samples.
    """
    wanted = share * len(size)
    largest = float(size.max())
    size = size / largest if largest > 0 else torch.ones_like(size)  # so that tiny sizes add up
    sure = torch.zeros_like(size, dtype=torch.bool)
    while True:
        left = wanted - int(sure.sum())
        rest = torch.where(sure, 0.0, size)
        chance = torch.where(sure, 1.0, rest * (left / rest.sum().clamp(min=1e-300)))
        over = (chance > 1) & ~sure
        if not bool(over.any()):
            return chance
        sure |= over


@dataclass
class Drawn:
    """What was drawn so far, and how probable it was."""

    chance: Float[Tensor, " sample"]
    taken: Bool[Tensor, " sample"]
    generator: torch.Generator

    @classmethod
    def nothing(cls, samples: int, seed: int) -> Drawn:
        generator = torch.Generator().manual_seed(seed)
        return cls(
            torch.zeros(samples, dtype=torch.float64),
            torch.zeros(samples, dtype=torch.bool),
            generator,
        )

    def up_to(
        self, chance: Float[Tensor, " sample"], order: Int[Tensor, " sample"]
    ) -> Int[Tensor, " new"]:
        """The samples that come in when each is to be drawn with these (higher) probabilities;
        spread evenly along `order`.
        """
        chance = torch.maximum(chance, self.chance)
        # Chance to come in now, for those that did not before.
        now = ((chance - self.chance) / (1 - self.chance).clamp(min=1e-12)).clamp(0, 1)
        now = torch.where(self.taken, 0.0, now)[order]
        start = torch.rand(1, generator=self.generator, dtype=torch.float64)
        steps = now.cumsum(0) + start
        new = order[(steps.floor() > (steps - now).floor()) | (now >= 1)]
        self.chance = chance
        self.taken = self.taken.clone()
        self.taken[new] = True
        return new.sort().values


OPENING = ((1.0, 0.5), (1 / 3, 1.0))
"""In the first round: share of the candidates that are looked at, and on which share of the
samples.
"""
LOOKED_AT = 1 / 2
"""In later rounds: how many of the candidates are looked at at all,"""
SHARES = (0.1, 0.2, 0.4, 0.7)
"""and on which shares of the samples, before those that are left are measured on all."""
DOUBT = 3.0
"""Who is behind the best by more standard errors than this is left behind."""
FEW = 8
"""So many candidates are never too many to look at; two are always measured."""
SAMPLES = 100
"""At least so many samples are looked at: fewer cannot tell how far off a prediction is."""
EVEN = 0.2
"""Added to the weight of each sample, in average weights: what never mattered may yet."""


class Look:
    """One round: what is predicted of each candidate, and corrected by what is seen of it."""

    def __init__(
        self,
        runner: Runner,
        heads: Sequence[Head],
        present: Outcomes,
        guessed: Outcomes,
        number: int,
    ) -> None:
        self.runner, self.problem, self.heads = runner, runner.problem, heads
        self.present, self.guessed = present, guessed
        self.seen = guessed.map(torch.clone)
        """What is guessed, where it was not seen yet."""
        self.points = self._points(self.guessed)
        """Points that each candidate is expected to have."""
        self.rows: Int[Tensor, " candidate"] = torch.arange(len(heads))
        """Who is still looked at,"""
        self.apart: Float[Tensor, " candidate"] = torch.zeros(len(heads), dtype=torch.float64)
        """and the standard error of how far each is behind the best of them."""
        objective = self.problem.objective
        samples = objective.id_rows + (objective.ood_rows if objective.needs_ood else 0)
        self.drawn = Drawn.nothing(samples, seed=number)
        self.shares = (0.0, 0.0)
        """Fractions of the samples that were seen by those still in the race, and that will be."""

    def first(self) -> None:
        """Nothing was seen before: all candidates, then the best of them."""
        for share, samples in OPENING:
            self.at(max(FEW, round(share * len(self.heads))), samples)

    def narrow(self) -> float:
        """Fewer candidates on more samples, until those that are left are seen on all; how far off
        these still were.
        """
        count = max(FEW, round(LOOKED_AT * len(self.heads)))
        for share in SHARES:
            self.at(count, share)
            count = max(2, self.open())
        predicted = self.points.clone()
        self.at(count, 1.0)
        errors = (self.points - predicted)[self.rows].abs()
        return float(errors.max()) / self.problem.objective.total

    def at(self, count: int, share: float) -> None:
        """The best so many go on to this share of the samples; what is seen corrects their points."""
        best = self.points[self.rows].argsort(descending=True, stable=True)[:count]
        self.rows = self.rows[best].sort().values
        share = max(share, SAMPLES / len(self.drawn.taken))
        self.shares = (self.shares[1], min(share, 1.0))
        self._run(self._draw(share))
        self.problem.tick(self.shares[1])
        if share >= 1:
            outcomes = self.seen.map(lambda part: part[self.rows])
            self.points[self.rows] = self._points(outcomes)
            self.apart = torch.zeros(len(self.rows), dtype=torch.float64)
        else:
            predicted, beyond = self._corrections()
            self.points[self.rows] = predicted + beyond.sum(dim=-1)
            self.apart = self._apart(beyond)

    def open(self) -> int:
        """How many may be the best of those that are looked at."""
        points = self.points[self.rows]
        return int((points.max() - points <= DOUBT * self.apart).sum())

    def _draw(self, share: float) -> Int[Tensor, " new"]:
        samples = len(self.drawn.taken)
        if share >= 1:
            return self.drawn.up_to(torch.ones(samples, dtype=torch.float64), torch.arange(samples))
        weights = self._matters()
        weights = weights + EVEN * weights.mean()
        ids, oods = self.present.familiar.argsort(), self.present.foreign.argsort()
        order = torch.cat([ids, oods + len(ids)])  # alike samples stand together, so few are enough
        return self.drawn.up_to(inclusion_probabilities(weights, share), order)

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
                    self.seen.foreign[rows, batch.part.index] = batch.familiar
                else:
                    self.seen.familiar[rows, batch.part.index] = batch.familiar
                    self.seen.margin[rows, batch.part.index] = batch.margin
            before, after = self.shares
            self.problem.tick(before + (after - before) * min(1.0, (at + stride) / len(parts)))

    def _points(self, outcomes: Outcomes) -> Float[Tensor, " candidate"]:
        return torch.tensor(
            [points.low for points in self.problem.objective.points(outcomes)], dtype=torch.float64
        )

    def _corrections(self) -> tuple[Float[Tensor, " candidate"], Float[Tensor, "candidate sample"]]:
        """What is predicted, and what was seen beyond it, of each drawn sample for all those that
        it stands for.
        """
        objective, chance = self.problem.objective, self.drawn.chance.clamp(min=1e-9)
        guessed = self.guessed.map(lambda part: part[self.rows])
        seen = self.seen.map(lambda part: part[self.rows])
        beyond = contributions(objective, seen, guessed) - contributions(
            objective, guessed, guessed
        )
        return self._points(guessed), beyond / chance

    def _apart(self, beyond: Float[Tensor, "candidate sample"]) -> Float[Tensor, " candidate"]:
        """All saw the same samples, so it is differences to the best that are sure or not."""
        best = int(self.points[self.rows].argmax())
        variance = ((1 - self.drawn.chance) * (beyond - beyond[best]).square()).sum(dim=-1)
        others = torch.arange(len(variance)) != best
        # A few samples tell the variance of one badly; a point may always be off.
        return ((variance + variance[others].median()) / 2 + 1).sqrt()


class Fast(Exact):
    """Predictions are corrected by what is seen of samples, until it is clear who is best."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.effects: Outcomes | None = None
        """Effects of each candidate's removal on each sample, as last seen; None before the first
        round.
        """
        self.off = 0.0
        """How far the predictions of those that were measured were off at most."""

    @property
    def guarantee(self) -> str:  # type: ignore[override]
        (_, half), (third, _) = OPENING
        shares = ", ".join(f"{share:.0%}" for share in SHARES)
        return (
            "none; assumed: what a removal does to a sample changes little from round to round, "
            "so that"
            f" the head to remove is predicted among the best {LOOKED_AT:.0%} of the candidates, "
            f"and on {shares} of the"
            f" samples is never more than {DOUBT:g} standard errors behind the best; those that "
            "are left are measured"
            f" on all samples. In the first round it is among the best {third:.0%} on {half:.0%} "
            "of the samples"
        )

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> tuple[Head, float]:
        self.engine.remove(removed)
        heads = self.problem.left(removed)
        assert self.present is not None
        look = Look(
            Runner(self.problem, self.engine), heads, self.present, self.guess(heads), len(removed)
        )
        if self.effects is None:
            look.first()
        else:
            self.off = max(self.off, look.narrow())
        self.tally["evaluations"] += len(heads)
        self.tally["stopped"] += len(heads) - len(look.rows)
        self._remember(heads, look.seen)
        return self._settle(removed, {heads[row]: look.seen.of(row) for row in look.rows.tolist()})

    def resume(self, removed: Sequence[Head]) -> bool:
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

    def take_over(self, counts: Mapping[str, Any]) -> None:
        super().take_over(counts)
        self.off = float(counts["predictions_off_by"])

    def memory(self) -> dict[str, Any]:
        assert self.effects is not None
        return {**super().memory(), "effects": pack(self.effects, HALF)}

    def recall(self, memory: dict[str, Any]) -> None:
        super().recall(memory)
        effects = Packed.model_validate(memory.get("effects"))
        count = len(self.problem.candidates)
        rows = [count * part for part in rows_of(self.problem.objective)]
        self.effects = unpack(effects, rows, HALF).map(
            lambda part: part.reshape(count, part.numel() // count)
        )
