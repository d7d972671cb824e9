"""Fit a cascade to a decision state: the half of the validation data that fits chooses it, the other one certifies.

What is promised (sets, abstention, share flagged) is taken on the cascade's own answers to the half that chose nothing,
and so
are the drops that are recorded, beside half of each OOD set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from hydrasurgeon.decision.abstain import fit_abstention
from hydrasurgeon.decision.cascaded import in_steps, step_state
from hydrasurgeon.decision.conformal import fit_conformal
from hydrasurgeon.decision.fitting import Outputs, flag_threshold, halves
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import Cascade, CascadeCost, Drop
from hydrasurgeon.measuring.cascades.choice import Candidate, Costs, Sides, drops_of, families, intervals, sides, worst
from hydrasurgeon.options.deciding import CalibrateOptions

WORTH = 0.5
"""A certified cascade that lets more rows through is not worth being one: a smaller one is then taken by its point
estimate."""
LOOKED_AT = 3
"""Families of candidates of which it is seen whether they can be certified: those that lose least."""
TRIED = 200
"""Resamples by which a candidate is chosen; its drops are then measured on other samples."""


@dataclass(frozen=True)
class MacsOf:
    """Multiply-adds of one sample."""

    single: int
    """The single model's, which keeps all heads."""
    full: int
    """The hydra's."""
    steps: Costs


class CascadeFit:
    """All candidates, on the samples that choose; `record` takes the one that is wanted."""

    def __init__(self, state: State, val: Outputs, foreign: Sequence[Outputs], macs: MacsOf, *, seed: int) -> None:
        self.state, self.val, self.macs, self.seed = state, val, macs, seed
        fitting, self.certifying = (val.at(rows) for rows in halves(len(val.logits), seed))
        shown, self.kept = _split(foreign, seed)
        self.families = list(families(state, fitting, shown, macs.steps))
        self.hydra = sides(state, fitting, shown)

    def record(self, wanted: CalibrateOptions) -> tuple[Cascade, tuple[str, ...]]:
        """And what is to be said of it."""
        state, macs = self.state, self.macs
        chosen = self._chosen(wanted)
        cascade = _promising(state, chosen.cascade, self.certifying)
        drops = _drops(state, cascade, self.certifying, self.kept, self.seed)
        _, going = in_steps(state, cascade, self.val.logits, self.val.features)
        most = wanted.loss
        made = Cascade.model_validate(
            vars(cascade)
            | _costs(chosen, cascade, going, macs)
            | {"max_drop": most, "budget": wanted.budget, "drops": drops}
            | {"certified": most is not None and all(d.high <= most for d in drops.values())}
        )
        return made, _notes(made, macs)

    def _chosen(self, wanted: CalibrateOptions) -> Candidate:
        if wanted.budget is None:
            assert wanted.loss is not None
            return _dropping(self.families, wanted.loss, self.hydra, self.seed)
        chosen = _within(self.families, wanted.budget * self.macs.single)
        if chosen is None:
            least = min(c.macs for family in self.families for c in family) / self.macs.single
            raise UsageError(
                f"--budget {wanted.budget:g}: no cascade of this hydra costs so little",
                hint=f"The cheapest one, its first member alone, costs {least:.3g} times the single model.",
            )
        return chosen


def _split(foreign: Sequence[Outputs], seed: int) -> tuple[list[Outputs], list[Outputs]]:
    """Half of each set chooses, the other certifies."""
    first, second = [], []
    for each in foreign:
        count = len(each.logits)
        if count < 2:
            raise DataError("--cascade: an OOD set of one sample cannot be halved", hint="Give more --ood.")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        first.append(each.at(order[: count // 2]))
        second.append(each.at(order[count // 2 :]))
    return first, second


def _dropping(every: Sequence[Sequence[Candidate]], most: float, hydra: Sides, seed: int) -> Candidate:
    """The cheapest that keeps every measure; where it can be, one whose intervals do too."""
    kept = [list(takewhile(lambda c: worst(c.drops) <= most, family)) for family in every]

    def sure(candidate: Candidate) -> bool:
        if not _may_be_certified(candidate, hydra, most):
            return False
        ends = intervals(candidate.answers, hydra, seed=seed, repeats=TRIED)
        return all(high <= most for _, high in ends.values())

    small = [[c for c in family if c.share <= WORTH] for family in kept]
    promising = sorted((f for f in small if f), key=lambda family: worst(family[0].drops))
    certified = []
    for family in [f for f in promising[:LOOKED_AT] if sure(f[0])]:
        # Between the most rows, which are certified, and the fewest.
        low, high = 0, len(family) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if sure(family[middle]) else (low, middle - 1)
        certified.append(family[low])
    return min(certified or [family[-1] for family in kept], key=_cheapest)


def _cheapest(candidate: Candidate) -> tuple[float, float]:
    return candidate.macs, worst(candidate.drops)


def _may_be_certified(candidate: Candidate, hydra: Sides, most: float) -> bool:
    """By accuracy alone, whose interval needs no resamples: drop + 1.96 deviations."""
    change = hydra.correct.double() - candidate.answers.correct.double()
    deviation = float(change.std(correction=0)) / math.sqrt(len(change))
    return candidate.drops["accuracy"] + 196 * deviation <= most


def _within(every: Sequence[Sequence[Candidate]], most: float) -> Candidate | None:
    """The candidate that loses least, among those of each family with the most rows that the budget pays for."""
    affordable = [next((c for c in family if c.macs <= most), None) for family in every]
    some = [c for c in affordable if c is not None]
    return min(some, key=lambda c: (worst(c.drops), c.macs)) if some else None


def answers_of(state: State, cascade: Cascade, outputs: Outputs) -> tuple[Tensor, Tensor]:
    """Calibrated probabilities and OOD scores of every row, by the members that run."""
    parts, _ = in_steps(state, cascade, outputs.logits, outputs.features)
    probs = torch.empty(len(outputs.logits), outputs.logits.shape[-1], dtype=torch.float64)
    scores = torch.empty(len(outputs.logits), dtype=torch.float64)
    for part in parts:
        if len(part.rows):
            rule = step_state(state, cascade, part.members)
            probs[part.rows] = rule.probs(part.logits)
            scores[part.rows] = rule.ood_score(part.logits, part.features).double()
    return probs, scores


def _promising(state: State, cascade: Cascade, certifying: Outputs) -> Cascade:
    """With thresholds that hold for its own answers."""
    assert certifying.labels is not None
    probs, scores = answers_of(state, cascade, certifying)
    sets, risk = state.record.conformal, state.record.abstain
    abstention = None
    if risk is not None:
        confidence, label = probs.max(dim=-1)
        abstention = fit_abstention(confidence, label == certifying.labels, risk=risk.risk, delta=risk.delta)
    sets = fit_conformal(probs, certifying.labels, method=sets.method, coverage=sets.coverage, penalty=sets.penalty)
    threshold = flag_threshold(scores, state.record.ood.id_flagged)
    return cascade.model_copy(update={"ood_threshold": threshold, "conformal": sets, "abstain": abstention})


def _drops(state: State, cascade: Cascade, samples: Outputs, foreign: Sequence[Outputs], seed: int) -> dict[str, Drop]:
    """Against the hydra, on samples that chose nothing."""
    hydra = sides(state, samples, foreign)
    first = [each.among(cascade.starters) for each in (samples, *foreign)]
    early = sides(step_state(state, cascade, cascade.starters), first[0], first[1:])
    going = [in_steps(state, cascade, each.logits, each.features)[1] for each in (samples, *foreign)]
    mixed = early.mixed(hydra, going)
    ends = intervals(mixed, hydra, seed=seed)
    return {
        name: Drop(drop=drop, low=ends[name][0], high=ends[name][1]) for name, drop in drops_of(mixed, hydra).items()
    }


def _costs(chosen: Candidate, cascade: Cascade, going: Tensor, macs: MacsOf) -> dict[str, object]:
    """How many rows come to each step, and what that costs."""
    share, first = float(going.double().mean()), chosen.steps.first / macs.single
    # What a gate without bounds lets run is the hydra itself, which may share more than its parts do.
    rest = ((macs.full - chosen.steps.first) if cascade.gate.everything else chosen.steps.rest) / macs.single
    return {"shares": (1.0, share), "cost": CascadeCost(first=first, rest=rest, expected=first + share * rest)}


def _notes(record: Cascade, macs: MacsOf) -> tuple[str, ...]:
    """What is true and might surprise."""
    notes = []
    if record.shares[1] == 1:
        notes.append(
            f"the cascade's gate lets every sample through: it costs {record.cost.expected:.2f} times the single model,"
            f" the hydra {macs.full / macs.single:.2f}"
        )
    if record.max_drop is not None and not record.certified:
        notes.append(
            f"the data are too few to certify a drop of at most {record.max_drop:g} points: the cascade was chosen by"
            " its point estimate"
        )
    return tuple(notes)
