"""Which OOD score a decision uses, for `calibrate`, for predictions and for `build`.

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

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import FITTED, LOGITS, OF_CLASSIFIERS, ZERO_SHOT
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.statistics.drawing import Drawing
from hydrasurgeon.statistics.metrics import auroc
from hydrasurgeon.statistics.scores.evidence import Evidence, Gathering
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, fit

Chooser = Literal["option", "ood", "perturbed", "default"]
Classifier = tuple[ndarray, ndarray]
"""One member's weight and bias."""
USUAL = ("vim", "mds", "msp")
"""On average over the tasks of benchmarks/decision.py the first is best, and nowhere worse than msp
by a point.
"""
# Without --fit-data, the share of the fitting half that OOD scores are fitted on; the rest
# standardises and chooses.
SHARE = 0.8
LINEAR = 0.01
"""How far, as a fraction of the largest, logits may be from a linear function of the features:
bfloat16 rounds so.
"""
KNN = ("knn/50", "knn/10", "knn/5", "knn/1")
"""Neighbours that knn may ask for; of equals the first."""
PARTS = 4
"""Parts of the classes, each of which is OOD once; of fewer classes none is."""
SUREST = 1e-3
"""How near to 0 and 1 an AUROC counts: 1,000 samples tell no more."""


@dataclass(frozen=True)
class Grounds:
    """What an OOD score is fitted on, and chosen by."""

    classifiers: Sequence[Classifier] | None = ()
    """Of each member; None where no linear one gives the logits."""
    evidence: Sequence[Evidence] | None = None
    """Of each member; without it a part of what is held back is fitted on."""
    foreign: Sequence[Outputs] = ()
    perturbed: Sequence[Outputs] = ()
    leaves_out: Sequence[str] = ZERO_SHOT
    """Fitted scores that the model is not made for."""

    @property
    def chooser(self) -> Chooser:
        """What `auto` chooses by."""
        if self.foreign:
            return "ood"
        return "perturbed" if self.perturbed else "default"


@dataclass(frozen=True)
class Choice:
    """A score, and what its choice rests on."""

    kind: str
    fitted: EnsembleScore | None = None
    chosen_by: Chooser = "option"
    auroc: Mapping[str, float] = field(default_factory=dict)
    """The mean of each candidate, where `auto` compared some."""
    notes: tuple[str, ...] = ()


def choose(
    score: str, held: Outputs, grounds: Grounds, *, problem: Problem = SINGLE, seed: int = 0
) -> Choice:
    """The score that is named, or that `auto` finds."""
    if score in LOGITS:
        return Choice(score)
    auto, linear, notes = score == "auto", grounds.classifiers, list[str]()
    lacking = FITTED if held.features is None else OF_CLASSIFIERS if linear is None else ()
    possible = {*problem.features}.difference(grounds.leaves_out, lacking)
    choice = Choice(score, chosen_by=grounds.chooser if auto else "option")
    if choice.chosen_by == "default":
        score = next(kind for kind in USUAL if kind in {*possible, *problem.scores})
        notes = [
            f"--ood-score auto took {score}, as there are no --ood-predictions to compare scores on"
        ]
    if score in LOGITS:
        return replace(choice, kind=score, notes=tuple(notes))
    whole, evidence = held, grounds.evidence
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
        candidates = dict.fromkeys(kind for kind in problem.scores if several or kind != "mi")
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
        f"--ood-score {score} leaves out {', '.join(left)}: {each}" for each, left in why.items()
    ]
    sets = [*grounds.foreign, *grounds.perturbed]
    if linear and evidence is not None and whole.logits.ndim == 3:
        sets += dealt_out(whole, linear, seed)
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
        means = {k.partition("/")[0]: sum(v) / len(v) for k, v in worth.items() if v}
    fitted, kind = candidates[best], best.partition("/")[0]
    notes += () if fitted is None else fitted.notes
    return replace(choice, kind=kind, fitted=fitted, auroc=means, notes=tuple(notes))


def evidence_of(
    outputs: Outputs, classifiers: Sequence[Classifier] | None, seed: int
) -> list[Evidence]:
    """What OOD scores are fitted on, a member each."""
    assert outputs.features is not None
    if classifiers is None:
        members, width = outputs.features.shape[1:]
        classes = outputs.logits.shape[-1] if outputs.logits.ndim == 3 else 1
        classifiers = [(np.zeros((classes, width)), np.zeros(classes))] * members
    made = []
    for member, classifier in enumerate(classifiers):
        gathering = Gathering(*classifier, seed=seed)
        gathering.add(*outputs.of(member))
        made.append(gathering.evidence())
    return made


def best_score(aurocs: Mapping[str, Sequence[float]]) -> str:
    """Of OOD scores with an AUROC for each OOD set, the one with the highest mean log-odds of them:
    0.99 is as much better than 0.95 as 0.83 is than 0.5.
    """

    def odds(kind: str) -> float:
        areas = np.clip(aurocs[kind] or [0.5], SUREST, 1 - SUREST)
        return round(float(np.log(areas / (1 - areas)).mean()), 6)

    # Of equals the first: msp, for which nothing has to be stored.
    return max(aurocs, key=odds)


def dealt_out(outputs: Outputs, classifiers: Sequence[Classifier], seed: int) -> list[Outputs]:
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
        rest = []
        for each in evidence:
            labels = places[each.labels]
            rows = labels >= 0
            gathering = Gathering(each.weight[kept], each.bias[kept])
            gathering.add(each.features[rows], each.logits[rows][:, kept], labels[rows])
            rest.append(gathering.evidence())
        for kind in kinds:
            with contextlib.suppress(DataError):
                score = None if kind in LOGITS else _fit(kind, rest, others.at(is_known))
                known, unknown = others.at(is_known), others.at(~is_known)
                found[kind].append(_auroc(kind, score, known, unknown))
    return {kind: sum(values) / len(values) if values else 0.5 for kind, values in found.items()}


def _linear(features: ndarray, classifiers: Sequence[Classifier]) -> ndarray:
    """Every member's logits."""
    pairs = zip(np.moveaxis(features, 1, 0).astype(np.float64), classifiers, strict=True)
    return np.stack([x @ weight.astype(np.float64).T + bias for x, (weight, bias) in pairs], axis=1)


def _fit(kind: str, evidence: Sequence[Evidence] | None, held: Outputs) -> EnsembleScore:
    assert evidence is not None
    assert held.features is not None
    return fit(kind, evidence, (held.features, held.logits))


def _auroc(kind: str, fitted: EnsembleScore | None, held: Outputs, other: Outputs) -> float:
    """P(an OOD sample scores above one held back), ties counting half."""
    return auroc(held.scores(kind, fitted), other.scores(kind, fitted)) or 0.0


def classifiers_of(outputs: Outputs) -> list[Classifier] | None:
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
