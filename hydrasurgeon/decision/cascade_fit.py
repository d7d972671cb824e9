"""Fit a cascade to a decision state: the validation data that fit choose how sure the first reader
must be, the others certify what is promised of the answers of both stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.promising import promised
from hydrasurgeon.decision.split import split
from hydrasurgeon.decision.state import (
    State,
    answers_in_stages,
    going_on,
    in_stages,
)
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.decided import Cascade, storable
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.run.shapes import Bool
from hydrasurgeon.statistics.probabilities import TINY, Scores, falling, of_labels
from hydrasurgeon.tasks.base import Certifying, Outputs, Part

MAX_LOSS = 0.01
"""Nats by which the calibrated NLL may rise on the rows that fit, unless --max-loss says more."""
LOST = 0.02
"""Fraction of the OOD samples flagged by the full model that the first stage may answer."""
FAMILIAR = 0.95
"""Fraction of validation samples that are not novel to the bag-of-words model."""

Both = tuple[Outputs, Outputs]
"""Outputs of the first stage and of the full model on the same samples."""


@storable()
def fit_cascade(
    state: State,
    first: Outputs,
    full: Outputs,
    promise: CalibrateOptions,
    *,
    ood: Sequence[Both] = (),
    words: bool = False,
    most_on: float | None = None,
) -> State:
    """Return the state with a cascade that is fitted by `gated` and certified on the other rows.

    `first` and `full` are the outputs of each stage on the validation data.
    """
    task, rows = state.task, split(full, promise.seed)
    most = MAX_LOSS if promise.max_loss is None else promise.max_loss
    fits = (first.at(rows.fitting), full.at(rows.fitting))
    state = gated(state, *fits, ood=ood, words=words, most=most, most_on=most_on)
    cascade = state.cascade
    fitted, *parts = (
        _answered(state, first.at(part), full.at(part)) for part in (rows.fitting, *rows.parts)
    )
    by = Certifying(fitted, parts, promise, {})
    thresholds = promised(task, by, len(full.logits))
    going = going_on(state.stages[True], cascade.threshold, first)
    share = float(going.astype(np.float64).mean())
    return _with(state, cascade.model_copy(update={**thresholds, "share_on": share}))


def _answered(state: State, first: Outputs, full: Outputs) -> Part:
    """Return samples with the answers of the stage that answers them."""
    stages = in_stages(state, first, full)
    familiar = np.ones(len(full.logits), dtype=bool)  # to the first all that it answers
    _, late = stages
    score = state.ood_score(late.logits, late.features)
    familiar[late.rows] = score <= state.record.ood.threshold
    return Part(full, answers_in_stages(state, stages), familiar)


def gated(
    state: State,
    first: Outputs,
    full: Outputs,
    *,
    ood: Sequence[Both] = (),
    words: bool = False,
    most: float = MAX_LOSS,
    most_on: float | None = None,
) -> State:
    """Return the state with the cascade that sends on the fewest rows and keeps the NLL.

    With `most_on`, send on as many rows as that fraction allows. OOD samples that the full model
    flags go on. With `words`, the first stage is a bag-of-words model, which has its own measure of
    novelty.
    """
    record = state.record
    constants = state.task.fitted(first)
    if record.labels is not None:  # what is answered is a question of costs, alike in both stages
        thresholds = {"thresholds": record.labels.thresholds}
        constants["labels"] = constants["labels"].model_copy(update=thresholds)
    novelty = floor = None
    if words and first.features is not None:
        novelty = float(np.quantile(first.features[:, 0, 0].astype(np.float64), FAMILIAR))
        floor = float(state.ood_score(full.logits, full.features).min())
    draft = Cascade(
        threshold=1.0,
        share_on=1.0,
        novelty=novelty,
        floor=floor,
        **{name: constants.get(name) for name in ("temperature", "bias", "labels")},
        conformal=record.conformal,
        abstain=record.abstain,
        limits=record.limits,
    )
    state = _with(state, draft)
    least = max((_flagging(state, *pair) for pair in ood), default=0.0)
    if most_on is None:
        threshold = max(_threshold(state, first, full, most), least)
    else:
        threshold = _threshold_of(state, first, most_on, least)
    return _with(state, draft.model_copy(update={"threshold": threshold}))


def _with(state: State, cascade: Cascade) -> State:
    return replace(state, record=state.record.model_copy(update={"cascade": cascade}))


def _threshold_of(state: State, first: Outputs, most: float, least: float) -> float:
    """Return the highest threshold that sends on at most a fraction `most` of the samples."""
    rule = state.stages[True]
    stays = ~going_on(rule, 0.0, first)
    certainty = np.sort(rule.certainty(first.logits)[stays])
    count = len(stays)
    may_go = int(count * most) - (count - len(certainty))
    needed = int(np.searchsorted(certainty, least))
    if may_go < needed:
        on = (count - len(certainty) + needed) / count
        raise SurgeryError(
            f"--words cascade: {100 * on:.0f} % of the rows must go on to the model, but --budget allows "
            f"{100 * most:.0f} %",
            hint="Give a larger --budget, or leave it out.",
        )
    if may_go >= len(certainty):
        return 1.0
    return float(certainty[max(0, may_go - 1)] + certainty[may_go]) / 2


def lost(state: State, first: Outputs, full: Outputs) -> float:
    """Return the fraction of samples that the full model flags and the first stage answers."""
    stays = ~going_on(state.stages[True], state.cascade.threshold, first)
    return float((_flagged(state, full) & stays).mean())


def _flagged(state: State, full: Outputs) -> Bool[ndarray, " sample"]:
    score = state.ood_score(full.logits, full.features)
    flagged: Bool[ndarray, " sample"] = score > state.record.ood.threshold
    return flagged


def _flagging(state: State, first: Outputs, full: Outputs) -> float:
    """Return the lowest threshold that sends on nearly all OOD samples that the full model flags."""
    rule = state.stages[True]
    stays = _flagged(state, full) & ~going_on(rule, 0.0, first)
    certainty = rule.certainty(first.logits)[stays]
    most = int(LOST * len(stays))
    if len(certainty) <= most:
        return 0.0
    least = float(-np.sort(-certainty)[most])
    return min(1.0, math.nextafter(least, 2))


def _threshold(state: State, first: Outputs, full: Outputs, most: float) -> float:
    """Return the lowest threshold that keeps the NLL.

    It lies halfway between two samples, so that rounding moves none of them.
    """
    rule = state.stages[True]
    rises = _losses(rule, first) - _losses(state, full)
    rises[going_on(rule, 0.0, first)] = 0.0  # they go on, however sure the first is of them
    certainty = rule.certainty(first.logits)
    order = falling(certainty)
    certainty = certainty[order]
    following = np.append(certainty[1:], 0.0)
    kept = (rises[order].cumsum(0) / len(rises) <= most) & (certainty > following)
    places = np.flatnonzero(kept)
    if not len(places):
        return 1.0
    last = int(places[-1])
    return float(certainty[last] + following[last]) / 2 if last + 1 < len(rises) else 0.0


def _losses(rule: State, outputs: Outputs) -> Scores:
    """Return the NLL of each sample; the mean over the labels if there are many."""
    chances = rule.task.chances(rule.answers(outputs.logits))
    truth = outputs.truth.reshape(-1).astype(np.int64)
    label_losses = -np.log(np.maximum(of_labels(chances, truth), TINY))
    return label_losses.reshape(len(outputs.logits), -1).mean(axis=1)
