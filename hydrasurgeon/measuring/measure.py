"""Predictions → answers → {name: value}: apply a decision state to a model's outputs and compute
metrics.

Logits of [sample, member, class] are read once, some rows at a time; only a few numbers per sample
are kept, and intervals come from resamples of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import (
    Diversity,
    IdResult,
    OodAverage,
    OodResult,
    Result,
    SetMetrics,
    SetResult,
    ShiftAverage,
    ShiftLevel,
    ShiftResult,
    level,
)
from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.bootstrap import Ranked, Rows, bootstrap
from hydrasurgeon.statistics.bootstrap import Values as Drawn
from hydrasurgeon.statistics.probabilities import Logits
from hydrasurgeon.statistics.scores.fitted import check_score, scores_of
from hydrasurgeon.tasks import SINGLE, unfit
from hydrasurgeon.tasks.base import Judged, Outputs
from hydrasurgeon.tasks.single_label import JudgedClasses

ELEMENTS = 1 << 20
"""Number of logits that are processed at a time: 4 MB, so that intermediate results stay in
cache.
"""
ROWS = 1 << 16
"""Maximum number of rows that are processed at a time."""
DIGITS = 12
"""Decimals of an error share. Further digits are rounding errors of sums of accuracies, and a
quotient of such errors has no bound.
"""
GROUPS: tuple[Literal["near", "far", "all"], ...] = ("near", "far", "all")
"""Groups of OOD sets that have averages; every set belongs to the last."""
Values = Float[ndarray, " sample"]


@dataclass(frozen=True)
class Answered:
    """One model's answers on all sets, without the logits."""

    inside: Judged
    scores: Mapping[str, Values] = field(default_factory=dict)
    """OOD scores of the labelled set; the first is the one in use."""
    ood_scores: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """OOD scores of each OOD set."""
    classes: int = 0
    threshold: float | None = None
    """Threshold of the score in use, above which samples are flagged; None if none was fitted."""
    calibrated: bool = False

    @property
    def used(self) -> str:
        """OOD score in use."""
        return next(iter(self.scores), "msp")

    @property
    def counts(self) -> list[int]:
        """Samples of the labelled set and of each OOD set."""
        return [self.inside.count, *(len(scores[self.used]) for scores in self.ood_scores.values())]

    @cached_property
    def ranked(self) -> list[Ranked]:
        """Each OOD set against the labelled one, by the score in use."""
        return [
            Ranked(self.scores[self.used], scores[self.used]) for scores in self.ood_scores.values()
        ]

    def flagged(self, scores: Mapping[str, Values]) -> float:
        """Return the fraction of samples that the threshold calls unfamiliar."""
        assert self.threshold is not None
        threshold = np.round(self.threshold, decimals=metrics.DIGITS)
        return float((scores[self.used] > threshold).mean())

    def quality(self, rows: Rows, *of_sets: Rows) -> dict[str, Drawn]:
        """Return the metrics that models are compared by, on resamples of each set."""
        sets = [
            figures.metrics(rows, drawn)
            for figures, drawn in zip(self.ranked, of_sets, strict=True)
        ]
        means = {
            name: np.stack([figures[name] for figures in sets]).mean(axis=0)
            for name in ("auroc", "fpr95")
            if sets
        }
        return self.inside.quality(rows) | means

    @property
    def everything(self) -> list[Rows]:
        """Every sample of every set once."""
        return [np.arange(count)[None] for count in self.counts]

    def unlike(self, reference: Answered) -> dict[str, str]:
        """Describe differences that make a comparison unfair: {"calibration": "calibrated, unlike
        the reference"}.
        """
        phrases = {}
        if self.ood_scores and reference.ood_scores and self.used != reference.used:
            phrases["OOD score"] = (
                f"another OOD score ({visible(self.used)}, not {visible(reference.used)})"
            )
        if self.calibrated != reference.calibrated:
            phrases["calibration"] = (
                "calibrated, unlike the reference"
                if self.calibrated
                else "not calibrated, unlike the reference"
            )
        return phrases


@dataclass(frozen=True)
class Row:
    """One model in the table."""

    result: Result
    answers: Answered
    timing: int | None = None
    """Index among the timed models; None for a predictions file."""
    decided: bool = False
    """True if a predictions file names its decision state."""

    @property
    def name(self) -> str:
        return self.result.name

    def but(self, **changed: Any) -> Row:
        """Return a copy with these fields of the result changed."""
        return replace(self, result=self.result.model_copy(update=changed))


def scores_of_model(ood_score: str | None, state: State, name: str) -> tuple[str, ...]:
    """Return the OOD scores to report for a model, the one in use first."""
    recorded = state.record.ood.score if state.is_fitted else None
    usual = [recorded] if recorded else [*state.task.scores][:1]
    if ood_score is None:
        return tuple(usual)
    kinds = ood_score.split(",")
    if ood_score == "all":
        kinds = [*usual, *state.task.scores]
    for kind in kinds:
        if kind in FITTED and kind != recorded:
            raise UsageError(
                f"--ood-score {kind}: {name} was not calibrated with this score",
                hint=f"Run hydrasurgeon calibrate --ood-score {kind} first.",
            )
    return tuple(dict.fromkeys(kinds))


def scores_in(ood_score: str | None, predictions: Predictions, source: str) -> tuple[str, ...]:
    """Return the OOD scores to report for a predictions file, the one in use first. Available are
    the scores that it holds, and functions of its logits.
    """
    id_scores, sets = predictions.scores.get("", {}), predictions.ood
    held = [name for name in id_scores if all(name in predictions.scores.get(s, {}) for s in sets)]
    on_logits = [*predictions.task.scores]
    if not all(outputs.logits.size for outputs in sets.values()):
        on_logits = []
    available = [*held, *(kind for kind in on_logits if kind not in held)]
    usual = ["msp"] if predictions.task.scores else held[:1]
    if predictions.decision is not None:
        usual = [predictions.decision.ood.score]
    kinds = usual if ood_score is None else ood_score.split(",")
    if ood_score == "all":
        kinds = [kind for kind in (*usual, *on_logits, *held) if kind in available] or ["msp"]
    for kind in kinds:
        if kind not in available:
            why = "does not hold this score of every set"
            if kind in predictions.task.scores:
                why = "has OOD sets without logits"
            near = did_you_mean(kind, available, visible)
            raise UsageError(
                f"--ood-score {visible(kind)}: {source} {why}{near}",
                hint=f"Available: {', '.join(map(visible, available)) or 'none'}.",
            )
    return tuple(dict.fromkeys(kinds))


def in_pieces(logits: Logits, *arrays: ndarray) -> Iterator[tuple[ndarray, ...]]:
    """Yield some rows of each array at a time, so that intermediate results stay small."""
    most = max(1, min(ROWS, ELEMENTS // max(1, logits[:1].size)))
    parts = (probabilities.in_pieces(array, most) for array in (logits, *arrays))
    return zip(*parts, strict=True)


def judged(outputs: Outputs, state: State) -> Judged:
    """Return each sample's answer, as a state decides it, with its correctness."""
    joined: dict[str, ndarray] = {}
    done, labels = 0, outputs.truth
    for rows, truth in in_pieces(outputs.logits, labels):
        part = state.task.judged(rows, truth, state)
        fields = {name: field for name, field in vars(part).items() if isinstance(field, ndarray)}
        for name, values in fields.items():
            size = len(values) // len(truth)  # of many labels a sample has several
            if name not in joined:
                # Made at once: small arrays kept from each piece would tear the memory that the
                # next one could use.
                joined[name] = np.empty((size * len(labels), *values.shape[1:]), values.dtype)
            joined[name][size * done : size * done + len(values)] = values
        done += len(truth)
    return replace(part, **joined)


def scored(kind: str, outputs: Outputs, stored: Mapping[str, Values], state: State) -> Values:
    """Return an OOD score: the stored one, or a function of the logits."""
    if kind in stored:
        return stored[kind]
    check_score(kind, state.task.scores)
    at = 1.0 if state.is_fitted else state.record.temperature
    read = (state.task.read(rows) for (rows,) in in_pieces(outputs.logits))
    scores = np.concatenate([scores_of(kind, rows, None, None, at) for rows in read])
    return np.round(scores, decimals=metrics.DIGITS)  # equal up to rounding is equal


def as_decided(outputs: Outputs, stored: Mapping[str, Values], state: State) -> Judged:
    """Return each sample's answer with its correctness; unfamiliar samples have no answer."""
    inside = judged(outputs, state)
    if not state.is_fitted:
        return inside
    ood = state.record.ood
    score = scored(ood.score, outputs, stored, state)
    return inside.familiar(score > np.round(ood.threshold, decimals=metrics.DIGITS))


def answered(predictions: Predictions, state: State, kinds: Sequence[str] = ("msp",)) -> Answered:
    """Return a model's answers on the labelled set and its OOD scores on all sets."""
    outputs, task = predictions.outputs, state.task
    if predictions.ood and not kinds:
        raise UsageError(
            f"--ood: {predictions.name} has no OOD score", hint="Run calibrate on it first."
        )
    inside = as_decided(outputs, predictions.scores.get("", {}), state)
    if task is SINGLE and isinstance(inside, JudgedClasses):
        # Every other row suggests another order of labels, and the rest judges.
        halves = [(inside.predicted[at::2], inside.labels[at::2]) for at in (0, 1)]
        try:
            unfit.check_order(halves[0], halves[1], outputs.logits.shape[-1])
        except DataError as error:
            raise DataError(f"{predictions.name}: {error.message}", hint=error.hint) from None

    def of(name: str, answers: Outputs, kinds: Sequence[str]) -> dict[str, Values]:
        stored = predictions.scores.get(name, {})
        return {kind: scored(kind, answers, stored, state) for kind in kinds}

    # Without OOD data there is nothing to detect by a score; a fitted one still says which samples
    # are unfamiliar.
    threshold = None
    if state.is_fitted and kinds[0] == state.record.ood.score:
        threshold = state.record.ood.threshold
    scores = of("", outputs, kinds if predictions.ood else kinds[: threshold is not None])
    return Answered(
        inside,
        scores,
        {name: of(name, answers, kinds) for name, answers in predictions.ood.items()},
        task.read(outputs.logits[:1]).shape[-1],
        threshold,
        state.is_fitted or state.record.temperature != 1.0,
    )


def measure(inside: Judged, *, ci: float | None = None, seed: int = 0) -> dict[str, Any]:
    """Return quality, calibration and selective risk on a labelled set: {name: value}."""
    measures, count = inside.measures(), inside.count
    resampled = measures(np.arange(count)[None])
    values: dict[str, Any] = {
        name: value.item() for name, value in resampled.items() if np.isfinite(value).all()
    }
    values |= {"n": count, **inside.figures()}
    if ci is not None:
        intervals = bootstrap(measures, count, level=ci, seed=seed)
        unsteady = inside.unsteady(values)
        values["ci"] = {name: ends for name, ends in intervals.items() if name not in unsteady}
    return values


def row_of(
    predictions: Predictions,
    state: State,
    kinds: Sequence[str] = ("msp",),
    *,
    ci: float | None = None,
    seed: int = 0,
) -> Row:
    """Return all metrics of one model as a row."""
    row = answered(predictions, state, kinds)
    shift = tuple(
        shifted(name, severity, judged(outputs, state))
        for (name, severity), outputs in predictions.shift.items()
    )
    ood, averages = _ood(row, predictions, state, ci, seed)
    quality = measure(row.inside, ci=ci, seed=seed)
    if row.threshold is not None:
        quality["flagged"] = row.flagged(row.scores)
    result = Result(
        name=predictions.name,
        kind=predictions.kind,
        members=predictions.outputs.logits.shape[1],
        id=IdResult(**quality),
        ood=ood,
        ood_average=averages,
        shift=shift,
        shift_average=averaged(shift),
        diversity=Diversity.model_validate(row.inside.diversity()),
        cost=predictions.cost,
    )
    return Row(result, row)


def _ood(
    row: Answered, predictions: Predictions, state: State, ci: float | None, seed: int
) -> tuple[tuple[OodResult, ...], dict[Literal["near", "far", "all"], OodAverage]]:
    """Return the result of each OOD set, and the means over each group of sets."""
    groups = {name: predictions.group(name) for name in row.ood_scores}
    places = {
        group: [at for at, item in enumerate(groups.values()) if group in ("all", item)]
        for group in GROUPS
    }
    ranked = row.ranked

    def measures(rows: Rows, *of_sets: Rows) -> dict[str, Drawn]:
        sets = [item.metrics(rows, chosen) for item, chosen in zip(ranked, of_sets, strict=True)]
        values = {
            f"{at}.{name}": value for at, item in enumerate(sets) for name, value in item.items()
        }
        for group, members in places.items():
            for name in sets[0] if members else ():
                mean = np.stack([sets[at][name] for at in members]).mean(axis=0)
                values[f"{group}.{name}"] = mean
        return values

    figures = _by_place({name: value.item() for name, value in measures(*row.everything).items()})
    intervals = dict[str, dict[str, Any]]()
    if ci is not None and ranked:
        intervals = _by_place(bootstrap(measures, *row.counts, level=ci, seed=seed))
    ood = []
    for at, (name, scores) in enumerate(row.ood_scores.items()):
        used, *further = scores
        values: dict[str, Any] = {
            **figures[str(at)],
            "scores": {k: metrics.auroc(row.scores[k], scores[k]) for k in further} or None,
            "ci": intervals.get(str(at)),
        }
        if row.threshold is not None:
            values["flagged"] = row.flagged(scores)
        logits = predictions.ood[name].logits
        if logits.size:
            values |= row.inside.against(logits, state)
            if predictions.outputs.logits.shape[1] > 1 and row.inside.diversity():
                values |= diversity_of(logits, state)
        about = {"name": name, "group": groups[name], "n": len(scores[used])}
        ood.append(OodResult.model_validate(about | values))
    averages: dict[Literal["near", "far", "all"], OodAverage] = {}
    for group in (group for group in GROUPS if group in figures):
        means = _means([ood[at] for at in places[group]])
        values = {**figures[group], **means, "ci": intervals.get(group)}
        averages[group] = OodAverage.model_validate(values)
    return tuple(ood), averages


def diversity_of(logits: Logits, state: State) -> dict[str, float]:
    """Return how much members differ on unlabelled samples, averaged over their choices."""
    pieces = [state.apart(state.task.choices(rows)[0]) for (rows,) in in_pieces(logits)]
    information, disagreement = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return {"mi": float(information.mean()), "disagreement": float(disagreement.mean())}


def _means(sets: Sequence[OodResult]) -> dict[str, float]:
    """Return the mean diversity and the mean flagged fraction over OOD sets that all have them."""
    mean = {}
    for name in ("flagged", *Diversity.model_fields):
        values = [value for result in sets if (value := getattr(result, name)) is not None]
        if len(values) == len(sets):
            mean[name] = sum(values) / len(values)
    return mean


def _by_place(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert {"place.name": value} to {place: {name: value}}."""
    placed: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        place, _, name = key.partition(".")
        placed.setdefault(place, {})[name] = value
    return placed


def over_sets(row: Row, further: Sequence[SetResult], *, first: str) -> Row:
    """Return a row with results of several data sets and their mean; `first` names the row's own
    set.
    """
    sets = (SetResult(name=first, **row.result.id.model_dump()), *further)
    measured = [name for name in SetMetrics.model_fields if getattr(sets[0], name) is not None]
    mean = SetMetrics(
        **{name: sum(getattr(result, name) for result in sets) / len(sets) for name in measured}
    )
    return row.but(sets=sets, sets_average=mean)


def shifted(name: str, severity: int | None, left: Judged) -> ShiftResult:
    """Return the quality under one shift."""
    values = left.quality(np.arange(left.count)[None])
    measured = {key: values[key].item() for key in ShiftLevel.model_fields if key in values}
    return ShiftResult(name=name, severity=severity, **measured)


def averaged(shift: Sequence[ShiftResult]) -> ShiftAverage | None:
    """Return means by severity and over severities, of the sets that have one (paper, Tables 13 and
    14).
    """
    severities = sorted({s.severity for s in shift if s.severity is not None})
    levels = {
        severity: level([s for s in shift if s.severity == severity]) for severity in severities
    }
    if not levels:
        return None
    mean = level(list(levels.values()))
    return ShiftAverage(accuracy=mean.accuracy, brier=mean.brier, severities=levels, mce=None)


def with_mce(rows: Sequence[Row]) -> list[Row]:
    """Add the mean corruption error to each row that was measured under the same shifts as the
    first.
    """
    if not rows or rows[0].result.shift_average is None:
        return list(rows)
    first = _errors(rows[0].result)
    joined = []
    for row in rows:
        errors, average = _errors(row.result), row.result.shift_average
        if average is not None and errors.keys() == first.keys() and all(first.values()):
            mce = sum(errors[name] / first[name] for name in first) / len(first)
            average = average.model_copy(update={"mce": mce})
        joined.append(row.but(shift_average=average))
    return joined


def _errors(result: Result) -> dict[tuple[str, int], float]:
    """Return the sum of errors over severities, by shift and number of severities."""
    errors: dict[str, list[float]] = {}
    for shifted_set in result.shift:
        if shifted_set.severity is not None:
            errors.setdefault(shifted_set.name, []).append(round(1 - shifted_set.accuracy, DIGITS))
    return {(name, len(values)): sum(values) for name, values in errors.items()}
