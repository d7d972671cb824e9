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
from hydrasurgeon.problems.base import Certifying, Outputs, Part
from hydrasurgeon.run.shapes import Bool
from hydrasurgeon.statistics.probabilities import TINY, Scores, falling, of_labels

MAX_LOSS = 0.01
"""Nats by which the calibrated NLL may rise on the rows that fit, unless --max-loss says more."""
LOST = 0.02
"""Of OOD samples, the fraction that the whole model flags and a first reader may answer."""
FAMILIAR = 0.95
"""Of validation samples, the fraction that is not novel to a reader of words."""

Both = tuple[Outputs, Outputs]
"""What a first reader says of some samples, and what the whole model says."""


@storable()
def fit_cascade(
    state: State,
    first: Outputs,
    whole: Outputs,
    promise: CalibrateOptions,
    *,
    foreign: Sequence[Both] = (),
    words: bool = False,
    most_on: float | None = None,
) -> State:
    """The state with the cascade that `gated` makes on the rows that fit, whose promises the others
    certify; `first` and `whole` are what each says of the validation data.
    """
    problem, rows = state.problem, split(whole, promise.seed)
    most = MAX_LOSS if promise.max_loss is None else promise.max_loss
    fits = (first.at(rows.fitting), whole.at(rows.fitting))
    state = gated(state, *fits, foreign=foreign, words=words, most=most, most_on=most_on)
    cascade = state.cascade
    fitted, *parts = (
        _answered(state, first.at(part), whole.at(part)) for part in (rows.fitting, *rows.parts)
    )
    by = Certifying(fitted, parts, promise, {})
    thresholds = promised(problem, by, len(whole.logits))
    going = going_on(state.stages[True], cascade.threshold, first)
    share = float(going.astype(np.float64).mean())
    return _with(state, cascade.model_copy(update={**thresholds, "share_on": share}))


def _answered(state: State, first: Outputs, whole: Outputs) -> Part:
    """Samples as both stages answer them."""
    stages = in_stages(state, first, whole)
    familiar = np.ones(len(whole.logits), dtype=bool)  # to the first all that it answers
    _, late = stages
    score = state.ood_score(late.logits, late.features)
    familiar[late.rows] = score <= state.record.ood.threshold
    return Part(whole, answers_in_stages(state, stages), familiar)


def gated(
    state: State,
    first: Outputs,
    whole: Outputs,
    *,
    foreign: Sequence[Both] = (),
    words: bool = False,
    most: float = MAX_LOSS,
    most_on: float | None = None,
) -> State:
    """The state with the cascade that lets the fewest rows go on, of all that keep the NLL; or, of
    at most the fraction `most_on`, as many as may. OOD samples that the whole model flags go on.
    `words` say themselves what is novel to them.
    """
    record = state.record
    constants = state.problem.fitted(first)
    if record.labels is not None:  # what is answered is a question of costs, alike in both stages
        thresholds = {"thresholds": record.labels.thresholds}
        constants["labels"] = constants["labels"].model_copy(update=thresholds)
    novelty = floor = None
    if words and first.features is not None:
        novelty = float(np.quantile(first.features[:, 0, 0].astype(np.float64), FAMILIAR))
        floor = float(state.ood_score(whole.logits, whole.features).min())
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
    least = max((_flagging(state, *both) for both in foreign), default=0.0)
    if most_on is None:
        threshold = max(_threshold(state, first, whole, most), least)
    else:
        threshold = _threshold_of(state, first, most_on, least)
    return _with(state, draft.model_copy(update={"threshold": threshold}))


def _with(state: State, cascade: Cascade) -> State:
    return replace(state, record=state.record.model_copy(update={"cascade": cascade}))


def _threshold_of(state: State, first: Outputs, most: float, least: float) -> float:
    """The highest that lets at most such a fraction of the samples go on."""
    rule = state.stages[True]
    stays = ~going_on(rule, 0.0, first)
    certainty = np.sort(rule.certainty(first.logits)[stays])
    count = len(stays)
    may_go = int(count * most) - (count - len(certainty))
    needed = int(np.searchsorted(certainty, least))
    if may_go < needed:
        on = (count - len(certainty) + needed) / count
        raise SurgeryError(
            f"words first: {100 * on:.0f} % of samples go on, for words do not know them or must "
            f"not answer what is OOD, and the budget pays for {100 * most:.0f} %",
            hint="Allow more, or leave out --budget.",
        )
    if may_go >= len(certainty):
        return 1.0
    return float(certainty[max(0, may_go - 1)] + certainty[may_go]) / 2


def lost(state: State, first: Outputs, whole: Outputs) -> float:
    """The fraction of samples that the whole model flags and the first reader answers."""
    stays = ~going_on(state.stages[True], state.cascade.threshold, first)
    return float((_flagged(state, whole) & stays).mean())


def _flagged(state: State, whole: Outputs) -> Bool[ndarray, " sample"]:
    score = state.ood_score(whole.logits, whole.features)
    flagged: Bool[ndarray, " sample"] = score > state.record.ood.threshold
    return flagged


def _flagging(state: State, first: Outputs, whole: Outputs) -> float:
    """The lowest that lets nearly all OOD samples go on which the whole model flags."""
    rule = state.stages[True]
    stays = _flagged(state, whole) & ~going_on(rule, 0.0, first)
    certainty = rule.certainty(first.logits)[stays]
    most = int(LOST * len(stays))
    if len(certainty) <= most:
        return 0.0
    least = float(-np.sort(-certainty)[most])
    return min(1.0, math.nextafter(least, 2))


def _threshold(state: State, first: Outputs, whole: Outputs, most: float) -> float:
    """The lowest that keeps the NLL: halfway between two samples, so that rounding moves none."""
    rule = state.stages[True]
    rises = _losses(rule, first) - _losses(state, whole)
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
    """The NLL of each sample, of many labels their mean."""
    chances = rule.problem.chances(rule.answers(outputs.logits))
    truth = outputs.truth.reshape(-1).astype(np.int64)
    each = -np.log(np.maximum(of_labels(chances, truth), TINY))
    return each.reshape(len(outputs.logits), -1).mean(axis=1)
