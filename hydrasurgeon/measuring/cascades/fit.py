"""Fit a cascade to a decision state: the half of the validation data that fits chooses it, the
other one certifies.

What is promised, and the drops, are taken on the cascade's own answers to the half that chose
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from hydrasurgeon.decision.cascaded import in_steps, step_state
from hydrasurgeon.decision.fitting import flag_threshold, halves
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import Cascade, CascadeCost, Drop
from hydrasurgeon.measuring.cascades.choice import (
    Candidate,
    Costs,
    drops_of,
    families,
    intervals,
    said_by,
    sides,
    within,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems.base import Outputs

WORTH = 0.5
"""A certified cascade that lets more rows through is not worth being one: a smaller one is then
taken by its point estimate.
"""
LOOKED_AT = 3
"""Families of candidates of which it is seen whether they can be certified: those that lose least.
"""
TRIED = 200
"""Resamples by which a candidate is chosen; its drops are then measured on other samples."""


@dataclass(frozen=True)
class MacsOf:
    """Multiply-adds of one sample."""

    single: int
    """The single model's, which keeps all heads."""
    full: int
    steps: Costs


class CascadeFit:
    """All candidates, on the samples that choose; `record` takes the one that is wanted."""

    def __init__(
        self,
        state: State,
        val: Outputs,
        foreign: Sequence[Outputs],
        macs: MacsOf,
        *,
        seed: int,
        by_foreign: bool = True,
    ) -> None:
        """Foreign sets say what is lost; `by_foreign` lets half of each choose too."""
        self.state, self.val, self.macs, self.seed = state, val, macs, seed
        fitting, self.certifying = (
            val.at(rows) for rows in halves(len(val.logits), seed, val.groups)
        )
        shown, self.kept = _split(foreign, seed)
        if not by_foreign:
            shown = []
        self.families = list(families(state, fitting, shown, macs.steps))
        self.hydra = sides(state, fitting, shown)

    def record(self, wanted: CalibrateOptions) -> tuple[Cascade, tuple[str, ...]]:
        """The cascade, and what is to be said of it."""
        state, macs, max_drop, budget = self.state, self.macs, wanted.loss, wanted.budget
        chosen = self._within(budget) if budget is not None else self._dropping(max_drop or 0.0)
        cascade = self._promising(chosen.cascade, wanted)
        drops = self._drops(cascade)
        _, going = in_steps(state, cascade, self.val.logits, self.val.features)
        share, first = float(going.double().mean()), chosen.steps.first / macs.single
        # What a gate without bounds lets run is the hydra itself, which may share more than its
        # parts do.
        rest = (
            (macs.full - chosen.steps.first) if cascade.gate.everything else chosen.steps.rest
        ) / macs.single
        made = Cascade.model_validate(
            vars(cascade)
            | {
                "shares": (1.0, share),
                "cost": CascadeCost(first=first, rest=rest, expected=first + share * rest),
            }
            | {"max_drop": max_drop, "budget": budget, "drops": drops}
            | {
                "certified": max_drop is not None
                and all(d.high <= max_drop for d in drops.values())
            }
        )
        notes = []
        if share == 1:
            notes.append(
                f"the cascade's gate lets every sample through: it costs {made.cost.expected:.2f} "
                "times the single"
                f" model, the hydra {macs.full / macs.single:.2f}"
            )
        if max_drop is not None and not made.certified:
            notes.append(
                f"the data are too few to certify a drop of at most {max_drop:g} points: the "
                "cascade was chosen by its"
                " point estimate"
            )
        return made, tuple(notes)

    def _within(self, budget: float) -> Candidate:
        single = self.macs.single
        chosen = within(self.families, budget * single)
        if chosen is None:
            least = min(c.macs for family in self.families for c in family) / single
            raise UsageError(
                f"--budget {budget:g}: no cascade of this hydra costs so little",
                hint=(
                    f"The cheapest one, its first member alone, costs {least:.3g} times the "
                    "single model."
                ),
            )
        return chosen

    def _dropping(self, most: float) -> Candidate:
        """The cheapest that keeps every measure; where it can be, one whose intervals do too."""
        kept = [list(takewhile(lambda c: c.worst <= most, family)) for family in self.families]

        def sure(candidate: Candidate) -> bool:
            # By accuracy alone first, whose interval needs no resamples: drop + 1.96 deviations.
            drop, change = (
                candidate.drops.get("accuracy"),
                self.hydra.correct.double() - candidate.answers.correct.double(),
            )
            if (
                drop is not None
                and drop + 196 * float(change.std(correction=0)) / math.sqrt(len(change)) > most
            ):
                return False
            ends = intervals(candidate.answers, self.hydra, seed=self.seed, repeats=TRIED)
            return all(high <= most for _, high in ends.values())

        small = [[c for c in family if c.share <= WORTH] for family in kept]
        promising = sorted((f for f in small if f), key=lambda family: family[0].worst)
        certified = []
        for family in [f for f in promising[:LOOKED_AT] if sure(f[0])]:
            # Between the most rows, which are certified, and the fewest.
            low, high = 0, len(family) - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if sure(family[middle]) else (low, middle - 1)
            certified.append(family[low])
        return min(certified or [family[-1] for family in kept], key=lambda c: (c.macs, c.worst))

    def _promising(self, cascade: Cascade, wanted: CalibrateOptions) -> Cascade:
        """With thresholds that hold for its own answers."""
        record = self.state.record
        probs, scores = answers_of(self.state, cascade, self.certifying)
        risk = record.abstain or record.limits
        bounds = {} if risk is None else {"risk": risk.risk}
        promise = wanted.but(**record.promised, **bounds)
        kept = self.state.problem.promised(probs, self.certifying, promise)
        return cascade.model_copy(
            update={"ood_threshold": flag_threshold(scores, record.ood.id_flagged), **kept}
        )

    def _drops(self, cascade: Cascade) -> dict[str, Drop]:
        """Against the hydra, on samples that chose nothing."""
        state, every = self.state, (self.certifying, *self.kept)
        hydra = sides(state, every[0], every[1:])
        early, late = (
            said_by(state, cascade, members, every)
            for members in (cascade.starters, cascade.finishers)
        )
        going = [in_steps(state, cascade, each.logits, each.features)[1] for each in every]
        mixed = early.mixed(late, going)
        ends = intervals(mixed, hydra, seed=self.seed)
        return {
            name: Drop(drop=drop, low=ends[name][0], high=ends[name][1])
            for name, drop in drops_of(mixed, hydra).items()
        }


def _split(foreign: Sequence[Outputs], seed: int) -> tuple[list[Outputs], list[Outputs]]:
    """Half of each set chooses, the other certifies."""
    first, second = [], []
    for each in foreign:
        count = len(each.logits)
        if count < 2:
            raise DataError(
                "--cascade: an OOD set of one sample cannot be halved", hint="Give more --ood."
            )
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        first.append(each.at(order[: count // 2]))
        second.append(each.at(order[count // 2 :]))
    return first, second


def answers_of(state: State, cascade: Cascade, outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Calibrated probabilities and OOD scores of every row, by the members that run."""
    parts = [
        part
        for part in in_steps(state, cascade, outputs.logits, outputs.features)[0]
        if len(part.rows)
    ]
    rules = [step_state(state, cascade, part.members) for part in parts]
    order = torch.cat([part.rows for part in parts]).argsort()
    probs = [rule.answers(part.logits) for rule, part in zip(rules, parts, strict=True)]
    scores = [
        rule.ood_score(p.logits, p.features).double() for rule, p in zip(rules, parts, strict=True)
    ]
    return torch.cat(probs)[order], torch.cat(scores)[order]
