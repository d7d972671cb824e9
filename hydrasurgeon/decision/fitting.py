"""Fit a decision state: one half of the validation data fits, the other certifies.

What is fitted (temperature, the choice of an OOD score) never meets the half on which thresholds are taken (conformal, abstention, share of ID data
flagged), so their promises hold. Before → after is cross-fitted: each half is measured with what
the other half gave.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.cascaded import with_seen
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import (
    FITTED,
    LOGITS,
    OF_CLASSIFIERS,
    ZERO_SHOT,
    Abstention,
    Decision,
    Ood,
)
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.statistics.abstain import fit_abstention, rows_needed, told
from hydrasurgeon.statistics.conformal import quantile
from hydrasurgeon.statistics.drawing import Drawing
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.probabilities import Scores
from hydrasurgeon.statistics.scores.evidence import Evidence, Gathering
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, check_score, fit

Chooser = Literal["option", "ood", "perturbed", "default"]
"""Who chose the OOD score."""
# Without --fit-data, the share of the fitting half that OOD scores are fitted on; the rest
# standardises and chooses.
SHARE = 0.8
LINEAR = 0.01
"""How far, as a fraction of the largest, logits may be from a linear function of the features:
bfloat16 rounds so.
"""
# Fewer validation samples than this tell nothing, whatever is promised.
FEWEST = 20
# So many keep the coverage that is reached within some 0.03 of what is promised.
ENOUGH = 1000
FEWEST_OOD = 20
"""OOD samples that an AUROC takes at least, to choose anything by."""
MOSTLY = 0.9
"""The fraction of familiar samples of which fewer answered are told."""
KNN = ("knn/50", "knn/10", "knn/5", "knn/1")
"""Neighbours that knn may ask for; of equals the first."""
PARTS = 4
"""Parts of the classes, each of which is OOD once; of fewer classes none is."""
SUREST = 1e-3
"""How near to 0 and 1 an AUROC counts: 1,000 samples tell no more."""


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


def check_count(count: int, promise: CalibrateOptions, problem: Problem = SINGLE) -> str | None:
    """Refuse what so few cannot promise even of a model that is never wrong; a note where more
    would be of use.
    """
    certifying = np.ones(len(halves(count, 0)[1]))
    quantile(certifying, promise.coverage)
    flag_threshold(certifying, promise.id_flagged)
    if promise.risk is not None and not problem.by_word:
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
    *,
    promise: CalibrateOptions,
    own: Outputs | None = None,
    score: str = "auto",
    classifiers: Sequence[tuple[ndarray, ndarray]] = (),
    evidence: Sequence[Evidence] | None = None,
    foreign: Sequence[Outputs] = (),
    leaves_out: Sequence[str] = ZERO_SHOT,
    problem: Problem = SINGLE,
    chosen_by: Chooser = "option",
    seed: int = 0,
) -> tuple[State, tuple[str, ...]]:
    """A state from the outputs on validation data, and notes; `foreign` are those on OOD or
    perturbed data, for `auto`, which `leaves_out` fitted scores that the model is not made for.

    `evidence` is what OOD scores are fitted on, a member each; without it a part of the fitting
    half, read by `classifiers`. OOD scores are fitted by the model's `own` outputs, if others answer.
    """
    if score != "auto":
        check_score(score)
    split = halves(len(val.logits), seed, val.groups)
    fitting, certifying = (val.at(rows) for rows in split)
    own_fitting, own_certifying = ((own or val).at(rows) for rows in split)
    held = own_fitting
    if evidence is None and val.features is not None:
        cut = int(SHARE * len(held.logits))
        evidence = evidence_of(held.at(slice(cut)), classifiers, seed)
        held = held.at(slice(cut, None))
    fit = problem.calibrated(fitting, certifying)
    dealt: Sequence[Outputs] = ()
    if (
        score in ("auto", "knn")
        and evidence is not None
        and problem.features
        and not problem.by_word
    ):
        dealt = dealt_out(own_fitting, classifiers, seed)
    kind, fitted, auroc, notes = chosen_score(
        score, evidence, held, foreign, dealt, leaves_out, problem
    )
    plan = problem.planned(fitting, fit.constants, promise)
    answers = problem.answers(certifying.logits, fit.constants)
    scores = own_certifying.scores(kind, fitted)
    threshold = flag_threshold(scores, promise.id_flagged)
    try:
        promised = problem.promised(answers, certifying, promise, plan, scores <= threshold)
    except DataError as error:
        raise DataError(
            error.message, hint=_with_rows(error.hint, promise, fit.accuracy)
        ) from error
    notes = [*notes, *problem.advice(answers, certifying, fit.accuracy or 0.0, promise)]
    if not problem.by_word:
        notes += _set_aside(promised.get("abstain"), promise, fit.accuracy)
    ood = Ood(
        score=kind,
        threshold=threshold,
        id_flagged=promise.id_flagged,
        chosen_by=chosen_by,
        auroc=auroc,
        **_sizes(fitted),
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
        nll=dict(fit.losses),
        fitted=len(fitting.logits),
        certified=len(certifying.logits),
    )
    state = State(record, fitted, problem)
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


def evidence_of(
    outputs: Outputs, classifiers: Sequence[tuple[ndarray, ndarray]], seed: int
) -> list[Evidence]:
    """What OOD scores are fitted on, a member each."""
    assert outputs.features is not None
    made = []
    for member, classifier in enumerate(classifiers):
        gathering = Gathering(*classifier, seed=seed)
        gathering.add(*outputs.of(member))
        made.append(gathering.evidence())
    return made


def _sizes(fitted: EnsembleScore | None) -> dict[str, Any]:
    """What the record says of a fit: its members, the width of the features, and how many are kept."""
    if fitted is None:
        return {}
    parts, first = FITTED[fitted.kind][1], fitted.fits[0]
    sizes = {
        dim: n
        for part, dims in parts.items()
        for dim, n in zip(dims.split(), first[part].shape, strict=True)
    }
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


def chosen_score(
    score: str,
    evidence: Sequence[Evidence] | None,
    held: Outputs,
    foreign: Sequence[Outputs],
    dealt: Sequence[Outputs],
    leaves_out: Sequence[str],
    problem: Problem,
) -> tuple[str, EnsembleScore | None, dict[str, float], list[str]]:
    """The score that was asked for, or the one that tells `foreign` from `held` best; of knn the k
    that does.
    """
    if score in LOGITS:
        return score, None, {}, []
    if score not in ("auto", "knn"):
        fitted = _fit(score, evidence, held)
        return score, fitted, {}, list(fitted.notes)
    notes: list[str] = []
    candidates: dict[str, EnsembleScore | None] = {
        kind: None
        for kind in problem.scores
        if score == "auto" and (kind != "mi" or held.logits.shape[1] > 1)
    }
    kinds = [kind for kind in FITTED if kind not in leaves_out and kind in problem.features]
    if "knn" in kinds:
        kinds[kinds.index("knn") : kinds.index("knn") + 1] = KNN
    for kind in () if evidence is None else KNN if score == "knn" else kinds:
        try:
            candidates[kind] = _fit(kind, evidence, held)
        except DataError as error:
            if score == "knn" and not candidates:
                raise
            notes.append(f"--ood-score {score} leaves out {error.message}")
    worth = without_ood(candidates, evidence, held, dealt)
    for kind, candidate in candidates.items():
        worth[kind] += [_auroc(kind, candidate, held, other) for other in foreign]
    best = best_score(worth)
    if tried := {kind: values for kind, values in worth.items() if kind in KNN}:
        neighbours = best_score(tried)
        worth = {
            kind.partition("/")[0]: values
            for kind, values in worth.items()
            if kind not in KNN or kind == neighbours
        }
    auroc = {kind: sum(values) / len(values) for kind, values in worth.items() if values}
    chosen = candidates[best]
    if score == "knn":
        auroc = {}
    return (
        best.partition("/")[0],
        chosen,
        auroc,
        [*notes, *(() if chosen is None else chosen.notes)],
    )


def without_ood(
    candidates: Mapping[str, EnsembleScore | None],
    evidence: Sequence[Evidence] | None,
    held: Outputs,
    dealt: Sequence[Outputs],
) -> dict[str, list[float]]:
    """The AUROC of each score where nothing is OOD but what `dealt_out` and `left_out` make."""
    worth = {
        kind: [_auroc(kind, fitted, held, other) for other in dealt]
        for kind, fitted in candidates.items()
    }
    if evidence is not None and held.logits.ndim == 3 and held.logits.shape[-1] >= PARTS:
        for kind, value in left_out([*candidates], evidence, held).items():
            worth[kind].append(value)
    return worth


def best_score(aurocs: Mapping[str, Sequence[float]]) -> str:
    """Of OOD scores with an AUROC for each OOD set, the one with the highest mean log-odds of them:
    0.99 is as much better than 0.95 as 0.83 is than 0.5.
    """
    odds = {
        kind: sum(math.log(value / (1 - value)) for value in _clipped(values)) / max(1, len(values))
        for kind, values in aurocs.items()
    }
    # Of equals the first: msp, for which nothing has to be stored.
    return max(odds, key=lambda kind: round(odds[kind], 6))


def _clipped(aurocs: Sequence[float]) -> list[float]:
    return [min(max(value, SUREST), 1 - SUREST) for value in aurocs]


def dealt_out(
    outputs: Outputs, classifiers: Sequence[tuple[ndarray, ndarray]], seed: int
) -> list[Outputs]:
    """Samples that never were: each feature is that of another sample, so that far from all data
    what goes together does not. None where no linear classifier gives the logits.
    """
    assert outputs.features is not None
    random = Drawing(seed).singles(outputs.features.shape)
    dealt = np.take_along_axis(outputs.features, random.argsort(axis=0, kind="stable"), axis=0)
    logits, others = (_linear(features, classifiers) for features in (outputs.features, dealt))
    if np.abs(logits - outputs.logits).max() > LINEAR * np.abs(logits).max():
        return []
    return [Outputs(others.astype(np.float32), dealt)]


def left_out(kinds: Sequence[str], evidence: Sequence[Evidence], held: Outputs) -> dict[str, float]:
    """The mean AUROC of scores where some classes, in turn, are OOD: nothing is fitted on these, and
    the classifier has no outputs for them.
    """
    classes = held.logits.shape[-1]
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for first in range(PARTS):
        kept = np.flatnonzero(np.arange(classes) % PARTS != first)
        places = np.full((classes,), -1)
        places[kept] = np.arange(len(kept))
        others = replace(held, logits=held.logits[..., kept])
        is_known = places[held.truth] >= 0
        if is_known.all() or not is_known.any():
            continue
        rest = [_among(each, kept, places) for each in evidence]
        for kind in kinds:
            with contextlib.suppress(DataError):
                score = None if kind in LOGITS else _fit(kind, rest, others.at(is_known))
                values = others.scores(kind, score)
                found[kind].append(_area(values[is_known], values[~is_known]))
    return {kind: sum(values) / len(values) if values else 0.5 for kind, values in found.items()}


def _among(evidence: Evidence, kept: ndarray, places: ndarray) -> Evidence:
    """Evidence of the classes that are kept, which have other places then."""
    labels = places[evidence.labels]
    rows = labels >= 0
    gathering = Gathering(evidence.weight[kept], evidence.bias[kept])
    gathering.add(evidence.features[rows], evidence.logits[rows][:, kept], labels[rows])
    return gathering.evidence()


def _linear(features: ndarray, classifiers: Sequence[tuple[ndarray, ndarray]]) -> ndarray:
    """Every member's logits."""
    each = [
        features[:, member].astype(np.float64) @ weight.astype(np.float64).T
        + bias.astype(np.float64)
        for member, (weight, bias) in enumerate(classifiers)
    ]
    return np.stack(each, axis=1)


def _fit(kind: str, evidence: Sequence[Evidence] | None, held: Outputs) -> EnsembleScore:
    assert evidence is not None
    assert held.features is not None
    return fit(kind, evidence, (held.features, held.logits))


def _auroc(kind: str, fitted: EnsembleScore | None, held: Outputs, other: Outputs) -> float:
    """P(an OOD sample scores above one held back), ties counting half."""
    return _area(held.scores(kind, fitted), other.scores(kind, fitted))


def _area(inside: Scores, outside: Scores) -> float:
    area = auroc(inside, outside)
    assert area is not None
    return area


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
    if val.features is not None and not problem.by_word:
        linear = classifiers_of(fit or own)
    lacking = FITTED if val.features is None else OF_CLASSIFIERS if linear is None else ()
    if score in lacking:
        what = (
            "predictions without features"
            if val.features is None
            else "logits that no linear classifier made"
        )
        raise DataError(
            f"--ood-score {score}: cannot be fitted to {what}", hint="Give another --ood-score."
        )
    chosen_by: Literal["option", "ood", "default"] = (
        "option" if score != "auto" else "ood" if foreign else "default"
    )
    notes = []
    if chosen_by == "default":
        # On average over the tasks of benchmarks/decision.py the best, and nowhere worse than msp
        # by a point.
        usual = (kind for kind in ("vim", "mds", "msp") if kind not in lacking)
        score = next(kind for kind in usual if kind in (*problem.features, *problem.scores))
        notes.append(f"--ood-score auto chooses by --ood-predictions; without them it is {score}")
    if linear is None and val.features is not None:
        _, members, width = val.features.shape
        classes = 1 if problem.by_word else val.logits.shape[-1]
        linear = [(np.zeros((classes, width)), np.zeros(classes))] * members
    state, more = fit_state(
        val,
        own=own,
        promise=promise,
        score=score,
        classifiers=linear or (),
        evidence=None if fit is None or linear is None else evidence_of(fit, linear, promise.seed),
        foreign=foreign,
        leaves_out=(*ZERO_SHOT, *lacking),
        problem=problem,
        chosen_by=chosen_by,
        seed=promise.seed,
    )
    return state, (*notes, *more)


def classifiers_of(outputs: Outputs) -> list[tuple[ndarray, ndarray]] | None:
    """Each member's weight and bias by least squares; None where they do not give the logits of
    rows left aside.
    """
    assert outputs.features is not None
    cut, made = int(SHARE * len(outputs.logits)), []
    for member in range(outputs.logits.shape[1]):
        x, z = (
            outputs.features[:, member].astype(np.float64),
            outputs.logits[:, member].astype(np.float64),
        )
        x = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
        solution = np.linalg.lstsq(x[:cut], z[:cut])[0]
        if np.abs(x[cut:] @ solution - z[cut:]).max() > LINEAR * np.abs(z).max():
            return None
        made.append((solution[:-1].T, solution[-1]))
    return made
