"""Cascaded inference of a hydra: the trunk once, its first members, and only rows that are still
open go on to the others.

What the first members start from is kept, so that the others go on from it with a smaller batch. A
gate without bounds is the hydra itself, in one pass; where nearly all recent rows went on, one pass
of all members is less work than two, and the gate is asked afterwards: rows that it stops still get
their first members' answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.anatomy.words import WORDS
from hydrasurgeon.decision.cascaded import Said, gate_scores, lets
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import Cascade
from hydrasurgeon.problems import SINGLE, problem_of
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.runtime.features import LiveModel, WithFeatures
from hydrasurgeon.runtime.hydra import Hydra

MOSTLY = 0.8
"""Where a larger share of the recent rows went on, all members run as one: the gate then tells only
which answers stand.
"""
RECENT = 64
"""Rows that make up a recent share: one batch of a server, or so many requests of one row."""


def cascade_in(model: LiveModel) -> tuple[State, Cascade]:
    """A model's decision state, and the cascade in it."""
    state = model.state
    if state is None or state.record.cascade is None:
        raise CheckpointError(
            f"{model.name}: has no cascade in a decision state",
            hint="Run `hydrasurgeon calibrate --cascade` on the hydra first.",
        )
    return state, state.record.cascade


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
    if isinstance(inputs, Mapping) and WORDS in inputs:
        return len(inputs[WORDS])
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


def _beside(first: Outputs, more: Outputs, order: Sequence[int]) -> Outputs:
    """Members that stand in this order, the first ones and the others, as the file numbers them."""
    features = None
    if first.features is not None and more.features is not None:
        features = torch.cat([first.features, more.features], dim=1)
    together = Outputs(torch.cat([first.logits, more.logits], dim=1), features)
    # Place i of the whole is place index(i) of the order.
    return together.among([order.index(member) for member in range(len(order))])


@torch.inference_mode()
def said(model: LiveModel, inputs: Any, read: WithFeatures | None = None) -> list[Said]:
    """What the members that ran said of the rows that stopped early, and of those that went on."""
    state, cascade = cascade_in(model)
    if read is None and cascade.gate.score == "ood" and state.fitted is not None:
        read = WithFeatures(model)
    count = rows_in(inputs)
    hydra = model.module
    assert isinstance(hydra, Hydra)  # others have no cascade

    def run(call: Callable[[Any], Tensor], argument: Any) -> Outputs:
        return Outputs(call(argument), None) if read is None else Outputs(*read.of(call, argument))

    if cascade.gate.everything:
        whole = run(hydra, inputs)
        return [Said(torch.arange(count), cascade.finishers, whole.logits, whole.features)]
    started = hydra.start(inputs)
    together = run(hydra.finish, started) if hydra.going_on > MOSTLY else None
    first = (
        run(hydra.part(cascade.starters).finish, started)
        if together is None
        else together.among(cascade.starters)
    )
    looked_at = None if first.features is None else first.features.float().cpu()
    going = lets(cascade.gate, gate_scores(state, cascade, _precise(first.logits), looked_at))
    went, stopped = going.nonzero()[:, 0], (~going).nonzero()[:, 0]
    hydra.going_on += (len(went) / count - hydra.going_on) * min(1.0, count / RECENT)
    device = first.logits.device
    early = first.at(stopped.to(device)) if len(went) else first
    parts = [Said(stopped, cascade.starters, early.logits, early.features)]
    if len(went):
        rows = went.to(device)
        if together is None:
            late = run(
                hydra.part(cascade.followers).finish,
                started if len(went) == count else started.at(rows),
            )
            if cascade.rest is None:
                late = _beside(first.at(rows), late, cascade.order)
        else:
            late = together.at(rows).among(cascade.finishers)
        parts.append(Said(went, cascade.finishers, late.logits, late.features))
    return parts


def _precise(logits: Tensor) -> Tensor:
    """As decisions are taken: in the model's float32 or what it has more, on the CPU."""
    return logits.cpu() if logits.dtype == torch.float64 else logits.float().cpu()


def mean_probs(parts: Sequence[Said], problem: Problem = SINGLE) -> Float[Tensor, "batch klass"]:
    """Probabilities: the mean over the members that ran."""
    probs = torch.cat([problem.probs(part.logits.float()).mean(dim=1) for part in parts])
    return (
        probs
        if len(parts) == 1
        else probs[torch.cat([part.rows for part in parts]).argsort().to(probs.device)]
    )


class Cascading(nn.Module):
    """A model whose pass is its cascade: to be timed beside others."""

    def __init__(self, model: LiveModel) -> None:
        super().__init__()
        self.model = model

    @torch.inference_mode()
    def forward(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        return mean_probs(said(self.model, inputs), problem_of(self.model.manifest.model))
