"""Running two stages: the first reader reads every row, the whole model those that go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

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

if TYPE_CHECKING:
    from hydrasurgeon.runtime.answering import Engine
    from hydrasurgeon.runtime.classifier import Classifier


class FirstReader(Protocol):
    """What answers before the whole model."""

    def __call__(
        self, inputs: Any, *, features: bool
    ) -> tuple[Outputs, Callable[[Tensor], Outputs]]:
        """What it says of a batch, logits [row, 1, class] (and features [row, 1, width] if its OOD
        score needs them); and what gives the whole model's outputs for the rows that go on.
        """


class FirstMember:
    """A hydra's first member; the others go on from the trunk that it has run."""

    def __init__(self, model: Classifier) -> None:
        self.model = model

    def __call__(
        self, inputs: Any, *, features: bool
    ) -> tuple[Outputs, Callable[[Tensor], Outputs]]:
        hydra = self.model.module
        assert isinstance(hydra, Hydra)
        with_features = WithFeatures(self.model) if features else None
        plain, words = parted(inputs)

        def run(members: Sequence[int], started: Any, rows: Tensor) -> Outputs:
            call = hydra.part(members).finish
            if with_features is None:
                outputs = Outputs(call(started), None)
            else:
                outputs = Outputs(*with_features.of(call, started))
            if words is None or self.model.state is None:
                return outputs
            read = words[rows.cpu(), :-1].to(outputs.logits.device)
            return replace(outputs, logits=self.model.state.beside(outputs.logits, read))

        plain = self.model.placed(plain)
        started = hydra.start(plain)
        first = run([0], started, torch.arange(rows_in(plain)))

        def whole(rows: Tensor) -> Outputs:
            late = run(range(1, len(hydra.members)), started.at(rows), rows)
            early = first.at(rows)
            both = None
            if early.features is not None and late.features is not None:
                both = torch.cat([early.features, late.features], dim=1)
            return Outputs(torch.cat([early.logits, late.logits], dim=1), both)

        return first, whole


class FirstWords:
    """A reader of words or pixels: what it says came with the inputs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(
        self, inputs: Any, *, features: bool
    ) -> tuple[Outputs, Callable[[Tensor], Outputs]]:
        read = inputs[READ].float()

        def whole(rows: Tensor) -> Outputs:
            some = {name: values[rows] for name, values in inputs.items()}
            late = self.engine.whole(some, features=features)
            return Outputs(late.logits, late.features)

        return Outputs(read[:, None, :-1], read[:, None, -1:]), whole


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
    first, whole = reader(inputs, features=features)
    device = first.logits.device
    early = Said(torch.arange(0), first.logits, first.features).on_cpu()
    rule, threshold = stage_state(state, first=True), cascade_of(state).threshold
    going = going_on(rule, threshold, Outputs(early.logits, early.features))
    stopped, went = ((~going).nonzero()[:, 0], going.nonzero()[:, 0])
    stays = first.at(stopped.to(device))
    parts = [Said(stopped, stays.logits, stays.features, first=True)]
    if len(went):
        late = whole(went.to(device))
        parts.append(Said(went, late.logits, late.features))
    return parts


def mean_probs(parts: Sequence[Said], problem: Problem = SINGLE) -> Float[Tensor, "batch klass"]:
    """Probabilities: the mean over the members that ran."""
    probs = torch.cat([problem.probs(part.logits.float()).mean(dim=1) for part in parts])
    order = torch.cat([part.rows for part in parts]).argsort()
    return probs if len(parts) == 1 else probs[order.to(probs.device)]
