"""Cascaded inference of a hydra: the trunk once, its first members, and only rows that are still open go on to the others.

What the first members start from is kept, so that the others go on from it with a smaller batch; they run stacked or one by
one as hydras of their own do. A gate without bounds is the hydra itself, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.decision.cascaded import Said, gate_scores
from hydrasurgeon.decision.gate import Cascade
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.runtime.features import Reading, reading
from hydrasurgeon.runtime.hydra import Hydra

if TYPE_CHECKING:
    from hydrasurgeon.runtime.classifier import Classifier

__all__ = ["Cascading", "cascade_in", "mean_probs", "rows_in", "said"]


def cascade_in(model: Any) -> tuple[State, Cascade]:
    """A model's decision state, and the cascade in it."""
    state: State | None = model.state
    if state is None or state.cascade is None:
        raise CheckpointError(
            f"{model.name}: has no cascade in a decision state",
            hint="Run `hydrasurgeon calibrate --cascade` on the hydra first.",
        )
    return state, state.cascade


def rows_in(inputs: Any) -> int:
    """Samples of a batch."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return len(first)


@torch.inference_mode()
def said(model: Any, inputs: Any, read: Reading | None = None) -> list[Said]:
    """What the members that ran said, of the rows that stopped early and of those that went on; on the model's device."""
    state, cascade = cascade_in(model)
    hydra: Hydra = model.module
    if read is None and cascade.gate.score == "ood" and state.needs_features:
        with reading(model) as listening:
            return said(model, inputs, listening)

    def run(call: Callable[[Any], Tensor], argument: Any) -> tuple[Tensor, Tensor | None]:
        return (call(argument), None) if read is None else read.of(call, argument)

    every = tuple(range(len(cascade.order)))
    if cascade.gate.everything:
        return [Said(torch.arange(rows_in(inputs)), every, *run(hydra, inputs))]
    started = hydra.start(inputs)
    logits, features = run(hydra.part(cascade.starters).finish, started)
    looked_at = None if features is None else features.float().cpu()
    going = cascade.gate.lets(gate_scores(state, cascade, _precise(logits), looked_at))
    stopped, went = (~going).nonzero()[:, 0], going.nonzero()[:, 0]
    early = Said(stopped, cascade.starters, *_at(stopped, logits, features))
    if len(went) == 0:
        return [early]
    there = went.to(logits.device)
    more = run(hydra.part(cascade.followers).finish, started.at(there))
    # Members as the file numbers them: place i of the whole is place back[i] of the order.
    back = torch.tensor(cascade.order).argsort().to(logits.device)
    late = [
        None if one is None or other is None else torch.cat([one[there], other], dim=1)[:, back]
        for one, other in zip((logits, features), more, strict=True)
    ]
    assert late[0] is not None
    return [early, Said(went, every, late[0], late[1])]


def _precise(logits: Tensor) -> Tensor:
    """As decisions are taken: in the model's float32 or what it has more, on the CPU."""
    return logits.cpu() if logits.dtype == torch.float64 else logits.float().cpu()


def _at(rows: Tensor, logits: Tensor, features: Tensor | None) -> tuple[Tensor, Tensor | None]:
    there = rows.to(logits.device)
    return logits[there], None if features is None else features[there]


def _in_order(parts: Sequence[Said], values: Sequence[Tensor]) -> Tensor:
    """What was found for each part, in the order of the rows."""
    order = torch.cat([part.rows for part in parts]).argsort()
    whole = torch.cat(list(values))
    return whole[order.to(whole.device)]


def mean_probs(model: Any, inputs: Any) -> Float[Tensor, "batch klass"]:
    """Class probabilities: the mean over the members that ran."""
    if not rows_in(inputs):
        cascade_in(model)
        return torch.zeros(0, model.manifest.model.num_classes)
    parts = said(model, inputs)
    return _in_order(parts, [part.logits.float().softmax(dim=-1).mean(dim=1) for part in parts])


class Cascading(nn.Module):
    """A model whose pass is its cascade: to be timed beside others."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Any) -> Float[Tensor, "batch klass"]:
        return mean_probs(self.model, inputs)
