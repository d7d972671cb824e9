"""A cascade on data sets, beside its whole model.

Its logits have the first reader's in column 0 and the whole model's behind them; NaN stands for
what was not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import nn

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.decision.state import Said as Stage
from hydrasurgeon.decision.state import State, answers_in_stages
from hydrasurgeon.measuring.cost import SideBySide, first_inputs, stage_macs
from hydrasurgeon.measuring.measure import Row, row_of
from hydrasurgeon.measuring.predictions import Said, predicted
from hydrasurgeon.measuring.sets import DataSets
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.answering import Answering, Engine, Piece, gathered, outputs_in_stages
from hydrasurgeon.statistics.metrics import DIGITS
from hydrasurgeon.statistics.scores.fitted import scores_of
from hydrasurgeon.tasks.base import Outputs

WHOLE = " (whole)"
"""Suffix of the row of the complete model, in tables where its cascade has the name itself."""


@dataclass(frozen=True)
class Staged(State):
    """State that calibrates each row by the stage that answers it."""

    complete: State | None = None

    def answers(self, logits: ndarray) -> ndarray:
        assert self.complete is not None
        return answers_in_stages(self.complete, stages_in(logits))

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """Return the disagreement between the members that ran; zero for a first reader alone."""
        information, disagreement = np.zeros((2, len(choices)), dtype=np.float64)
        for part in stages_in(choices):
            parts = super().apart(part.logits)
            information[part.rows], disagreement[part.rows] = parts
        return information, disagreement


def has_cascade(checkpoint: Checkpoint) -> bool:
    """Return True if the decision state lets a first reader answer."""
    decision = checkpoint.manifest.decision
    return decision is not None and decision.cascade is not None


def stages_in(logits: ndarray) -> list[Stage]:
    """Return the rows that the first reader answers, then the others; a stage without rows is
    omitted.
    """
    early = np.isnan(logits[:, -1].reshape(len(logits), -1)).any(axis=-1)
    stopped, went = np.flatnonzero(early), np.flatnonzero(~early)
    parts = (
        Stage(stopped, logits[stopped, :1], None, first=True),
        Stage(went, logits[went, 1:], None),
    )
    return [part for part in parts if len(part.rows)]


class Cascading(nn.Module):
    """Model whose pass is its cascade, so that it can be timed beside other models."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> list[Stage]:
        return outputs_in_stages(self.model, inputs, features=self.model.reads)


def side_by_side(
    state: State, parts: Sequence[Stage], shape: tuple[int, ...], kinds: Sequence[str]
) -> dict[str, ndarray]:
    """Return the logits of both stages and the OOD scores, computed by the stage that answers a
    row.
    """
    logits = np.full(shape, np.nan, dtype=np.float32)
    scores = {kind: np.empty(len(logits), dtype=np.float64) for kind in kinds}
    for part in parts:
        if not len(part.rows):
            continue
        rule, columns = state.stages[part.first], slice(1, None)
        if part.first:
            columns = slice(0, 1)
        logits[part.rows, columns] = part.logits
        choices = rule.task.read(part.logits)
        for kind, values in scores.items():
            score = scores_of(kind, choices, part.features, rule.fitted)
            values[part.rows] = np.round(score.astype(np.float64), decimals=DIGITS)
    return {"logits": logits, **scores}


def in_stages(model: Engine, samples: Any, run: Run, kinds: Sequence[str]) -> Said:
    """Return a cascade's outputs and OOD scores for samples, computed in one pass."""
    assert model.state is not None
    state = model.state

    def read(piece: Piece) -> dict[str, ndarray | None]:
        shape = len(piece.index), 1 + model.members, model.facts.num_classes
        return {**side_by_side(state, piece.parts, shape, kinds), "labels": piece.labels}

    pieces = Answering([model], samples, run, cascade=True, features=model.reads)
    arrays = gathered(samples, ((piece.index, read(piece)) for piece in pieces))
    return Outputs(arrays.pop("logits"), None, arrays.pop("labels", None)), arrays


def with_cascade(
    complete: Row,
    model: Engine,
    sets: DataSets,
    run: Run,
    timed: SideBySide | None,
    kinds: Sequence[str],
    **intervals: Any,
) -> list[Row]:
    """Return the cascade's row, then the complete model's.

    `model` is another copy than the one that was timed: parameters that lie side by side for all
    members cannot do so for some at the same time.
    """
    state, result = model.state, complete.result
    assert state is not None
    assert result.cost is not None
    score_kinds = [*dict.fromkeys((*kinds, state.record.ood.score))]
    predictions = predicted(
        sets,
        lambda samples, scored: in_stages(model, samples, run, score_kinds if scored else ()),
        name=result.name,
        kind=result.kind,
        task=state.task,
    )
    logits = predictions.outputs.logits
    share = sum(len(part.rows) for part in stages_in(logits) if not part.first)
    macs = stage_macs(model, first_inputs(model, sets.id, run, 1))
    expected = round(macs.expected(share / len(logits)))
    cost = result.cost.model_copy(update={"expected_macs": expected})
    cascade = state.cascade
    updates = {name: getattr(cascade, name) for name in ("conformal", "abstain", "limits")}
    stages = Staged(state.record.model_copy(update=updates), None, state.task, complete=state)
    with torch.inference_mode():
        row = row_of(replace(predictions, cost=cost), stages, kinds, **intervals)
    if timed is not None:
        timing = timed.add(Cascading(model), first_inputs(model, sets.id, run))
        row = replace(row, timing=timing)
    return [row, complete.but(name=result.name + WHOLE)]
