"""Fit a decision state: a third of the validation data fits, the other two thirds certify.

What is fitted (temperature, the choice of an OOD score, the order in which thresholds are tested)
never meets the rows on which thresholds are taken (conformal, abstention, fraction of ID data flagged),
so their promises hold. Before → after is cross-fitted: each part is measured with what the other one
gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.ood_score import (
    Grounds,
    choose,
    classifiers_of,
    evidence_of,
    scores_by_others,
)
from hydrasurgeon.decision.promising import check_risk, promised, set_aside, with_copies
from hydrasurgeon.decision.split import (
    FEWEST,
    certified,
    check_crossed,
    check_enough,
    copies,
    split,
    unsplit,
)
from hydrasurgeon.decision.state import State, with_seen
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import (
    FITTED,
    LARGEST,
    OF_CLASSIFIERS,
    DecisionRecord,
    Ood,
    storable,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.conformal import coverage_that_helps, quantile
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, check_score
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Certifying, Outputs, Part, Task
from hydrasurgeon.tasks.unfit import LITTLE_LEARNT

# So many keep the coverage that is reached within some 0.03 of what is promised.
ENOUGH = 1000
FEWEST_OOD = 20
"""OOD samples that an AUROC takes at least, to choose anything by."""


def halves(count: int, seed: int, groups: ndarray | None = None) -> tuple[ndarray, ndarray]:
    """Draw two disjoint halves of the rows, in no order: a part of one is as random. Where there are
    groups enough, each has half of the groups. `build` judges each by what the other chose.
    """
    check_crossed(count)
    random = np.random.default_rng(seed)
    if groups is not None and len(numbers := np.unique(groups)) >= FEWEST:
        some = numbers[random.permutation(len(numbers))[: len(numbers) // 2]]
        order = random.permutation(count)
        is_first = np.isin(groups[order], some)
        return order[is_first], order[~is_first]
    order = random.permutation(count)
    return order[: count // 2], order[count // 2 :]


def check_count(
    count: int,
    promise: CalibrateOptions,
    task: Task = SINGLE,
    *,
    fitting: int | None = None,
) -> str | None:
    """Refuse what so many rows, copies aside, cannot promise even of a model that is never wrong; a
    note where more would be of use. Without `fitting`, the number of rows that fit, a third does.
    """
    if fitting is None:
        check_enough(count)
    elif fitting < FEWEST // 2:
        message = (
            f"{fitting} rows are too few to fit a decision state; at least {FEWEST // 2} are needed"
        )
        raise DataError(message, hint="Give more --data.")
    certifying = np.ones(certified(count) if fitting is None else count - fitting)
    quantile(certifying, promise.coverage)
    flag_threshold([certifying], promise.id_flagged)
    if promise.risk is not None and "answer" in task.columns:
        check_risk(count, promise, certifying=len(certifying))
    if count >= ENOUGH:
        return None
    spread = 2 * math.sqrt(promise.coverage * (1 - promise.coverage) / len(certifying))
    return (
        f"{count:,} validation rows are few ({len(certifying):,} certify): the true coverage may differ "
        f"from {promise.coverage:g} by {spread:.2f}, and the choice of OOD score is uncertain; give "
        f"{ENOUGH:,} or more"
    )


def too_few_ood(name: str, count: int) -> str | None:
    """Return a note if OOD data are too few to choose anything."""
    if count >= FEWEST_OOD:
        return None
    return f"{name}: {count} OOD samples are too few and are ignored; give at least {FEWEST_OOD}"


@storable()
def fit_state(
    val: Outputs,
    promise: CalibrateOptions,
    grounds: Grounds,
    *,
    model: Outputs | None = None,
    task: Task = SINGLE,
) -> tuple[State, tuple[str, ...]]:
    """Fit a state to the outputs on validation data; return it with notes.

    The OOD score is fitted to the `model` outputs, where `val` are the answers of others.
    """
    score = promise.ood_score
    if score != "auto":
        check_score(score)
    rows = (unsplit if promise.cross else split)(val, promise.seed)
    fitting, certifying = val.at(rows.fitting), val.at(rows.certifying)
    fit = task.calibrated(fitting, certifying)
    notes = list[str]()
    try:
        task.check_labels(fitting, certifying, fit)
    except DataError:
        if not promise.cross:  # else the model has learnt the very same labels
            raise
        notes.append(LITTLE_LEARNT)
    model = model or val
    choice = choose(score, model.at(rows.fitting), grounds, task=task, seed=promise.seed)
    if promise.cross and choice.fitted is not None:
        every_score = scores_by_others(choice, model, grounds.classifiers, promise.seed)
    else:
        every_score = model.scores(choice.kind, choice.fitted)
    scores = [every_score[part] for part in (rows.fitting, *rows.parts)]
    threshold = flag_threshold(scores[1:], promise.id_flagged, estimated=promise.cross)
    fitted, *parts = (
        Part(val.at(part), task.answers(val.logits[part], fit.constants), score <= threshold)
        for part, score in zip((rows.fitting, *rows.parts), scores, strict=True)
    )
    by = Certifying(fitted, parts, promise, fit.constants)
    thresholds = promised(task, by, len(val.logits))
    answers = parts[0].answers
    notes += choice.notes
    if {"label", "set"} <= task.columns.keys() and (fit.accuracy or 0.0) > promise.coverage:
        helps = coverage_that_helps(answers, certifying.truth, promise.coverage)
        how = "a higher --coverage needs more validation rows"
        if helps is not None:
            how = f"--coverage {helps:g} gives larger sets where the model is unsure"
        if helps != promise.coverage:
            notes.append(
                f"almost every prediction set holds one label, because the likeliest label is right more "
                f"often ({fit.accuracy:.1%}) than --coverage {promise.coverage:g} asks of a set; {how}"
            )
    abstain = thresholds.get("abstain")
    if abstain is not None and "answer" in task.columns:
        notes += filter(None, [set_aside(task, by, abstain)])
    if len(parts) > 1:
        notes.append(with_copies(task, by, thresholds, copies(val), len(val.logits)))
    ood = Ood(
        score=choice.kind,
        threshold=threshold,
        id_flagged=promise.id_flagged,
        chosen_by=choice.chosen_by,
        auroc=dict(choice.auroc),
        **_sizes(choice.fitted),
    )
    record = DecisionRecord(
        **{"temperature": 1.0, **fit.constants},
        ood=ood,
        **thresholds,
        accuracy=fit.accuracy,
        nll={name: min(loss, LARGEST) for name, loss in fit.losses.items()},
        fitted=len(rows.fitting),
        certified=len(rows.certifying),
        estimated=promise.cross or None,
    )
    state = State(record, choice.fitted, task)
    return with_seen(state, val.logits, val.features), tuple(dict.fromkeys(notes))


def _sizes(fitted: EnsembleScore | None) -> dict[str, Any]:
    """Return the sizes of a fit for the record: members, width of the features, kept rows."""
    if fitted is None:
        return {}
    sizes = fitted.sizes
    kept_sizes = {"width": sizes["width"], "size": sizes.get("size"), "members": fitted.standards}
    return kept_sizes | ({"neighbours": fitted.neighbours} if fitted.kind == "knn" else {})


def flag_threshold(parts: Sequence[ndarray], flagged: float, *, estimated: bool = False) -> float:
    """Take the OOD score above which, on average over calibrations, at most such a fraction of
    samples lies that are like those of any part. Where too few samples are known for that, an
    estimate is the highest score.
    """
    if estimated and any(len(scores) < 1 / flagged - 1 for scores in parts):
        return float(max(scores.max() for scores in parts))
    try:
        return max(quantile(scores, 1 - flagged) for scores in parts)
    except DataError as error:
        count = min(len(scores) for scores in parts)
        raise DataError(
            f"{count} rows are too few for --id-flagged {flagged:g}",
            hint=(
                f"Give at least {math.ceil(1 / flagged) - 1} rows that certify; two thirds of the "
                "validation rows do."
            ),
        ) from error


def fit_alone(
    val: Outputs,
    model: Outputs,
    fit: Outputs | None,
    ood: Sequence[Outputs],
    promise: CalibrateOptions,
    task: Task = SINGLE,
) -> tuple[State, tuple[str, ...]]:
    """Fit a state of any model to predictions; return it with notes.

    `val` are the answers on validation data, `model` the model's own outputs there; OOD scores are
    fitted to `fit` and compared on `ood`.
    """
    if val.features is None and not task.scores:
        raise DataError(
            f"predictions of a {task.name} model require features",
            hint="Its OOD score is fitted to features: give the inputs of its last layer, or of the model.",
        )
    score, linear = promise.ood_score, None
    if val.features is not None and model.logits.ndim == 3:
        linear = classifiers_of(fit or model)
    lacks = "predictions without features" if val.features is None else ""
    if not lacks and linear is None and score in OF_CLASSIFIERS:
        lacks = "logits that no linear classifier made"
    if lacks and score in FITTED:
        message = f"--ood-score {score}: cannot be fitted to {lacks}"
        raise DataError(message, hint="Give another --ood-score.")
    evidence = None
    if fit is not None and val.features is not None:
        evidence = evidence_of(fit, linear, promise.seed)
    grounds = Grounds(linear, evidence, ood)
    return fit_state(val, promise, grounds, model=model, task=task)
