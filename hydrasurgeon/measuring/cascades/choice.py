"""Which members come first, what the gate looks at, and how many rows it lets through: chosen by
what is lost against the hydra.

Candidates are windows on a score of the first members that let a share of the samples through.
Those of one kind form a family, walked from all rows downwards for as long as no measure drops by
more than it may: a small share that does well where a larger one does not has been lucky. Of what
the families end at, the cheapest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hydrasurgeon.decision.cascaded import gate_scores, lets, step_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import Alone, Cascade, Gate, GateScore
from hydrasurgeon.measuring.cost import StepMacs
from hydrasurgeon.measuring.results import Interval
from hydrasurgeon.problems.base import Outputs
from hydrasurgeon.statistics.bootstrap import REPEATS, bootstrap
from hydrasurgeon.statistics.metrics import DIGITS, areas, nll
from hydrasurgeon.statistics.probabilities import Scores

SHARES = (
    0.9,
    0.8,
    0.7,
    0.6,
    0.5,
    0.45,
    0.4,
    0.35,
    0.3,
    0.25,
    0.2,
    0.17,
    0.15,
    0.12,
    0.1,
    0.08,
    0.06,
    0.04,
    0.02,
)
"""Fractions of the samples that candidates let through."""
TOPS = (0.0, 0.01, 0.03)
"""Shares above the window: samples so doubtful that no other member is asked."""
TRIED_FIRST = 6
"""Members that are tried as the first, the most accurate ones; pairs among them as the first two.
"""
PAIRED: Sequence[GateScore] = ("disagreement",)
"""What the gate of two members looks at."""
MEASURES = ("accuracy", "auroc", "fpr95", "cov5")
"""What may drop: of FPR95 it is the rise that is a loss …"""
OF_LABELS = ("micro_f1", *MEASURES[1:3])
"""… and of many labels, which are answered without abstaining."""
SIGNS = {"fpr95": -100.0}
"""What a difference is multiplied by to be a loss in points, where that is not 100."""

Drops = dict[str, float]
"""In points, by measure."""
Costs = Callable[[tuple[int, ...]], StepMacs]
"""What it costs to have these members first."""


@dataclass(frozen=True)
class Sides:
    """What one way to answer says of the samples and of each OOD set."""

    correct: Bool[Tensor, " sample"] | Scores
    """Whether the class is; of many labels, how many are rightly answered."""
    confidence: Scores
    inside: Scores
    outside: tuple[Scores, ...]
    amiss: Scores | None = None
    """Of many labels half of how many are answered wrongly or missed: micro F1 is Σ correct / Σ
    (correct + amiss).
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What is measured: AUROC and FPR95 where there are OOD sets."""
        names: tuple[str, ...] = OF_LABELS
        if self.amiss is None:
            names = MEASURES
        return tuple(name for name in names if self.outside or name not in ("auroc", "fpr95"))

    def mixed(self, other: Sides, going: Sequence[Tensor]) -> Sides:
        """This one's answer where a row stops, the other's where it goes on; `going` of the
        samples, then of each set.
        """
        of_samples = (
            (getattr(each, name) for each in (self, other))
            for name in ("correct", "confidence", "amiss")
        )
        correct, sure, amiss = (
            None if a is None else torch.where(going[0], b, a) for a, b in of_samples
        )
        scores = ((each.inside, *each.outside) for each in (self, other))
        inside, *outside = (
            torch.where(open_, b, a) for open_, a, b in zip(going, *scores, strict=True)
        )
        assert correct is not None
        assert sure is not None
        return Sides(correct, sure, inside, tuple(outside), amiss)

    def measures(self) -> Drops:
        """AUROC and FPR95 are means over the OOD sets."""
        every = [torch.arange(len(each))[None] for each in (self.inside, *self.outside)]
        (row,) = self.resampled(every[0], every[1:]).tolist()
        return dict(zip(self.names, row, strict=True))

    def resampled(self, rows: Tensor, foreign: Sequence[Tensor]) -> Float[Tensor, "repeat measure"]:
        """`names` of many resamples at once, as `metrics` has them: rows [repeat, sample], and of
        each OOD set.
        """
        inside = self.inside[rows]
        ordered = inside.sort(dim=-1).values.contiguous()
        count = rows.shape[-1]
        each, false = [], []
        for scores, some in zip(self.outside, foreign, strict=True):
            out = scores[some].sort(dim=-1, descending=True).values.contiguous()
            each.append(areas(inside, out))
            needed = math.ceil(0.95 * out.shape[-1] - 1e-9)
            threshold = out[:, max(needed, 1) - 1, None].contiguous()
            false.append(1 - torch.searchsorted(ordered, threshold)[:, 0].double() / count)
        unlike = [torch.stack(of_sets).mean(dim=0) for of_sets in (each, false) if of_sets]
        if self.amiss is not None:
            hits, amiss = self.correct[rows].sum(dim=-1), self.amiss[rows].sum(dim=-1)
            return torch.stack([(hits / (hits + amiss)).nan_to_num(), *unlike], dim=-1)
        sure, order = self.confidence[rows].sort(dim=-1, descending=True, stable=True)
        correct = self.correct[rows]
        wrong = (~correct.gather(-1, order)).double().cumsum(dim=-1)
        answered = torch.arange(1, count + 1, dtype=torch.float64)
        # Samples of equal confidence are answered together.
        ends = torch.ones_like(correct)
        ends[:, :-1] = sure[:, 1:] != sure[:, :-1]
        kept = (wrong / answered <= 0.05 + 1e-12) & ends
        covered = (kept * answered).amax(dim=-1) / count
        return torch.stack([correct.double().mean(dim=-1), *unlike, covered], dim=-1)


def sides(state: State, samples: Outputs, foreign: Sequence[Outputs]) -> Sides:
    """By a state for the members that stand in these outputs."""
    prediction = state.problem.predicted(samples.logits, state.problem.constants(state.record))
    # Equal up to rounding is equal, as in `eval`.
    scores = [
        state.ood_score(each.logits, each.features).round(decimals=DIGITS)
        for each in (samples, *foreign)
    ]
    correct, confidence, amiss = state.problem.marked(prediction, samples)
    return Sides(correct, confidence, scores[0], tuple(scores[1:]), amiss)


def drops_of(cascade: Sides, hydra: Sides) -> Drops:
    """What the cascade loses, in points."""
    part, whole = cascade.measures(), hydra.measures()
    return {name: SIGNS.get(name, 100.0) * (whole[name] - part[name]) for name in whole}


def intervals(
    cascade: Sides, hydra: Sides, *, seed: int, repeats: int = REPEATS
) -> dict[str, Interval]:
    """Interval of each drop, by a paired bootstrap of the samples and of every OOD set."""

    def drops(rows: Tensor, *foreign: Tensor) -> dict[str, Tensor]:
        lost = hydra.resampled(rows, foreign) - cascade.resampled(rows, foreign)
        return {name: SIGNS.get(name, 100.0) * lost[:, at] for at, name in enumerate(hydra.names)}

    counts = (len(cascade.inside), *map(len, cascade.outside))
    return bootstrap(drops, *counts, repeats=repeats, seed=seed)


@dataclass(frozen=True)
class Candidate:
    """A cascade whose thresholds of promises are still the hydra's, and what it amounts to where it
    was chosen.
    """

    cascade: Cascade
    steps: StepMacs
    share: float
    answers: Sides
    drops: Drops

    @property
    def macs(self) -> float:
        return self.steps.expected(self.share)

    @property
    def worst(self) -> float:
        return max(self.drops.values())


def _bound(ordered: Float[Tensor, " sample"], above: float) -> float | None:
    """Between two samples, so that this share of them lies above; no bound for none."""
    count = round(above * len(ordered))
    at = len(ordered) - count
    return None if count == 0 else float(ordered[max(at - 1, 0)] + ordered[at]) / 2


def families(
    state: State,
    samples: Outputs,
    foreign: Sequence[Outputs],
    costs: Costs,
    macs: float | None = None,
) -> Iterator[list[Candidate]]:
    """Each a list of candidates, with ever fewer rows that go on; the first lets every row through.

    `macs` leaves of each the one with the most rows that so many multiply-adds pay for, if any.
    """
    hydra = sides(state, samples, foreign)
    for starters in _starters(samples):
        cascade = _plain(state, samples, starters)
        every = (samples, *foreign)
        early = said_by(state, cascade, starters, every)
        cascade, late = _finished(state, cascade, every, hydra)
        steps = costs(starters)
        gates = PAIRED
        if len(starters) == 1:
            # Without OOD data nothing says what a gate on their score is worth.
            gates = [kind for kind in state.problem.gates if foreign or kind != "ood"]
        for kind in gates:
            looking = cascade.model_copy(update={"gate": Gate(score=kind)})
            first = [each.among(starters) for each in every]
            seen = [gate_scores(state, looking, each.logits, each.features) for each in first]
            if seen[0].min() < seen[0].max():  # else it tells nothing apart
                yield from _windows(looking, seen, (early, late, hydra), steps, macs)


def within(families: Iterable[Sequence[Candidate]], macs: float) -> Candidate | None:
    """The candidate that loses least, among those of each family with the most rows that so many
    multiply-adds pay for.
    """
    affordable = [next((c for c in each if c.macs <= macs), None) for each in families]
    some = [c for c in affordable if c is not None]
    return min(some, key=lambda c: (c.worst, c.macs), default=None)


def _starters(samples: Outputs) -> list[tuple[int, ...]]:
    """One member each, then pairs, where a third is left to go on to."""
    right = (
        (samples.logits.argmax(dim=-1) == samples.truth[:, None])
        .double()
        .transpose(0, 1)
        .flatten(1)
        .mean(dim=1)
    )
    best = sorted(right.argsort(descending=True, stable=True)[:TRIED_FIRST].tolist())
    pairs = list(combinations(best, 2)) if samples.logits.shape[1] > 2 else []
    return [*((member,) for member in best), *pairs]


def _plain(state: State, samples: Outputs, starters: tuple[int, ...]) -> Cascade:
    """These members first, calibrated by a temperature of their own; everything goes on."""
    rest = tuple(m for m in range(samples.logits.shape[1]) if m not in starters)
    record = state.record
    # A draft: what it costs and loses is known in the end.
    draft: dict[str, Any] = {
        "order": (*starters, *rest),
        "steps": (len(starters), samples.logits.shape[1]),
        "gate": Gate(score="msp"),
        **state.problem.alone(samples.among(starters)),
        "ood_threshold": record.ood.threshold,
        "conformal": record.conformal,
        "abstain": record.abstain,
        "limits": record.limits,
        "group": record.group,
    }
    return Cascade.model_construct(**draft)


def said_by(
    state: State, cascade: Cascade, members: Sequence[int], every: Sequence[Outputs]
) -> Sides:
    """What the first members, or those that answer what goes on, say of the samples and of each
    OOD set.
    """
    samples, *foreign = (each.among(members) for each in every)
    return sides(step_state(state, cascade, members), samples, foreign)


def _finished(
    state: State, cascade: Cascade, every: Sequence[Outputs], hydra: Sides
) -> tuple[Cascade, Sides]:
    """Who answers what goes on: all members, or the only other one where its NLL is lower."""
    if len(cascade.followers) > 1:
        return cascade, hydra
    others = every[0].among(cascade.followers)
    alone = cascade.model_copy(update={"rest": Alone(**state.problem.alone(others))})
    if _nll(step_state(state, alone, alone.finishers), others) < _nll(state, every[0]):
        return alone, said_by(state, alone, alone.finishers, every)
    return cascade, hydra


def _nll(state: State, outputs: Outputs) -> float:
    """Of calibrated answers."""
    chances = state.problem.chances(state.answers(outputs.logits))
    return nll(chances, outputs.truth.flatten().long())


def _windows(
    cascade: Cascade,
    seen: Sequence[Scores],
    answers: tuple[Sides, Sides, Sides],
    steps: StepMacs,
    macs: float | None,
) -> Iterator[list[Candidate]]:
    """A family for each share that lies above the window; `seen` is what the gate sees of the
    samples, then of each OOD set.
    """
    early, late, hydra = answers
    ordered = seen[0].double().sort().values

    def candidate(gate: Gate) -> Candidate:
        going = [lets(gate, scores) for scores in seen]
        mixed = early.mixed(late, going)
        share = float(going[0].double().mean())
        return Candidate(
            cascade.model_copy(update={"gate": gate}), steps, share, mixed, drops_of(mixed, hydra)
        )

    everything = Candidate(
        cascade.model_copy(update={"gate": Gate(score=cascade.gate.score), "rest": None}),
        steps,
        1.0,
        hydra,
        dict.fromkeys(hydra.names, 0.0),
    )
    for top in TOPS:
        high = _bound(ordered, top)
        bounds = [_bound(ordered, top + share) for share in SHARES if top + share < 1]
        gates = [Gate(score=cascade.gate.score, low=low, high=high) for low in bounds]
        if top == 0 and cascade.gate.score == "msp":
            gates.append(Gate(score="msp", low=1.0))  # 1 − max p is always below: nothing goes on
        if macs is None:
            yield [everything, *map(candidate, gates)]
        elif steps.expected(1.0) <= macs:
            yield [everything]
        else:
            shares = (float(lets(gate, seen[0]).double().mean()) for gate in gates)
            pairs = zip(gates, shares, strict=True)
            affordable = (gate for gate, share in pairs if steps.expected(share) <= macs)
            yield [candidate(gate) for gate in islice(affordable, 1)]
