"""What a cascade answers: rows that stopped early by the members that ran, the others as the hydra
would, or by the members that had not run yet.

Each row gets the calibrated answer of its own members, so that it does not matter which rows it
came with; what is promised (sets, abstention, fraction flagged) has thresholds that were taken on
such answers. The gate looks at a score of the first members alone; rows go on where low ≤ score ≤
high. A yes or no is least sure where its answer changes; a sample of many labels is as unsure as
the least sure of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.files.decided import Cascade, Gate, Seen
from hydrasurgeon.problems.base import Prediction, PredictionT, joined
from hydrasurgeon.statistics import temperature
from hydrasurgeon.statistics.probabilities import Scores, member_probs
from hydrasurgeon.statistics.scores.on_logits import score_of


@dataclass(frozen=True)
class Said:
    """What was said of the rows that the same members answer."""

    rows: Int[Tensor, " row"]
    members: tuple[int, ...]
    """As the file numbers them, in the order of `logits`."""
    logits: Float[Tensor, "row member *klass"]
    features: Float[Tensor, "row member width"] | None

    def on_cpu(self) -> Said:
        """In float32 on the CPU, as decisions are taken."""
        features = None if self.features is None else self.features.float().cpu()
        return replace(self, logits=self.logits.float().cpu(), features=features)


def step_state(state: State, cascade: Cascade, members: Sequence[int]) -> State:
    """The decision state for answers of these members: the first ones, the others, or all."""
    record = state.record
    ood = record.ood.model_copy(update={"threshold": cascade.ood_threshold})
    changes: dict[str, Any] = {
        "ood": ood,
        "conformal": cascade.conformal,
        "abstain": cascade.abstain,
        "limits": cascade.limits,
        "cascade": None,
    }
    if {*members} == {*cascade.starters}:
        changes |= state.problem.of_some(record, cascade)
    elif cascade.rest is not None:
        changes |= state.problem.of_some(record, cascade.rest)
    fitted = None if state.fitted is None else state.fitted.among(members)
    return State(record.model_copy(update=changes), fitted, state.problem)


def lets(gate: Gate, scores: Scores) -> Bool[Tensor, " sample"]:
    """Which rows go on."""
    low, high = (
        -math.inf if gate.low is None else gate.low,
        math.inf if gate.high is None else gate.high,
    )
    return (scores >= low) & (scores <= high)


def own_score(kind: str, logits: Tensor) -> Scores:
    """A score of the first members' choices alone, of many labels the largest; `disagreement` is ½
    Σ_c |p_1 − p_2| of the first two.
    """
    if logits.dim() == 4:
        each = own_score(kind, logits.transpose(1, 2).flatten(0, 1))
        return each.unflatten(0, (-1, logits.shape[2])).amax(dim=1)
    if kind == "disagreement":
        probs = member_probs(logits)
        return (probs[:, 0] - probs[:, 1]).abs().sum(dim=-1) / 2
    return score_of(kind, logits)


def gate_scores(state: State, cascade: Cascade, logits: Tensor, features: Tensor | None) -> Scores:
    """What the gate looks at, from what its first members said; of classes, temperature has no say
    in who goes on.
    """
    first = step_state(state, cascade, cascade.starters)
    if cascade.gate.score == "ood":
        return first.ood_score(logits, features)
    return own_score(cascade.gate.score, first.problem.centred(logits, first.record))


def in_steps(
    state: State, cascade: Cascade, logits: Tensor, features: Tensor | None
) -> tuple[list[Said], Bool[Tensor, " sample"]]:
    """What the cascade would have said where all members were run; and which rows go on."""
    first = list(cascade.starters)
    going = torch.ones(len(logits), dtype=torch.bool)
    if not cascade.gate.everything:
        early = None if features is None else features[:, first]
        going = lets(cascade.gate, gate_scores(state, cascade, logits[:, first], early))
    parts = []
    for which, members in ((~going, tuple(first)), (going, cascade.finishers)):
        rows = which.nonzero()[:, 0]
        at = rows[:, None], list(members)
        parts.append(Said(rows, members, logits[at], None if features is None else features[at]))
    return parts, going


def decided_in_steps(state: State, cascade: Cascade, parts: Sequence[Said]) -> Prediction:
    """All rows again in their order, each by the state of its step."""
    some = [part for part in parts if len(part.rows)] or parts[-1:]
    return together(
        some,
        [
            decide(step_state(state, cascade, part.members), part.logits, part.features)
            for part in some
        ],
    )


def together(parts: Sequence[Said], each: Sequence[PredictionT]) -> PredictionT:
    """What was made of each part, the rows in their order again."""
    return joined(each, torch.cat([part.rows for part in parts]).argsort())


def with_seen(state: State, logits: Tensor, features: Tensor | None) -> State:
    """The state, and in its record what it makes of these samples."""
    cascade = state.record.cascade
    unfamiliar, abstain, uncertainty, predicted = 0, 0, 0.0, []
    for start in range(0, len(logits), temperature.CALIBRATED):
        rows = slice(start, start + temperature.CALIBRATED)
        read = None if features is None else features[rows]
        if cascade is None:
            decided = decide(state, logits[rows], read)
        else:
            decided = decided_in_steps(
                state, cascade, in_steps(state, cascade, logits[rows], read)[0]
            )
        unfamiliar += int(decided.unfamiliar.sum())
        abstain += int((decided.abstain & ~decided.unfamiliar).sum())
        uncertainty += float(decided.uncertainty.double().sum())
        predicted.append(decided.tally)
    seen = Seen(
        rows=len(logits),
        unfamiliar=unfamiliar,
        abstain=abstain,
        uncertainty=round(uncertainty / len(logits), 9),
        predicted=tuple(torch.stack(predicted).sum(dim=0).tolist()),
    )
    return replace(state, record=state.record.model_copy(update={"seen": seen}))
