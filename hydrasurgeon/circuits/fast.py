"""Most of the order of Algorithm 1 for a fraction of the work: estimates that are carried on, and a knockout in stages.

What a removal changes shows first on ID samples near the decision boundary, and on a random part of the OOD
samples. Each round starts with the heads whose running estimates are best, and sees them on a part of the
samples; the better half goes on to more of them, and a few are measured on all. Estimates are paired with
the present circuit on the same samples, and blended with what was known from the rounds before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.circuits.exact import Exact
from hydrasurgeon.circuits.objective import Predictions, pairs_above
from hydrasurgeon.circuits.path import Part
from hydrasurgeon.circuits.problem import Found, Problem
from hydrasurgeon.circuits.race import Card, Runner
from hydrasurgeon.heads import Head

__all__ = ["Fast"]


@dataclass(frozen=True)
class Plan:
    """How much of the data decides about how many candidates."""

    opening: tuple[float, float]
    """Shares of the samples after which candidates are left behind, in the first round."""
    shares: tuple[float, float]
    """The same in later rounds."""
    goes_on: tuple[int, int]
    """How many go on after each; the last are measured on all samples."""
    pool: float
    """Share of the candidates that take part in a round."""
    blend: float
    """Weight of a new estimate against the one carried on."""


# Few samples change their answer when a head goes, and they lie near the boundary; the AUROC moves with all of them.
ANSWERS = Plan((0.2, 0.4), (0.15, 0.35), (6, 3), 1.0, 0.8)
PAIRS = Plan((0.6, 0.8), (0.3, 0.6), (8, 4), 0.4, 0.6)
LATER_BLEND = 0.7
"""Weight of the second stage's estimate, which contains the samples of the first."""
REFRESH = 8
"""Every so many rounds all candidates take part."""


class Fast(Exact):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.plan = ANSWERS if problem.objective.kind == "acc" else PAIRS
        self.gains: dict[Head, float] = {}
        """Points each candidate's removal is expected to bring; negative = to cost."""

    @property
    def guarantee(self) -> str:
        plan = self.plan
        pool = "" if plan.pool == 1 else (
            f"among the {plan.pool:.0%} with the best running estimates (among all every {REFRESH} rounds), "
        )  # fmt: skip
        return (
            f"none; assumed: the head to remove is {pool}among the {plan.goes_on[0]} best on {plan.shares[0]:.0%} of the "
            f"samples and the {plan.goes_on[1]} best on {plan.shares[1]:.0%}; these are measured on all samples"
        )

    @torch.inference_mode()
    def next(self, removed: Sequence[Head]) -> Found:
        assert self.present is not None
        self.engine.remove(removed)
        heads = self._pool(self.problem.left(removed), len(removed))
        self.tally["evaluations"] += len(heads)
        card = Card.of(self.problem, len(heads))
        rows = torch.arange(len(heads))
        runner = Runner(self.problem, self.engine)
        for stage, parts in enumerate(self._stages(len(removed))):
            for at in range(0, len(parts), runner.stride):
                alive = [heads[row] for row in rows.tolist()]
                for batch in runner.batches(parts[at : at + runner.stride], alive):
                    card.write(rows, batch)
            if stage < 2:
                rows = self._best(heads, rows, card, stage)
            self.problem.tick((stage + 1) / 3)
        survivors = {heads[row]: card.predictions(row) for row in rows.tolist()}
        self.tally["stopped"] += len(heads) - len(survivors)
        ((now, _),) = self.problem.objective.points(self.present.one())
        for head, seen in survivors.items():
            self.gains[head] = float(self.problem.objective.points(seen.one())[0].low - now)
        return self._settle(removed, survivors)

    def _pool(self, left: Sequence[Head], round_: int) -> list[Head]:
        if round_ % REFRESH == 0 or not self.gains:
            return list(left)
        size = max(2 * self.plan.goes_on[1], round(self.plan.pool * len(left)))
        best = set(sorted(left, key=lambda head: -self.gains[head])[:size])
        return [head for head in left if head in best]

    def _stages(self, round_: int) -> list[list[Part]]:
        """The batches of each stage: ID samples from the decision boundary outwards, OOD samples at random."""
        assert self.present is not None
        objective, size = self.problem.objective, self.problem.batch_size
        generator = torch.Generator().manual_seed(round_)
        orders = {False: self.present.margin.abs().argsort(stable=True)}
        if objective.needs_ood:
            orders[True] = torch.randperm(objective.ood_rows, generator=generator)
        stages: list[list[Part]] = [[], [], []]
        for foreign, order in orders.items():
            shares = self.plan.shares if self.gains else self.plan.opening
            cuts = [round(share * len(order)) for share in shares]
            for stage, index in enumerate(order.tensor_split(cuts)):
                stages[stage] += [Part(foreign, part) for part in index.split(size) if len(part)]
        return stages

    def _best(self, heads: Sequence[Head], rows: Tensor, card: Card, stage: int) -> Tensor:
        """The rows that go on; all estimates are brought up to date."""
        weight = (self.plan.blend, LATER_BLEND)[stage]
        for row, found in zip(rows.tolist(), self._gains(rows, card).tolist(), strict=True):
            known = self.gains.get(heads[row], found)
            self.gains[heads[row]] = known + weight * (found - known)
        ranked = sorted(rows.tolist(), key=lambda row: -self.gains[heads[row]])
        return torch.tensor(sorted(ranked[: self.plan.goes_on[stage]]))

    def _gains(self, rows: Tensor, card: Card) -> Tensor:
        """Points more than the present circuit, if both do alike on ID samples not seen and OOD samples go on as they began."""
        assert self.present is not None
        objective = self.problem.objective
        ids = torch.cat(card.id_seen)
        right = (card.margin[rows, : card.ids] > 0).sum(dim=-1)
        gained = objective.per_answer * (right - (self.present.margin[ids] > 0).sum()).double()
        if not objective.needs_ood or not card.oods:
            return gained
        oods = torch.cat(card.ood_seen)
        present: Predictions = self.present
        lost = pairs_above(card.foreign[rows, : card.oods], card.familiar[rows, : card.ids])
        before = pairs_above(present.foreign[oods][None], present.familiar[ids][None])
        return gained - 2 * (lost - before).double() * objective.ood_rows / card.oods

    def memory(self) -> dict[str, Any]:
        return {**super().memory(), "gains": [[*head, gain] for head, gain in self.gains.items()]}

    def recall(self, memory: dict[str, Any]) -> None:
        super().recall(memory)
        self.gains = {Head(*head): gain for *head, gain in memory["gains"]}
