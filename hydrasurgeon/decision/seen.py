"""What a calibrated model answered on its validation data: later answers are compared with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from hydrasurgeon.decision import temperature
from hydrasurgeon.decision.cascaded import decided_in_steps, in_steps
from hydrasurgeon.decision.probabilities import Logits
from hydrasurgeon.decision.state import State, decide
from hydrasurgeon.files.decided import Seen


def with_seen(state: State, logits: Logits, features: Tensor | None) -> State:
    """The state, and in its record what it makes of these samples."""
    cascade, answers = state.record.cascade, Counter[str | int]()
    uncertainty, predicted = 0.0, []
    for start in range(0, len(logits), temperature.CALIBRATED):
        rows = slice(start, start + temperature.CALIBRATED)
        read = None if features is None else features[rows]
        if cascade is None:
            decided = decide(state, logits[rows], read)
        else:
            decided = decided_in_steps(state, cascade, in_steps(state, cascade, logits[rows], read)[0])
        answers.update(decided.answers())
        uncertainty += float(decided.total.double().sum())
        predicted.append(torch.bincount(decided.label, minlength=decided.probs.shape[-1]))
    seen = Seen(
        rows=len(logits),
        unfamiliar=answers["unfamiliar"],
        abstain=answers["abstain"],
        uncertainty=round(uncertainty / len(logits), 9),
        predicted=tuple(torch.stack(predicted).sum(dim=0).tolist()),
    )
    return replace(state, record=state.record.model_copy(update={"seen": seen}))
