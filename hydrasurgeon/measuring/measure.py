"""Predictions → answers → {name: value}: what a decision state makes of what a model said, sample by
sample, and what that is worth.

Logits of [sample, member, class] are gone over once, some rows at a time; what stays are a few
numbers for each sample, and intervals are of resamples of these.
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
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.measuring.results import (
    Diversity,
    IdResult,
    OodAverage,
    OodResult,
    Result,
    SetAverage,
    SetResult,
    ShiftAverage,
    ShiftLevel,
    ShiftResult,
    level,
)
from hydrasurgeon.problems import SINGLE, unfit
from hydrasurgeon.problems.base import Judged, Outputs
from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics import metrics, probabilities
from hydrasurgeon.statistics.bootstrap import Ranked, Rows, bootstrap
from hydrasurgeon.statistics.bootstrap import Values as Drawn
from hydrasurgeon.statistics.probabilities import Logits
from hydrasurgeon.statistics.scores.fitted import check_score, scores_of

ELEMENTS = 1 << 20
"""Logits that are worked on at a time: 4 MB, so that what is made of them stays near the processor.
"""
ROWS = 1 << 16
"""Rows that are worked on at a time, however few logits they have."""
DIGITS = 12
"""Decimals of a share of errors: what lies behind is left of sums of accuracies, and a share of it
has no bound.
"""
GROUPS: tuple[Literal["near", "far", "all"], ...] = ("near", "far", "all")
"""Groups of OOD sets that have averages; every set belongs to the last."""
Values = Float[ndarray, " sample"]


@dataclass(frozen=True)
class Answered:
    """One model's answers on all sets, without the logits."""

    inside: Judged
    scores: Mapping[str, Values] = field(default_factory=dict)
    """The OOD scores of the labelled set; the first is the one in use."""
    foreign: Mapping[str, Mapping[str, Values]] = field(default_factory=dict)
    """Those of each OOD set."""
    classes: int = 0
    threshold: float | None = None
    """Samples whose score in use is above it are flagged; None where none was fitted."""
    calibrated: bool = False

    @property
    def used(self) -> str:
        """The OOD score in use."""
        return next(iter(self.scores), "msp")

    @property
    def counts(self) -> list[int]:
        """Samples of the labelled set and of each OOD set."""
        return [self.inside.count, *(len(each[self.used]) for each in self.foreign.values())]

    @cached_property
    def ranked(self) -> list[Ranked]:
        """Each OOD set against the labelled one, by the score in use."""
        return [Ranked(self.scores[self.used], each[self.used]) for each in self.foreign.values()]

    def quality(self, rows: Rows, *of_sets: Rows) -> dict[str, Drawn]:
        """What models are compared by, of resamples of each set."""
        sets = [each.metrics(rows, drawn) for each, drawn in zip(self.ranked, of_sets, strict=True)]
        means = {
            name: np.stack([each[name] for each in sets]).mean(axis=0)
            for name in ("auroc", "fpr95")
            if sets
        }
        return self.inside.quality(rows) | means

    @property
    def everything(self) -> list[Rows]:
        """Each sample of each set once."""
        return [np.arange(count)[None] for count in self.counts]

    def unlike(self, reference: Answered) -> dict[str, str]:
        """What a fair comparison would hold alike: {"calibration": "calibrated, the reference not"}."""
        phrases = {}
        if self.foreign and reference.foreign and self.used != reference.used:
            phrases["OOD score"] = (
                f"OOD by {visible(self.used)}, the reference by {visible(reference.used)}"
            )
        if self.calibrated != reference.calibrated:
            mine, its = ("calibrated", "not") if self.calibrated else ("not calibrated", "is")
            phrases["calibration"] = f"{mine}, the reference {its}"
        return phrases


@dataclass(frozen=True)
class Row:
    """One model in the table."""

    result: Result
    answers: Answered
    timing: int | None = None
    """Its place among the models that are timed; None for a predictions file."""
    decided: bool = False
    """Whether a predictions file says by which decision state."""

    @property
    def name(self) -> str:
        return self.result.name

    def but(self, **changed: Any) -> Row:
        """The same row with these fields of the result changed."""
        return replace(self, result=self.result.model_copy(update=changed))


def scores_wanted(wanted: str | None, state: State, name: str) -> tuple[str, ...]:
    """The OOD scores that were asked for of a model, the one in use first."""
    recorded = state.record.ood.score if state.is_fitted else None
    usual = [recorded] if recorded else [*state.problem.scores][:1]
    if wanted is None:
        return tuple(usual)
    kinds = wanted.split(",")
    if wanted == "all":
        kinds = [*usual, *state.problem.scores]
    for kind in kinds:
        if kind in FITTED and kind != recorded:
            raise UsageError(
                f"--ood-score {kind}: {name} was not calibrated with this score",
                hint=f"Run hydrasurgeon calibrate --ood-score {kind} first.",
            )
    return tuple(dict.fromkeys(kinds))


def scores_in(wanted: str | None, predictions: Predictions, source: str) -> tuple[str, ...]:
    """The scores that were asked for of a predictions file, the one in use first: those it holds,
    and functions of its logits.
    """
    own, sets = predictions.scores.get("", {}), predictions.ood
    held = [name for name in own if all(name in predictions.scores.get(s, {}) for s in sets)]
    on_logits = [*predictions.problem.scores]
    if not all(each.logits.size for each in sets.values()):
        on_logits = []
    available = [*held, *(kind for kind in on_logits if kind not in held)]
    usual = ["msp"] if predictions.problem.scores else held[:1]
    if predictions.decision is not None:
        usual = [predictions.decision.ood.score]
    kinds = usual if wanted is None else wanted.split(",")
    if wanted == "all":
        kinds = [kind for kind in (*usual, *on_logits, *held) if kind in available] or ["msp"]
    for kind in kinds:
        if kind not in available:
            why = "does not hold this score of every set"
            if kind in predictions.problem.scores:
                why = "has OOD sets without logits"
            near = did_you_mean(kind, available, visible)
            raise UsageError(
                f"--ood-score {visible(kind)}: {source} {why}{near}",
                hint=f"Available: {', '.join(map(visible, available)) or 'none'}.",
            )
    return tuple(dict.fromkeys(kinds))


def in_pieces(logits: Logits, *others: ndarray) -> Iterator[tuple[ndarray, ...]]:
    """Some rows at a time, so that what is made of them stays small."""
    most = max(1, min(ROWS, ELEMENTS // max(1, logits[:1].size)))
    parts = (probabilities.in_pieces(each, most) for each in (logits, *others))
    return zip(*parts, strict=True)


def judged(outputs: Outputs, state: State) -> Judged:
    """Each sample's answer, as a state decides, against the truth."""
    joined: dict[str, ndarray] = {}
    done, labels = 0, outputs.truth
    for rows, truth in in_pieces(outputs.logits, labels):
        part = state.problem.judged(rows, truth, state)
        fields = {name: each for name, each in vars(part).items() if isinstance(each, ndarray)}
        for name, values in fields.items():
            each = len(values) // len(truth)  # of many labels a sample has several
            if name not in joined:
                # Made at once: small arrays kept from each piece would tear the memory that the
                # next one could use.
                joined[name] = np.empty((each * len(labels), *values.shape[1:]), values.dtype)
            joined[name][each * done : each * done + len(values)] = values
        done += len(truth)
    return replace(part, **joined)


def scored(kind: str, said: Outputs, stored: Mapping[str, Values], state: State) -> Values:
    """An OOD score that came with the logits, or a function of them."""
    if kind in stored:
        return stored[kind]
    check_score(kind, state.problem.scores)
    at = 1.0 if state.is_fitted else state.record.temperature
    read = (state.problem.read(rows) for (rows,) in in_pieces(said.logits))
    scores = np.concatenate([scores_of(kind, rows, None, None, at) for rows in read])
    return np.round(scores, decimals=metrics.DIGITS)  # equal up to rounding is equal


def as_decided(outputs: Outputs, stored: Mapping[str, Values], state: State) -> Judged:
    """Each sample's answer against the truth; none where the sample is unfamiliar."""
    inside = judged(outputs, state)
    if not state.is_fitted:
        return inside
    ood = state.record.ood
    score = scored(ood.score, outputs, stored, state)
    return inside.familiar(score > np.round(ood.threshold, decimals=metrics.DIGITS))


def answered(predictions: Predictions, state: State, kinds: Sequence[str] = ("msp",)) -> Answered:
    """What one model said about the labelled set and the OOD sets, by these OOD scores."""
    outputs, problem = predictions.outputs, state.problem
    if predictions.ood and not kinds:
        raise UsageError(
            f"--ood: {predictions.name} has no OOD score", hint="Run calibrate on it first."
        )
    inside = as_decided(outputs, predictions.scores.get("", {}), state)
    if problem is SINGLE and isinstance(inside, JudgedClasses):
        # Every other row suggests another order of labels, and the rest judges.
        halves = [(inside.predicted[at::2], inside.labels[at::2]) for at in (0, 1)]
        try:
            unfit.check_order(halves[0], halves[1], outputs.logits.shape[-1])
        except DataError as error:
            raise DataError(f"{predictions.name}: {error.message}", hint=error.hint) from None

    def of(name: str, said: Outputs, kinds: Sequence[str]) -> dict[str, Values]:
        stored = predictions.scores.get(name, {})
        return {kind: scored(kind, said, stored, state) for kind in kinds}

    # Without OOD data there is nothing to detect by a score; a fitted one still says which samples
    # are unfamiliar.
    threshold = None
    if state.is_fitted and kinds[0] == state.record.ood.score:
        threshold = state.record.ood.threshold
    scores = of("", outputs, kinds if predictions.ood else kinds[: threshold is not None])
    return Answered(
        inside,
        scores,
        {name: of(name, said, kinds) for name, said in predictions.ood.items()},
        problem.read(outputs.logits[:1]).shape[-1],
        threshold,
        state.is_fitted or state.record.temperature != 1.0,
    )


def measure(inside: Judged, *, ci: float | None = None, seed: int = 0) -> dict[str, Any]:
    """Quality, calibration and selective risk on a labelled set: {name: value}."""
    measures, count = inside.measures(), inside.count
    every = measures(np.arange(count)[None])
    values: dict[str, Any] = {
        name: value.item() for name, value in every.items() if np.isfinite(value).all()
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
    """All metrics of one model."""
    row = answered(predictions, state, kinds)
    shift = tuple(
        shifted(name, severity, judged(said, state))
        for (name, severity), said in predictions.shift.items()
    )
    ood, averages = _ood(row, predictions, state, ci, seed)
    result = Result(
        name=predictions.name,
        kind=predictions.kind,
        members=predictions.outputs.logits.shape[1],
        id=IdResult(**measure(row.inside, ci=ci, seed=seed)),
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
    """Each OOD set, and the means over those of a group."""
    groups = {name: predictions.group(name) for name in row.foreign}
    places = {
        group: [at for at, each in enumerate(groups.values()) if group in ("all", each)]
        for group in GROUPS
    }
    ranked = row.ranked

    def measures(rows: Rows, *of_sets: Rows) -> dict[str, Drawn]:
        sets = [each.metrics(rows, chosen) for each, chosen in zip(ranked, of_sets, strict=True)]
        values = {
            f"{at}.{name}": value for at, each in enumerate(sets) for name, value in each.items()
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
    for at, (name, scores) in enumerate(row.foreign.items()):
        used, *others = scores
        values: dict[str, Any] = {
            **figures[str(at)],
            "scores": {k: metrics.auroc(row.scores[k], scores[k]) for k in others} or None,
            "ci": intervals.get(str(at)),
        }
        logits = predictions.ood[name].logits
        if logits.size:
            values |= row.inside.against(logits, state)
            if predictions.outputs.logits.shape[1] > 1 and row.inside.diversity():
                values |= diversity_of(logits, state)
        about = {"name": name, "group": groups[name], "n": len(scores[used])}
        ood.append(OodResult.model_validate(about | values))
    averages: dict[Literal["near", "far", "all"], OodAverage] = {}
    for group in (group for group in GROUPS if group in figures):
        diversity = _mean_diversity([ood[at] for at in places[group]])
        values = {**figures[group], **diversity, "ci": intervals.get(group)}
        averages[group] = OodAverage.model_validate(values)
    return tuple(ood), averages


def diversity_of(logits: Logits, state: State) -> dict[str, float]:
    """Return how far members are apart on unlabelled samples, on average over what they choose."""
    pieces = [state.apart(state.problem.choices(rows)[0]) for (rows,) in in_pieces(logits)]
    information, disagreement = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return {"mi": float(information.mean()), "disagreement": float(disagreement.mean())}


def _mean_diversity(sets: Sequence[OodResult]) -> dict[str, float]:
    """Average it over OOD sets; nothing where some set has none."""
    mean = {}
    for name in Diversity.model_fields:
        values = [value for each in sets if (value := getattr(each, name)) is not None]
        if len(values) == len(sets):
            mean[name] = sum(values) / len(values)
    return mean


def _by_place(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{"place.name": value} → {place: {name: value}}."""
    placed: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        place, _, name = key.partition(".")
        placed.setdefault(place, {})[name] = value
    return placed


def over_sets(row: Row, others: Sequence[SetResult], *, first: str) -> Row:
    """A row on the data set called `first`, joined by results on others."""
    sets = (SetResult(name=first, **row.result.id.model_dump()), *others)
    measured = [name for name in SetAverage.model_fields if getattr(sets[0], name) is not None]
    mean = SetAverage(
        **{name: sum(getattr(each, name) for each in sets) / len(sets) for name in measured}
    )
    return row.but(sets=sets, sets_average=mean)


def shifted(name: str, severity: int | None, left: Judged) -> ShiftResult:
    """What is left under one shift."""
    values = left.quality(np.arange(left.count)[None])
    measured = {key: values[key].item() for key in ShiftLevel.model_fields if key in values}
    return ShiftResult(name=name, severity=severity, **measured)


def averaged(shift: Sequence[ShiftResult]) -> ShiftAverage | None:
    """Means by severity and over severities, of the sets that have one (paper, Tables 13 and 14)."""
    severities = sorted({s.severity for s in shift if s.severity is not None})
    levels = {
        severity: level([s for s in shift if s.severity == severity]) for severity in severities
    }
    if not levels:
        return None
    mean = level(list(levels.values()))
    return ShiftAverage(accuracy=mean.accuracy, brier=mean.brier, severities=levels, mce=None)


def with_mce(rows: Sequence[Row]) -> list[Row]:
    """Every row with its corruption error, where it was measured under the same shifts as the
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
    """(shift, how many severities) → the sum of its errors over severities."""
    errors: dict[str, list[float]] = {}
    for each in result.shift:
        if each.severity is not None:
            errors.setdefault(each.name, []).append(round(1 - each.accuracy, DIGITS))
    return {(name, len(values)): sum(values) for name, values in errors.items()}
