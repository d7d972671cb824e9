"""Fit a decision state to what any model answered: it is known by its logits, and perhaps its features, alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from hydrasurgeon.decision.fitting import SHARE, Outputs, evidence_of, fit_state
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED, OF_CLASSIFIERS, ZERO_SHOT
from hydrasurgeon.options.deciding import CalibrateOptions

LINEAR = 0.01
"""How far, as a fraction of the largest, logits may be from a linear function of the features: bfloat16 rounds so."""


def fit_alone(
    val: Outputs, fit: Outputs | None, foreign: Sequence[Outputs], promise: CalibrateOptions
) -> tuple[State, tuple[str, ...]]:
    """A state from validation predictions, those that OOD scores are fitted on, and those on OOD data; and notes."""
    score, linear = promise.ood_score, None if val.features is None else classifiers_of(fit or val)
    lacking = FITTED if val.features is None else OF_CLASSIFIERS if linear is None else ()
    if score in lacking:
        what = "predictions without features" if val.features is None else "logits that no linear classifier made"
        raise DataError(f"--ood-score {score}: cannot be fitted to {what}", hint="Give another --ood-score.")
    chosen_by: Literal["option", "ood", "default"] = "option" if score != "auto" else "ood" if foreign else "default"
    notes = []
    if chosen_by == "default":
        # On average over the tasks of benchmarks/decision.py the best, and nowhere worse than msp by a point.
        score = next(kind for kind in ("vim", "mds", "msp") if kind not in lacking)
        notes.append(f"--ood-score auto chooses by --ood-predictions; without them it is {score}")
    if linear is None and val.features is not None:
        _, members, width = val.features.shape
        linear = [(torch.zeros(val.logits.shape[-1], width), torch.zeros(val.logits.shape[-1]))] * members
    state, more = fit_state(
        val,
        promise=promise,
        score=score,
        classifiers=linear or (),
        evidence=None if fit is None or linear is None else evidence_of(fit, linear, promise.seed),
        foreign=foreign,
        leaves_out=(*ZERO_SHOT, *lacking),
        chosen_by=chosen_by,
        seed=promise.seed,
    )
    return state, (*notes, *more)


def classifiers_of(outputs: Outputs) -> list[tuple[Tensor, Tensor]] | None:
    """Each member's weight and bias by least squares; None where they do not give the logits of rows left aside."""
    assert outputs.features is not None
    cut, made = int(SHARE * len(outputs.logits)), []
    for member in range(outputs.logits.shape[1]):
        x, z = outputs.features[:, member].double(), outputs.logits[:, member].double()
        x = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        solution = torch.linalg.lstsq(x[:cut], z[:cut], driver="gelsd").solution
        if (x[cut:] @ solution - z[cut:]).abs().max() > LINEAR * z.abs().max():
            return None
        made.append((solution[:-1].T, solution[-1]))
    return made
