"""Running two stages: the first reader reads every row, the whole model those that go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.data.readers import READ
from hydrasurgeon.data.words import WORDS
from hydrasurgeon.decision.cascaded import Said, cascade_of, going_on, single
from hydrasurgeon.problems.base import Outputs

if TYPE_CHECKING:
    from hydrasurgeon.runtime.answering import Engine


FirstReader = Callable[[Any, bool], tuple[Said, Callable[[Any], Said]]]
"""What answers before the whole model: (inputs, whether features are wanted) → what it says of a
batch, logits [row, 1, class] (and features [row, 1, width] if its OOD score needs them); and what
gives the whole model's outputs for the rows that go on.
"""


def first_words(engine: Engine, inputs: Any, features: bool) -> tuple[Said, Callable[[Any], Said]]:
    """A reader of words or pixels: what it says came with the inputs."""
    read = single(inputs[READ])

    def whole(rows: Any) -> Said:
        some = {name: values[rows] for name, values in inputs.items()}
        return replace(engine.whole(some, features=features), rows=rows)

    rows = np.arange(len(read))
    return Said(rows, read[:, None, :-1], read[:, None, -1:]), whole


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
    if isinstance(inputs, Mapping) and WORDS in inputs:
        return len(inputs[WORDS])
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def said(engine: Engine, inputs: Any, *, features: bool) -> list[Said]:
    """What the first reader says of the rows that it answers, and the whole model of the others."""
    state, reader = engine.state, engine.first
    assert state is not None
    assert reader is not None
    first, whole = reader(inputs, features)
    early = first.arrays()
    rule, threshold = state.stages[True], cascade_of(state).threshold
    going = going_on(rule, threshold, Outputs(early.logits, early.features))
    stopped, went = np.flatnonzero(~going), np.flatnonzero(going)
    parts = [replace(first.at(stopped), first=True)]
    if len(went):
        parts.append(whole(went))
    return parts
