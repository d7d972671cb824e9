"""Choice of the OOD score, for `calibrate`, for predictions and for `build`.

A score that is named is taken, of `knn` the best number of neighbours. `auto` takes the score with
the highest mean log-odds of its AUROCs, of samples held back against each of

    OOD sets            where they are given
    perturbed data      which `calibrate` makes of VAL: OOD data of one kind may be too easy
    features dealt out  each from another sample, where a linear classifier gives the logits
    classes left out    a quarter of them in turn, of four or more, where something is fitted

Without OOD and perturbed data it takes the first of `USUAL` that the outputs allow.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.split import first_rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED, LOGITS, OF_CLASSIFIERS, ZERO_SHOT
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.probabilities import Scores
from hydrasurgeon.statistics.scores.evidence import Evidence, Gathering
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, fit
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Outputs, Task

Chooser = Literal["option", "ood", "perturbed", "default"]
Classifier = tuple[ndarray, ndarray]
"""One member's weight and bias."""
USUAL = ("vim", "mds", "msp")
"""On average over the tasks of benchmarks/decision.py the first is best, and nowhere worse than msp
by a point.
"""
# Without --fit-data, the fraction of the fitting half that OOD scores are fitted on; the rest
# standardises and chooses.
SHARE = 0.8
FOLDS = 5
"""Folds whose rows are scored by a fit to the others: to as many rows as `SHARE` is of all."""
LINEAR = 0.01
"""Largest error of a linear classifier, as a fraction of the largest logit: bfloat16 rounds so."""
KNN = ("knn/50", "knn/10", "knn/5", "knn/1")
"""Neighbours that knn may ask for; of equals the first."""
PARTS = 4
"""Parts of the classes, each of which is OOD once; of fewer classes none is."""
SUREST = 1e-3
"""Distance from 0 and 1 to which AUROCs are clipped: 1,000 samples tell no more."""

MOST_GATHERED = 4_000
"""Rows of --fit-data that OOD scores are fitted on at most, chosen by a hash of their content."""


@dataclass(frozen=True)
class Grounds:
    """Data that an OOD score is fitted on and chosen by."""

    classifiers: Sequence[Classifier] | None = ()
    """Classifiers of all members; None if no linear classifier gives the logits."""
    evidence: Sequence[Evidence] | None = None
    """Fit data of all members; if None, a part of the held-out samples is used."""
    ood: Sequence[Outputs] = ()
    perturbed: Sequence[Outputs] = ()
    leaves_out: Sequence[str] = ZERO_SHOT
    """Fitted scores that the model is not made for."""

    @property
    def chooser(self) -> Chooser:
        """Kind of data that `auto` chooses by."""
        if self.ood:
            return "ood"
        return "perturbed" if self.perturbed else "default"


@dataclass(frozen=True)
class ScoreChoice:
    """A score, and what its choice rests on."""

    kind: str
    fitted: EnsembleScore | None = None
    chosen_by: Chooser = "option"
    auroc: Mapping[str, float] = field(default_factory=dict)
    """AUROC of each candidate, where `auto` compared some: that of its mean log-odds."""
    notes: tuple[str, ...] = ()


def choose(
    score: str, held: Outputs, grounds: Grounds, *, task: Task = SINGLE, seed: int = 0
) -> ScoreChoice:
    """Fit the named OOD score, or for `auto` choose one."""
    if score in LOGITS:
        return ScoreChoice(score)
    auto, linear, notes = score == "auto", grounds.classifiers, list[str]()
    lacking = FITTED if held.features is None else OF_CLASSIFIERS if linear is None else ()
    possible = {*task.features}.difference(grounds.leaves_out, lacking)
    choice = ScoreChoice(score, chosen_by=grounds.chooser if auto else "option")
    if choice.chosen_by == "default":
        score = next(kind for kind in USUAL if kind in {*possible, *task.scores})
        notes = [
            f"--ood-score auto took {score}, as there are no --ood-predictions to compare scores on"
        ]
    if score in LOGITS:
        return replace(choice, kind=score, notes=tuple(notes))
    full_held, evidence = held, grounds.evidence
    if evidence is None and held.features is not None:
        cut = int(SHARE * len(held.logits))
        evidence = evidence_of(held.at(slice(cut)), linear, seed)
        held = held.at(slice(cut, None))
    if score not in ("auto", "knn"):
        only = _fit(score, evidence, held)
        return replace(choice, kind=score, fitted=only, notes=(*notes, *only.notes))
    kinds = [near for kind in FITTED for near in (KNN if kind == "knn" else (kind,))]
    candidates: dict[str, EnsembleScore | None] = {}
    why = defaultdict[str, list[str]](list)
    refused: DataError | None = None
    if auto:
        several = held.logits.shape[1] > 1
        candidates = dict.fromkeys(kind for kind in task.scores if several or kind != "mi")
    for kind in kinds:
        if kind.partition("/")[0] not in (possible if auto else (score,)):
            continue
        try:
            candidates[kind] = _fit(kind, evidence, held)
        except DataError as error:
            refused = error
            why[error.message.partition(": ")[2]].append(kind)
    if refused is not None and not candidates:
        raise refused
    notes += [
        f"--ood-score {score} leaves out {', '.join(left)}: {reason}"
        for reason, left in why.items()
    ]
    sets = [*grounds.ood, *grounds.perturbed]
    if linear and evidence is not None and full_held.logits.ndim == 3:
        sets += dealt_out(full_held, linear, seed)
    worth = {
        kind: [_auroc(kind, fitted, held, other) for other in sets]
        for kind, fitted in candidates.items()
    }
    if evidence is not None and held.logits.ndim == 3 and held.logits.shape[-1] >= PARTS:
        for kind, value in left_out([*candidates], evidence, held).items():
            worth[kind].append(value)
    best = best_score(worth)
    tried = {kind: worth[kind] for kind in KNN if kind in worth}
    if tried:  # the best number of neighbours stands for knn
        keep = best_score(tried)
        worth = {k: values for k, values in worth.items() if k == keep or k not in tried}
    means: dict[str, float] = {}
    if auto:
        means = {
            k.partition("/")[0]: float(1 / (1 + np.exp(-mean_odds(v))))
            for k, v in worth.items()
            if v
        }
    fitted, kind = candidates[best], best.partition("/")[0]
    notes += () if fitted is None else fitted.notes
    return replace(choice, kind=kind, fitted=fitted, auroc=means, notes=tuple(notes))


def scores_by_others(
    choice: ScoreChoice, outputs: Outputs, classifiers: Sequence[Classifier] | None, seed: int
) -> Scores:
    """Score each row by a fit to other rows, as many as `choose` fitted the score to. Copies, and rows
    of one group, stand on the same side.
    """
    count = len(outputs.logits)
    numbers = outputs.inputs if outputs.groups is None else outputs.groups
    units = np.arange(count) if numbers is None else first_rows(numbers)
    folds = np.random.default_rng(seed).permutation(count)[units] % FOLDS
    assert choice.fitted is not None
    kind = f"knn/{choice.fitted.neighbours}" if choice.kind == "knn" else choice.kind
    scores = outputs.scores(choice.kind, choice.fitted)
    for fold in range(FOLDS):
        held, rest = (np.flatnonzero(part) for part in (folds == fold, folds != fold))
        with contextlib.suppress(DataError):  # too few rows: those of the fit to all stay
            if len(held):
                fitted = _fit(
                    kind, evidence_of(outputs.at(rest), classifiers, seed), outputs.at(held)
                )
                scores[held] = outputs.at(held).scores(choice.kind, fitted)
    return scores


def evidence_of(
    outputs: Outputs, classifiers: Sequence[Classifier] | None, seed: int
) -> list[Evidence]:
    """Collect each member's data that OOD scores are fitted on."""
    assert outputs.features is not None
    if classifiers is None:
        members, width = outputs.features.shape[1:]
        classes = outputs.logits.shape[-1] if outputs.logits.ndim == 3 else 1
        classifiers = [(np.zeros((classes, width)), np.zeros(classes))] * members
    gathered = []
    for member, classifier in enumerate(classifiers):
        gathering = Gathering(*classifier, seed=seed)
        gathering.add(*outputs.of(member))
        gathered.append(gathering.evidence())
    return gathered


def best_score(aurocs: Mapping[str, Sequence[float]]) -> str:
    """Return the OOD score with the highest mean log-odds of its AUROCs over the OOD sets."""
    # Of equals the first: msp, for which nothing has to be stored.
    return max(aurocs, key=lambda kind: mean_odds(aurocs[kind]))


def mean_odds(aurocs: Sequence[float]) -> float:
    """Return the mean log-odds of AUROCs: 0.99 is as much better than 0.95 as 0.83 is than 0.5."""
    areas = np.clip(aurocs or [0.5], SUREST, 1 - SUREST)
    return round(float(np.log(areas / (1 - areas)).mean()), 6)


def dealt_out(outputs: Outputs, classifiers: Sequence[Classifier], seed: int) -> list[Outputs]:
    """Return artificial OOD samples: each feature is taken from another sample.

    Far from all data, features do not go together. Empty if no linear classifier gives the logits.
    """
    assert outputs.features is not None
    random = np.random.default_rng(seed).random(outputs.features.shape, dtype=np.float32)
    dealt = np.take_along_axis(outputs.features, random.argsort(axis=0, kind="stable"), axis=0)
    logits, dealt_logits = (
        _linear(features, classifiers) for features in (outputs.features, dealt)
    )
    if np.abs(logits - outputs.logits).max() > LINEAR * np.abs(logits).max():
        return []
    return [Outputs(dealt_logits.astype(np.float32), dealt)]


def left_out(kinds: Sequence[str], evidence: Sequence[Evidence], held: Outputs) -> dict[str, float]:
    """Return the mean AUROC of each score where some classes, in turn, are OOD.

    Nothing is fitted on these classes, and the classifier has no outputs for them.
    """
    classes = held.logits.shape[-1]
    aurocs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for first in range(PARTS):
        kept = np.flatnonzero(np.arange(classes) % PARTS != first)
        places = np.full((classes,), -1)
        places[kept] = np.arange(len(kept))
        fewer_classes = replace(held, logits=held.logits[..., kept])
        is_known = places[held.truth] >= 0
        if is_known.all() or not is_known.any():
            continue
        rest = []
        for member in evidence:
            labels = places[member.labels]
            rows = labels >= 0
            gathering = Gathering(member.weight[kept], member.bias[kept])
            gathering.add(member.features[rows], member.logits[rows][:, kept], labels[rows])
            rest.append(gathering.evidence())
        for kind in kinds:
            with contextlib.suppress(DataError):
                score = None if kind in LOGITS else _fit(kind, rest, fewer_classes.at(is_known))
                familiar, unknown = fewer_classes.at(is_known), fewer_classes.at(~is_known)
                aurocs[kind].append(_auroc(kind, score, familiar, unknown))
    return {kind: sum(values) / len(values) if values else 0.5 for kind, values in aurocs.items()}


def _linear(features: ndarray, classifiers: Sequence[Classifier]) -> ndarray:
    """Return the logits of all members, [sample, member, class]."""
    pairs = zip(np.moveaxis(features, 1, 0).astype(np.float64), classifiers, strict=True)
    return np.stack([x @ weight.astype(np.float64).T + bias for x, (weight, bias) in pairs], axis=1)


def _fit(kind: str, evidence: Sequence[Evidence] | None, held: Outputs) -> EnsembleScore:
    assert evidence is not None
    assert held.features is not None
    return fit(kind, evidence, (held.features, held.logits))


def _auroc(kind: str, fitted: EnsembleScore | None, held: Outputs, other: Outputs) -> float:
    """Return P(an OOD sample scores above a held-out one); ties count half."""
    return auroc(held.scores(kind, fitted), other.scores(kind, fitted)) or 0.0


def classifiers_of(outputs: Outputs) -> list[Classifier] | None:
    """Fit each member's weight and bias by least squares.

    Returns None if they do not give the logits of held-out rows.
    """
    assert outputs.features is not None
    cut, classifiers = int(SHARE * len(outputs.logits)), []
    for member in range(outputs.logits.shape[1]):
        x, z = (
            outputs.features[:, member].astype(np.float64),
            outputs.logits[:, member].astype(np.float64),
        )
        x = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
        solution = np.linalg.lstsq(x[:cut], z[:cut])[0]
        if np.abs(x[cut:] @ solution - z[cut:]).max() > LINEAR * np.abs(z).max():
            return None
        classifiers.append((solution[:-1].T, solution[-1]))
    return classifiers
