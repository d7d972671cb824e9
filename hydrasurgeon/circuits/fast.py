"""Most of the order of Algorithm 1 for a fraction of the work: estimates that are carried on, and a knockout in stages.

What a removal changes shows first on ID samples near the decision boundary, and on a random part of the OOD
samples. Each round starts with the heads whose running estimates are best, and sees them on a part of the
samples; the better half goes on to more of them, and a few are measured on all. Estimates are paired with
the present circuit on the same samples, and blended with what was known from the rounds before.
"""

from __future__ import annotations

from collections.abc import Sequence
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

SHARES = {"acc": (0.15, 0.4), "ood": (0.3, 0.6), "avg": (0.3, 0.6)}
"""Shares of the samples after which candidates are left behind."""
OPENING = (0.6, 0.8)
"""The same in the first round, from which estimates are carried on."""
SEMIFINAL, FINAL = 10, 5
"""How many go on after the first stage and after the second."""
BLEND = {"acc": 0.7, "ood": 0.5, "avg": 0.5}
"""Weight of a new estimate against the one carried on."""
POOL = 0.4
"""Share of the candidates that take part in a round."""
REFRESH = 8
"""Every so many rounds all candidates take part."""


class Fast(Exact):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.gains: dict[Head, float] = {}
        """Points each candidate's removal is expected to bring; negative = to cost."""

    @property
    def guarantee(self) -> str:
        first, second = SHARES[self.problem.objective.kind]
        return (
            f"none; assumed: the head to remove is among the {POOL:.0%} with the best running estimates (among all every "
            f"{REFRESH} rounds), among the {SEMIFINAL} best on {first:.0%} of the samples and the {FINAL} best on "
            f"{second:.0%}; these are measured on all samples"
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
                rows = self._best(heads, rows, card, (SEMIFINAL, FINAL)[stage], first=stage == 0)
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
        size = max(2 * FINAL, round(POOL * len(left)))
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
            shares = SHARES[objective.kind] if self.gains else OPENING
            cuts = [round(share * len(order)) for share in shares]
            for stage, index in enumerate(order.tensor_split(cuts)):
                stages[stage] += [Part(foreign, part) for part in index.split(size) if len(part)]
        return stages

    def _best(
        self, heads: Sequence[Head], rows: Tensor, card: Card, size: int, *, first: bool
    ) -> Tensor:
        """The rows that go on; all estimates are brought up to date."""
        estimates = self._gains(rows, card)
        weight = BLEND[self.problem.objective.kind]
        for row, found in zip(rows.tolist(), estimates.tolist(), strict=True):
            known = self.gains.get(heads[row], found)
            # The later stage contains the samples of the first: it takes its place, as far as it can.
            self.gains[heads[row]] = known + (weight if first else 0.7) * (found - known)
        ranked = sorted(rows.tolist(), key=lambda row: -self.gains[heads[row]])
        return torch.tensor(sorted(ranked[:size]))

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
