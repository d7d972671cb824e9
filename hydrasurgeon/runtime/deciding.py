"""A live model with its decision state: inputs → answers, sets, doubts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.decision.cascaded import decided_in_steps
from hydrasurgeon.decision.state import Decided, State, decide
from hydrasurgeon.decision.stored import state_of
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import shapes_of
from hydrasurgeon.runtime.tensors import to_weights


def state_in(checkpoint: Checkpoint) -> State | None:
    """The decision state that a checkpoint carries, its tensors finite."""
    decision = checkpoint.manifest.decision
    if decision is None:
        return None
    names = shapes_of(decision, checkpoint.manifest.model.num_classes)
    tensors = {
        name: to_weights(checkpoint.tensors.read(name), "F32", name=name, path=checkpoint.path) for name in names
    }
    return state_of(decision, tensors)


@torch.inference_mode()
def decided(model: Any, inputs: Any, *, cascade: bool | None = None) -> Decided:
    """What a model's decision state makes of its answers to `inputs`; by its cascade where there is one, unless told
    otherwise."""
    from hydrasurgeon.runtime.cascaded import rows_in, said
    from hydrasurgeon.runtime.features import reading

    state: State | None = model.state
    if state is None:
        raise CheckpointError(f"{model.name}: has no decision state", hint="Run `hydrasurgeon calibrate` on it first.")
    if not rows_in(inputs):
        return _nothing(model, state)
    with reading(model) if state.needs_features else nullcontext() as read:
        if cascade or (cascade is None and state.cascade is not None):
            parts = [part.on_cpu() for part in said(model, inputs, read)]
            assert state.cascade is not None
            return decided_in_steps(state, state.cascade, parts)
        logits, features = (model(inputs), None) if read is None else read(inputs)
    return decide(state, logits.float().cpu(), None if features is None else features.float().cpu())


def _nothing(model: Any, state: State) -> Decided:
    """No answer, to no input."""
    logits = torch.zeros(0, model.members, model.manifest.model.num_classes)
    bare = replace(state, ood=replace(state.ood, kind="msp", fitted=None))
    return decide(bare, logits, None)
