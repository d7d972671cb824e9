"""Cascaded inference of a hydra: the trunk once, its first members, and only rows that are still open go on to the
others.

What the first members start from is kept, so that the others go on from it with a smaller batch; they run stacked or
one by
one as hydras of their own do. A gate without bounds is the hydra itself, in one pass; where nearly all recent rows went
on, one pass
of all members is less work than two, and the gate is asked afterwards: rows that it stops still get their first
members' answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hydrasurgeon.decision.cascaded import Said, gate_scores, lets
from hydrasurgeon.decision.fitting import Outputs
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import Cascade
from hydrasurgeon.runtime.features import Reading, reading
from hydrasurgeon.runtime.hydra import Hydra

if TYPE_CHECKING:
    from hydrasurgeon.runtime.classifier import Classifier

MOSTLY = 0.8
"""Where a larger share of the recent rows went on, all members run as one: the gate then tells only which answers
stand."""
RECENT = 64
"""Rows that make up a recent share: one batch of a server, or so many requests of one row."""


def cascade_in(model: Any) -> tuple[State, Cascade]:
    """A model's decision state, and the cascade in it."""
    state: State | None = model.state
    if state is None or state.record.cascade is None:
        raise CheckpointError(
            f"{model.name}: has no cascade in a decision state",
            hint="Run `hydrasurgeon calibrate --cascade` on the hydra first.",
        )
    return state, state.record.cascade


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
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


@dataclass(frozen=True)
class _Passes:
    """What ran for one batch: its first members' answers, which rows go on, and what all members say of these."""

    first: Outputs
    went: Int[Tensor, " row"]
    """On the model's device, as the outputs are."""
    whole: Outputs | None
    """Outputs for the rows that went on, members as the file numbers them; None without such rows."""


def _passes(model: Any, inputs: Any, read: Reading | None) -> _Passes:
    """First members, gate, and the others for the rows that it lets through."""
    state, cascade = cascade_in(model)
    hydra: Hydra = model.module

    def run(call: Callable[[Any], Tensor], argument: Any) -> Outputs:
        return Outputs(call(argument), None) if read is None else Outputs(*read.of(call, argument))

    started = hydra.start(inputs)
    whole = run(hydra.finish, started) if hydra.going_on > MOSTLY else None
    starters = list(cascade.starters)
    first = run(hydra.part(cascade.starters).finish, started) if whole is None else whole.among(starters)
    looked_at = None if first.features is None else first.features.float().cpu()
    going = lets(cascade.gate, gate_scores(state, cascade, _precise(first.logits), looked_at))
    rows = going.nonzero()[:, 0]
    hydra.going_on += (len(rows) / len(going) - hydra.going_on) * min(1.0, len(going) / RECENT)
    went, every = rows.to(first.logits.device), len(rows) == len(going)
    if not len(rows):
        return _Passes(first, went, None)
    if whole is not None:
        return _Passes(first, went, whole if every else whole.at(went))
    more = run(hydra.part(cascade.followers).finish, started if every else started.at(went))
    return _Passes(first, went, _beside(first if every else first.at(went), more, cascade.order))


@torch.inference_mode()
def said(model: Any, inputs: Any, read: Reading | None = None) -> list[Said]:
    """What the members that ran said, of the rows that stopped early and of those that went on; on the model's
    device."""
    state, cascade = cascade_in(model)
    if read is None and cascade.gate.needs_features and state.fitted is not None:
        with reading(model) as listening:
            return said(model, inputs, listening)
    every, count = tuple(range(len(cascade.order))), rows_in(inputs)
    if cascade.gate.everything:
        logits, features = (model.module(inputs), None) if read is None else read.of(model.module, inputs)
        return [Said(torch.arange(count), every, logits, features)]
    passes = _passes(model, inputs, read)
    first, went = passes.first, passes.went
    if passes.whole is None:
        return [Said(torch.arange(count), cascade.starters, first.logits, first.features)]
    stays = torch.ones(count, dtype=torch.bool, device=went.device)
    stays[went] = False
    stopped = stays.nonzero()[:, 0]
    early = first.at(stopped)
    return [
        Said(stopped.cpu(), cascade.starters, early.logits, early.features),
        Said(went.cpu(), every, passes.whole.logits, passes.whole.features),
    ]


def _precise(logits: Tensor) -> Tensor:
    """As decisions are taken: in the model's float32 or what it has more, on the CPU."""
    return logits.cpu() if logits.dtype == torch.float64 else logits.float().cpu()


def _mean(logits: Tensor) -> Float[Tensor, "batch klass"]:
    return logits.float().softmax(dim=-1).mean(dim=1)


@torch.inference_mode()
def mean_probs(model: Any, inputs: Any) -> Float[Tensor, "batch klass"]:
    """Class probabilities: the mean over the members that ran."""
    state, cascade = cascade_in(model)
    if not rows_in(inputs):
        return torch.zeros(0, model.manifest.model.num_classes)
    if cascade.gate.everything:
        return _mean(model.module(inputs))
    reads = cascade.gate.needs_features and state.fitted is not None
    with reading(model) if reads else nullcontext() as read:
        passes = _passes(model, inputs, read)
    early = _mean(passes.first.logits)
    if passes.whole is None:
        return early
    late = _mean(passes.whole.logits)
    if len(passes.went) == len(passes.first.logits):
        return late
    return early.index_copy_(0, passes.went, late)


class Cascading(nn.Module):
    """A model whose pass is its cascade: to be timed beside others."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        return mean_probs(self.model, inputs)
