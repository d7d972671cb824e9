"""A live model with its decision state: inputs → answers, sets, doubts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.decision.cascaded import decided_in_steps
from hydrasurgeon.decision.scores.fitted import EnsembleScore
from hydrasurgeon.decision.state import Decided, State, decide
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.decided import FITTED, stored_name
from hydrasurgeon.runtime.tensors import to_weights


def state_in(checkpoint: Checkpoint) -> State | None:
    """The decision state that a checkpoint carries, its tensors finite."""
    record = checkpoint.manifest.decision
    if record is None or record.ood.score not in FITTED:
        return None if record is None else State(record)

    def read(name: str) -> torch.Tensor:
        return to_weights(checkpoint.tensors.read(name), "F32", name=name, path=checkpoint.path)

    ood = record.ood
    parts = FITTED[ood.score].parts
    fits = tuple({part: read(stored_name(member, part)) for part in parts} for member in range(len(ood.members)))
    return State(record, EnsembleScore(ood.score, fits, ood.members))


@torch.inference_mode()
def decided(model: Any, inputs: Any, *, cascade: bool | None = None) -> Decided:
    """What a model's decision state makes of its answers to `inputs`; by its cascade where there is one, unless told
    otherwise."""
    from hydrasurgeon.runtime.cascaded import rows_in, said
    from hydrasurgeon.runtime.features import reading

    state: State | None = model.state
    if state is None:
        raise CheckpointError(f"{model.name}: has no decision state", hint="Run `hydrasurgeon calibrate` on it first.")
    steps = state.record.cascade
    if not rows_in(inputs):
        logits = torch.zeros(0, model.members, model.manifest.model.num_classes)
        return decide(state, logits, torch.zeros(0, model.members, state.record.ood.width or 0))
    with reading(model) if state.fitted is not None else nullcontext() as read:
        if cascade or (cascade is None and steps is not None):
            parts = [part.on_cpu() for part in said(model, inputs, read)]
            assert steps is not None
            return decided_in_steps(state, steps, parts)
        logits, features = (model(inputs), None) if read is None else read(inputs)
    return decide(state, logits.float().cpu(), None if features is None else features.float().cpu())
