"""A live model with its decision state: inputs → answers, sets, doubts."""

from __future__ import annotations

from typing import Any

import torch

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.decision.state import Decided, State, decide
from hydrasurgeon.decision.stored import state_of
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import shapes_of
from hydrasurgeon.runtime.tensors import to_weights

__all__ = ["decided", "state_in"]


def state_in(checkpoint: Checkpoint) -> State | None:
    """The decision state that a checkpoint carries, its tensors finite."""
    decision = checkpoint.manifest.decision
    if decision is None:
        return None
    names = shapes_of(decision, checkpoint.manifest.model.num_classes)
    tensors = {
        name: to_weights(checkpoint.tensors.read(name), "F32", name=name, path=checkpoint.path)
        for name in names
    }
    return state_of(decision, tensors)


@torch.inference_mode()
def decided(model: Any, inputs: Any) -> Decided:
    """What a model's decision state makes of its answers to `inputs`."""
    from hydrasurgeon.runtime.features import reading

    state: State | None = model.state
    if state is None:
        raise CheckpointError(
            f"{model.name}: has no decision state",
            hint="Run `hydrasurgeon calibrate` on it first.",
        )
    if not state.needs_features:
        return decide(state, model(inputs).float().cpu(), None)
    with reading(model) as read:
        logits, features = read(inputs)
    return decide(state, logits.float().cpu(), features.float().cpu())
