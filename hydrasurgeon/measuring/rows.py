"""Predictions → one row of the report: how they are read, its result, and the answers that it was
made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy import ndarray

from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.decided import FITTED
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.answers import Answered, Reading, answered, answers
from hydrasurgeon.measuring.bootstrap import bootstrap, ood_intervals
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.measuring.results import (
    Diversity,
    IdResult,
    Interval,
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
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Judged, Problem
from hydrasurgeon.statistics import metrics

OOD_METRICS = ("auroc", "fpr95", "aupr", "aupr_id")
"""Metrics of OOD detection, which have means over data sets."""
DIGITS = 12
"""Decimals of a share of errors: what lies behind is left of sums of accuracies, and a share of it
has no bound.
"""


@dataclass(frozen=True)
class Row:
    """One model in the table."""

    result: Result
    answers: Answered
    timing: int | None = None
    """Its place among the models that are timed; None for a predictions file."""

    @property
    def name(self) -> str:
        return self.result.name

    def but(self, **changed: Any) -> Row:
        """The same row with these fields of the result changed."""
        return replace(self, result=self.result.model_copy(update=changed))


def ood_scores(
    wanted: str | None, state: State | None, name: str, problem: Problem = SINGLE
) -> tuple[str, ...]:
    """The scores that were asked for, the one in use first."""
    recorded = None if state is None else state.record.ood.score
    usual = [recorded] if recorded else [*problem.scores][:1]
    if wanted is None:
        return tuple(usual)
    kinds = wanted.split(",")
    if wanted == "all":
        kinds = [*usual, *problem.scores]
    for kind in kinds:
        if kind in FITTED and kind != recorded:
            raise UsageError(
                f"--ood-score {kind}: is fitted to features, and {name} carries no such fit",
                hint=f"Write one that does: hydrasurgeon calibrate --ood-score {kind}.",
            )
    return tuple(dict.fromkeys(kinds))


def scores_in(wanted: str | None, predictions: Predictions, source: str) -> tuple[str, ...]:
    """The scores that were asked for of a predictions file, the one in use first: those it holds,
    and functions of its logits.
    """
    sets = predictions.ood
    held = [name for name in predictions.scores if all(name in each.scores for each in sets)]
    on_logits = (
        [] if any(each.logits is None for each in sets) else list(predictions.problem.scores)
    )
    available = [*held, *(kind for kind in on_logits if kind not in held)]
    if wanted is None and not predictions.problem.scores:
        return tuple(held[:1])
    kinds = (wanted or "msp").split(",")
    if wanted == "all":
        kinds = ["msp", *on_logits, *held] if on_logits else held or ["msp"]
    for kind in kinds:
        if kind not in available:
            why = (
                "has OOD sets without logits"
                if kind in predictions.problem.scores
                else "does not hold this score of every set"
            )
            raise UsageError(
                (
                    f"--ood-score {visible(kind)}: {source} "
                    f"{why}{did_you_mean(kind, available, visible)}"
                ),
                hint=f"Available: {', '.join(map(visible, available)) or 'none'}.",
            )
    return tuple(dict.fromkeys(kinds))


def reading_of(
    state: State | None,
    kinds: tuple[str, ...],
    *,
    temperature: float | None,
    ci: float | None,
    seed: int,
    problem: Problem = SINGLE,
) -> Reading:
    """By the decision state, unless there is none or a temperature is asked for."""
    if state is None or temperature is not None:
        return Reading(temperature or 1.0, ood_scores=kinds, ci=ci, seed=seed, problem=problem)
    record = state.record
    return Reading(
        record.temperature,
        problem.constants(record),
        kinds,
        score_temperature=1.0,
        threshold=record.ood.threshold if kinds[0] == record.ood.score else None,
        conformal=record.conformal,
        record=record,
        found=record.group,
        ci=ci,
        seed=seed,
        problem=problem,
    )


def row_of(predictions: Predictions, reading: Reading) -> Row:
    """All metrics of one model."""
    row = answered(predictions, reading)
    shift = tuple(
        shifted(s.name, s.severity, s.logits, s.labels, reading) for s in predictions.shift
    )
    ood, averages = _ood(row, reading, predictions.ood)
    inside = row.inside
    return Row(
        Result(
            name=predictions.name,
            kind=predictions.kind,
            members=predictions.logits.shape[1],
            id=summary(inside, reading),
            ood=ood,
            ood_average=averages,
            shift=shift,
            shift_average=averaged(shift),
            diversity=Diversity.model_validate(inside.diversity()),
            cost=predictions.cost,
        ),
        row,
    )


def _ood(
    row: Answered, reading: Reading, sets: Sequence[OodSet]
) -> tuple[tuple[OodResult, ...], dict[Literal["near", "far", "all"], OodAverage]]:
    """Each OOD set, and the means over those of a group."""
    of_sets: Sequence[dict[str, Interval]] = [{} for _ in row.foreign]
    of_groups: dict[str, dict[str, Interval]] = {}
    if reading.ci is not None:
        of_sets, of_groups = ood_intervals(row, level=reading.ci, seed=reading.seed)
    ood = []
    for each, given, ci in zip(row.foreign, sets, of_sets, strict=True):
        others = {
            kind: metrics.auroc(row.scores[kind], each.scores[kind])
            for kind in reading.ood_scores[1:]
        }
        about = {"name": each.name, "group": each.group, "n": len(each.scores[row.used])}
        values = metrics.ood_metrics(row.scores[row.used], each.scores[row.used])
        if given.logits is not None:
            values |= row.inside.against(given.logits, reading)
        ood.append(
            OodResult.model_validate(about | values | {"scores": others or None, "ci": ci or None})
        )
    averages: dict[Literal["near", "far", "all"], OodAverage] = {}
    for name in ("near", "far", "all"):
        if group := [o for o in ood if name in ("all", o.group)]:
            means = {
                metric: sum(getattr(o, metric) for o in group) / len(group)
                for metric in OOD_METRICS
            }
            averages[name] = OodAverage.model_validate(means | {"ci": of_groups.get(name)})
    return tuple(ood), averages


def summary(inside: Judged, reading: Reading) -> IdResult:
    """Quality, calibration and selective risk on a labelled set."""
    drawn = [(inside.measures(), inside.count)]
    if reading.found is not None and (of_groups := inside.of_groups(reading.found)):
        drawn.append(of_groups)
    values: dict[str, Any] = {}
    intervals: dict[str, Interval] = {}
    for measures, count in drawn:
        every = measures(np.arange(count)[None])
        values |= {name: value.item() for name, value in every.items() if np.isfinite(value).all()}
        if reading.ci is not None:
            intervals |= bootstrap(measures, count, level=reading.ci, seed=reading.seed)
    values |= {"n": inside.count, **inside.figures()}
    if reading.ci is not None:
        unsteady = inside.unsteady(values)
        values["ci"] = {name: ends for name, ends in intervals.items() if name not in unsteady}
    return IdResult.model_validate(values)


def over_sets(row: Row, others: Sequence[SetResult], *, first: str) -> Row:
    """A row on the data set called `first`, joined by results on others."""
    sets = (SetResult(name=first, **row.result.id.model_dump()), *others)
    measured = [name for name in SetAverage.model_fields if getattr(sets[0], name) is not None]
    mean = SetAverage(
        **{name: sum(getattr(each, name) for each in sets) / len(sets) for name in measured}
    )
    return row.but(sets=sets, sets_average=mean)


def shifted(
    name: str, severity: int | None, logits: ndarray, labels: ndarray, reading: Reading
) -> ShiftResult:
    """What is left under one shift."""
    left = answers(logits, labels, reading)
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
