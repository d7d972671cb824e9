"""Running two stages: the first reader reads every row, the whole model those that go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.anatomy.words import WORDS
from hydrasurgeon.data.readers import READ, parted
from hydrasurgeon.decision.cascaded import Said, cascade_of, going_on, stage_state
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.runtime.features import WithFeatures
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.kinds import kind_of

if TYPE_CHECKING:
    from hydrasurgeon.runtime.answering import Engine
    from hydrasurgeon.runtime.classifier import Classifier


FirstReader = Callable[[Any, bool], tuple[Said, Callable[[Tensor], Said]]]
"""What answers before the whole model: (inputs, whether features are wanted) → what it says of a
batch, logits [row, 1, class] (and features [row, 1, width] if its OOD score needs them); and what
gives the whole model's outputs for the rows that go on.
"""


def first_member(
    model: Classifier, inputs: Any, features: bool
) -> tuple[Said, Callable[[Tensor], Said]]:
    """A hydra's first member; the others go on from the trunk that it has run."""
    hydra = model.module
    assert isinstance(hydra, Hydra)
    with_features = WithFeatures(model) if features else None
    plain, words = parted(inputs)

    def run(members: Sequence[int], started: Any, rows: Tensor) -> Said:
        call = hydra.part(members).finish
        if with_features is None:
            told = Said(rows, call(started))
        else:
            told = Said(rows, *with_features.of(call, started))
        if words is None or model.state is None:
            return told
        return told.beside(model.state, words[rows, :-1])

    plain = model.placed(plain)
    started = hydra.start(plain)
    first = run([0], started, torch.arange(rows_in(plain)))

    def whole(rows: Tensor) -> Said:
        early = first.at(rows)
        late = run(range(1, len(hydra.members)), started.at(rows.to(early.logits.device)), rows)
        both = None
        if early.features is not None and late.features is not None:
            both = torch.cat([early.features, late.features], dim=1)
        return Said(rows, torch.cat([early.logits, late.logits], dim=1), both)

    return first, whole


def first_words(
    engine: Engine, inputs: Any, features: bool
) -> tuple[Said, Callable[[Tensor], Said]]:
    """A reader of words or pixels: what it says came with the inputs."""
    read = inputs[READ].float()

    def whole(rows: Tensor) -> Said:
        some = {name: values[rows] for name, values in inputs.items()}
        return replace(engine.whole(some, features=features), rows=rows)

    rows = torch.arange(len(read))
    return Said(rows, read[:, None, :-1], read[:, None, -1:]), whole


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
    if isinstance(inputs, Mapping) and WORDS in inputs:
        return len(inputs[WORDS])
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


@torch.inference_mode()
def said(engine: Engine, inputs: Any, *, features: bool) -> list[Said]:
    """What the first reader says of the rows that it answers, and the whole model of the others."""
    state, reader = engine.state, engine.first
    assert state is not None
    assert reader is not None
    first, whole = reader(inputs, features)
    early = first.arrays()
    rule, threshold = stage_state(state, first=True), cascade_of(state).threshold
    going = torch.from_numpy(going_on(rule, threshold, Outputs(early.logits, early.features)))
    stopped, went = (which.nonzero()[:, 0] for which in (~going, going))
    parts = [replace(first.at(stopped), first=True)]
    if len(went):
        parts.append(whole(went))
    return parts


def mean_probs(parts: Sequence[Said], problem: Problem = SINGLE) -> Float[Tensor, "batch klass"]:
    """Probabilities: the mean over the members that ran."""
    kind = kind_of(problem)
    probs = torch.cat(
        [kind.probs(torch.as_tensor(part.logits).float()).mean(dim=1) for part in parts]
    )
    order = torch.cat([torch.as_tensor(part.rows) for part in parts]).argsort()
    return probs if len(parts) == 1 else probs[order.to(probs.device)]
