"""Fit a decision state: one half of the validation data fits, the other certifies.

What is fitted (temperature, the choice of an OOD score) never meets the half on which thresholds are taken (conformal, abstention, share of ID data
flagged), so their promises hold. Before → after is cross-fitted: each half is measured with what
the other half gave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.ood_score import Grounds, choose, classifiers_of, evidence_of
from hydrasurgeon.decision.state import State, with_seen
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import (
    FITTED,
    LARGEST,
    OF_CLASSIFIERS,
    Abstention,
    Decision,
    Ood,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Certifying, Outputs, Problem
from hydrasurgeon.statistics.abstain import fit_abstention, rows_needed, told
from hydrasurgeon.statistics.conformal import coverage_that_helps, quantile
from hydrasurgeon.statistics.drawing import Drawing
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, check_score

# Fewer validation samples than this tell nothing, whatever is promised.
FEWEST = 20
# So many keep the coverage that is reached within some 0.03 of what is promised.
ENOUGH = 1000
FEWEST_OOD = 20
"""OOD samples that an AUROC takes at least, to choose anything by."""
MOSTLY = 0.9
"""The fraction of familiar samples of which fewer answered are told."""


def halves(count: int, seed: int, groups: ndarray | None = None) -> tuple[ndarray, ndarray]:
    """Two disjoint halves of the rows, drawn at random and in no order: a part of one is as random.
    Where there are groups enough, each is half of the groups.
    """
    if count < FEWEST:
        what = (
            f"{count} validation samples: half of them fits and half certifies, which takes at "
            f"least {FEWEST}"
        )
        raise DataError(what, hint="Give more --data.")
    random = Drawing(seed)
    if groups is not None and len(numbers := np.unique(groups)) >= FEWEST:
        first = numbers[random.order(len(numbers))[: len(numbers) // 2]]
        order = random.order(count)
        fits = np.isin(groups[order], first)
        return order[fits], order[~fits]
    order = random.order(count)
    return order[: count // 2], order[count // 2 :]


def split(outputs: Outputs, seed: int) -> tuple[ndarray, ndarray]:
    """Return the rows that fit and those that certify, in no order: as the outputs say, else halves."""
    if outputs.certifies is None:
        return halves(len(outputs.logits), seed, outputs.groups)
    order = Drawing(seed).order(len(outputs.logits))
    certifies = outputs.certifies[order]
    return order[~certifies], order[certifies]


def check_count(
    count: int,
    promise: CalibrateOptions,
    problem: Problem = SINGLE,
    *,
    fitting: int | None = None,
) -> str | None:
    """Refuse what so few cannot promise even of a model that is never wrong; a note where more
    would be of use. Without `fitting`, the number of rows that fit, half of them do.
    """
    if fitting is not None and fitting < FEWEST // 2:
        message = f"{fitting} samples are too few to fit anything; {FEWEST // 2} are needed"
        raise DataError(message, hint="Give more --data.")
    certifying = np.ones(len(halves(count, 0)[1]) if fitting is None else count - fitting)
    quantile(certifying, promise.coverage)
    flag_threshold(certifying, promise.id_flagged)
    if promise.risk is not None and "answer" in problem.columns:
        familiar = certifying[: round(len(certifying) * (1 - promise.id_flagged))]
        fit_abstention(familiar, familiar.astype(bool), risk=promise.risk)
    if count >= ENOUGH:
        return None
    spread = 2 * math.sqrt(promise.coverage * (1 - promise.coverage) / len(certifying))
    halved = f"calibrated on {count} samples, of which {len(certifying)} certify"
    reached = f"the coverage that is reached may lie {spread:.2f} from {promise.coverage:g}"
    return (
        f"{halved}: {reached}, and the choice of OOD score is uncertain; {ENOUGH:,} or more "
        "are better"
    )


def too_few_ood(name: str, count: int) -> str | None:
    """A note on OOD data that choose nothing."""
    if count >= FEWEST_OOD:
        return None
    return f"{name}: {count} OOD samples choose nothing; {FEWEST_OOD} or more are needed"


def fit_state(
    val: Outputs,
    promise: CalibrateOptions,
    grounds: Grounds,
    *,
    own: Outputs | None = None,
    problem: Problem = SINGLE,
) -> tuple[State, tuple[str, ...]]:
    """A state from the outputs on validation data, and notes; the OOD score sees the model's
    `own` outputs, if others answer.
    """
    score = promise.ood_score
    if score != "auto":
        check_score(score)
    parts = split(val, promise.seed)
    fitting, certifying = (val.at(rows) for rows in parts)
    own_fitting, own_certifying = ((own or val).at(rows) for rows in parts)
    fit = problem.calibrated(fitting, certifying)
    choice = choose(score, own_fitting, grounds, problem=problem, seed=promise.seed)
    answers = problem.answers(certifying.logits, fit.constants)
    scores = own_certifying.scores(choice.kind, choice.fitted)
    threshold = flag_threshold(scores, promise.id_flagged)
    try:
        promised = problem.promised(
            Certifying(certifying, answers, scores <= threshold, promise, fit)
        )
    except DataError as error:
        raise DataError(
            error.message, hint=_with_rows(error.hint, promise, fit.accuracy)
        ) from error
    notes = list(choice.notes)
    if {"label", "set"} <= problem.columns.keys() and (fit.accuracy or 0.0) > promise.coverage:
        helps = coverage_that_helps(answers, certifying.truth, promise.coverage)
        how = "more samples would have to certify a higher --coverage"
        if helps is not None:
            how = f"from --coverage {helps:g} on some do"
        if helps != promise.coverage:
            notes.append(
                f"accuracy {fit.accuracy:.3f} exceeds --coverage {promise.coverage:g}: hardly any set "
                f"holds two labels, so that sets say no more than the answer; {how}"
            )
    if "answer" in problem.columns:
        notes += _set_aside(promised.get("abstain"), promise, fit.accuracy)
    ood = Ood(
        score=choice.kind,
        threshold=threshold,
        id_flagged=promise.id_flagged,
        chosen_by=choice.chosen_by,
        auroc=dict(choice.auroc),
        **_sizes(choice.fitted),
    )
    if "group" in promised and val.groups is not None and promised["group"] is None:
        count = len(np.unique(val.groups))
        notes.append(
            f"nothing is promised of groups: half of these {count} certify no risk of "
            f"{promise.risk:g} for the first row of each; give more, or a larger --risk"
        )
    record = Decision(
        **{"temperature": 1.0, **fit.constants},
        ood=ood,
        **promised,
        accuracy=fit.accuracy,
        nll={name: min(loss, LARGEST) for name, loss in fit.losses.items()},
        fitted=len(fitting.logits),
        certified=len(certifying.logits),
    )
    state = State(record, choice.fitted, problem)
    return with_seen(state, val.logits, val.features), tuple(dict.fromkeys(notes))


def _set_aside(
    abstain: Abstention | None, promise: CalibrateOptions, accuracy: float | None
) -> list[str]:
    """A note where more than a tenth is set aside."""
    if abstain is None or abstain.coverage >= MOSTLY * (1 - promise.id_flagged):
        return []
    share = 100 * (1 - abstain.coverage)
    return [
        f"--risk {promise.risk:g} sets aside {share:.0f} % of the samples. {_rows(promise, accuracy)}"
    ]


def _rows(promise: CalibrateOptions, accuracy: float | None) -> str:
    """How many samples it takes to set none aside."""
    assert promise.risk is not None
    needed = rows_needed(promise.risk, accuracy or 0.0, promise.id_flagged)
    at = f"At accuracy {accuracy or 0.0:.3f}"
    if needed is None:
        return f"{at} no number of samples answers all: as much is wrong as may be, or more."
    return f"{at} it takes about {told(needed)} samples in all to set none aside."


def _with_rows(hint: str | None, promise: CalibrateOptions, accuracy: float | None) -> str | None:
    if promise.risk is None or accuracy is None:
        return hint
    return f"{hint or ''} {_rows(promise, accuracy)}".strip()


def _sizes(fitted: EnsembleScore | None) -> dict[str, Any]:
    """What the record says of a fit: its members, the width of the features, and how many are kept."""
    if fitted is None:
        return {}
    sizes = fitted.sizes
    made = {"width": sizes["width"], "size": sizes.get("size"), "members": fitted.standards}
    return made | ({"neighbours": fitted.neighbours} if fitted.kind == "knn" else {})


def flag_threshold(scores: ndarray, flagged: float) -> float:
    """Above it lies, of samples like these, a share of at most `flagged`, on average over
    calibrations.
    """
    try:
        return quantile(scores, 1 - flagged)
    except DataError as error:
        what = (
            f"{len(scores)} samples are too few for a threshold that flags a fraction of "
            f"{flagged:g}"
        )
        hint = (
            f"It takes at least {math.ceil(1 / flagged) - 1} of them (half of the validation "
            "data certifies)."
        )
        raise DataError(what, hint=hint) from error


def fit_alone(
    val: Outputs,
    own: Outputs,
    fit: Outputs | None,
    foreign: Sequence[Outputs],
    promise: CalibrateOptions,
    problem: Problem = SINGLE,
) -> tuple[State, tuple[str, ...]]:
    """A state of any model, from its predictions on validation data (its `own`, and those that
    answer), on what OOD scores are fitted on, and on OOD data; and notes.
    """
    if val.features is None and not problem.scores:
        raise DataError(
            f"predictions of a {problem.name} model require features",
            hint="Its OOD score is fitted to them: give what its last layer reads, or its inputs.",
        )
    score, linear = promise.ood_score, None
    if val.features is not None and own.logits.ndim == 3:
        linear = classifiers_of(fit or own)
    lacks = "predictions without features" if val.features is None else ""
    if not lacks and linear is None and score in OF_CLASSIFIERS:
        lacks = "logits that no linear classifier made"
    if lacks and score in FITTED:
        what = f"--ood-score {score}: cannot be fitted to {lacks}"
        raise DataError(what, hint="Give another --ood-score.")
    evidence = None
    if fit is not None and val.features is not None:
        evidence = evidence_of(fit, linear, promise.seed)
    grounds = Grounds(linear, evidence, foreign)
    return fit_state(val, promise, grounds, own=own, problem=problem)
