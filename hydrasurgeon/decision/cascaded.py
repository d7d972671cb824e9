"""Two stages: a first reader answers where it is sure, the whole model what goes on.

A row goes on where the first's calibrated answer is less certain than the threshold, or where the
row is unfamiliar to it. Each row gets the calibrated answer of its own stage, so that it does not
matter which rows it came with; what is promised (sets, abstention) has thresholds that were taken
on such answers. What is unfamiliar is said by the whole model alone, by the threshold that it has
without a cascade: so no more is flagged than was promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.files.decided import Cascade, Seen
from hydrasurgeon.problems.base import Outputs, Prediction, joined
from hydrasurgeon.run.shapes import Bool, Float
from hydrasurgeon.statistics import temperature


@dataclass(frozen=True)
class Said:
    """What was said of the rows that one stage answers: arrays, or tensors where a model runs."""

    rows: Any
    """[row], whole numbers."""
    logits: Any
    """[row, member, class], of tokens [row, member, word, class]."""
    features: Any = None
    """[row, member, width], or None."""
    first: bool = False
    """Whether the first reader said it."""

    def at(self, places: Any) -> Said:
        """Of some of the rows."""
        features = None if self.features is None else self.features[places]
        return replace(self, rows=self.rows[places], logits=self.logits[places], features=features)

    def beside(self, state: State, read: Any) -> Said:
        """With what a reader says of these rows, added to every member's logits: both tensors, or
        both arrays.
        """
        assert state.record.words is not None
        model, reader = state.record.words.weights
        assert state.fitted is not None
        features = state.fitted.own(self.features, self.logits)
        if isinstance(self.logits, ndarray):
            mixed = model * self.logits.astype(np.float64) + reader * np.asarray(read)[:, None]
            return replace(self, logits=mixed.astype(self.logits.dtype), features=features)
        logits, other = self.logits, read.to(self.logits.device).double()
        mixed = model * logits.double() + reader * other[:, None]
        return replace(self, logits=mixed.to(logits.dtype), features=features)

    def arrays(self) -> Said:
        """As decisions are taken: in float32 on the CPU."""
        features = None if self.features is None else single(self.features)
        return Said(np.asarray(self.rows), single(self.logits), features, self.first)


def single(values: Any) -> Float[ndarray, "*any"]:
    """A tensor or an array as an array in float32."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, dtype=np.float32)


def cascade_of(state: State) -> Cascade:
    """The cascade, which is there."""
    assert state.record.cascade is not None
    return state.record.cascade


def going_on(rule: State, threshold: float, first: Outputs) -> Bool[ndarray, " sample"]:
    """Which rows go on, by the decision state for what the first reader answers."""
    certainty = rule.certainty(first.logits)
    unfamiliar = rule.ood_score(first.logits, first.features) > rule.record.ood.threshold
    return (certainty < threshold) | unfamiliar


def in_stages(state: State, first: Outputs, whole: Outputs) -> list[Said]:
    """What would be said of rows that both have read."""
    going = going_on(state.stages[True], cascade_of(state).threshold, first)
    parts = []
    for which, said, early in ((~going, first, True), (going, whole, False)):
        rows = np.flatnonzero(which)
        some = said.at(rows)
        parts.append(Said(rows, some.logits, some.features, early))
    return parts


def answers_in_stages(state: State, parts: Sequence[Said]) -> ndarray:
    """Calibrated probabilities of all rows, in their order."""
    each = [state.stages[part.first].answers(part.logits) for part in parts]
    return np.concatenate(each)[np.concatenate([part.rows for part in parts]).argsort()]


def decide_in_stages(state: State, parts: Sequence[Said]) -> Prediction:
    """All rows again in their order, each by the state of its stage."""
    some = [part for part in parts if len(part.rows)] or parts[-1:]
    each = []
    for part in some:
        answers = decide(state.stages[part.first], part.logits, part.features)
        if part.first and cascade_of(state).novelty is not None:  # words are no member
            answers = replace(answers, members_run=0 * answers.members_run)
        each.append(answers)
    if len(each) == 1:
        return each[0]
    return joined(each, np.concatenate([part.rows for part in some]).argsort())


def with_seen(
    state: State, logits: ndarray, features: ndarray | None, first: Outputs | None = None
) -> State:
    """The state, and in its record what it makes of these samples; with a cascade also of what
    `first` says of them.
    """
    unfamiliar, abstain, uncertainty, predicted = 0, 0, 0.0, []
    for start in range(0, len(logits), temperature.CALIBRATED):
        rows = slice(start, start + temperature.CALIBRATED)
        whole = Outputs(logits, features).at(rows)
        if first is None:
            decided = decide(state, whole.logits, whole.features)
        else:
            decided = decide_in_stages(state, in_stages(state, first.at(rows), whole))
        unfamiliar += int(decided.unfamiliar.sum())
        abstain += int((decided.abstain & ~decided.unfamiliar).sum())
        uncertainty += float(decided.uncertainty.astype(np.float64).sum())
        predicted.append(decided.tally)
    seen = Seen(
        rows=len(logits),
        unfamiliar=unfamiliar,
        abstain=abstain,
        uncertainty=round(uncertainty / len(logits), 9),
        predicted=tuple(np.stack(predicted).sum(axis=0).tolist()),
    )
    return replace(state, record=state.record.model_copy(update={"seen": seen}))
