"""Tables of results, with the columns that `measuring.results` declares.

The terminal, the page, Markdown, model cards and the README's tables are written from these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Literal

from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.measuring.results import (
    ABSENT,
    ANSWERS,
    COST,
    DIVERSITY,
    OOD,
    QUALITY,
    SHIFT,
    Interval,
    Metric,
    Result,
    ShiftLevel,
    level,
)

Rank = Literal["best", "second", ""]

PROMISED = ("flagged", "width", "coverage", "set_size", "answered", "wrong", "missed")
"""Metrics of a decision state's promises, which a terminal shows in a separate table, because a
line has 80 characters.
"""
FLAGGED = "flagged"
"""Fraction of OOD samples that is called unfamiliar; it stands in that table too."""
OTHER_SCORES = "AUROC by other OOD scores"
"""Title of the table of scores that --ood-score lists after the first."""
DECIMALS = 3
"""Number of decimals of fractions and losses."""
WIDEST = 52
"""Maximum number of characters of a name in a heading, a table or a legend; verdicts have the full
name.
"""


WORDS = {
    "ID": "In-distribution: data like the training data.",
    "OOD": "Out-of-distribution: data unlike the training data; near resembles it, far does not.",
    "OOD score": (
        "A number for each sample, higher for OOD; AUROC, FPR95 and AUPR say how well it "
        "separates the two."
    ),
    "threshold": "Samples whose OOD score is above it are flagged as OOD; calibrate fits it.",
    "calibrated": (
        "Of the answers given with some confidence, that share is right; calibrate "
        "fits what that takes."
    ),
    "confidence": "The probability of the most probable class.",
    "coverage": "The fraction of samples that are answered, the most confident first.",
    "risk": "The fraction of the given answers that are wrong.",
    "confidence interval": "Where a figure lies in that fraction of bootstrap resamples of the data.",
}
"""Meanings of the report's words that are not metrics."""


@dataclass(frozen=True)
class Cell:
    text: str
    rank: Rank = ""
    low: str = ""
    high: str = ""
    """End of the confidence interval; `low` is the other one."""
    verdict: str = ""
    """`better` or `worse` if the cell is a difference whose interval excludes 0."""


@dataclass(frozen=True)
class MetricColumn:
    """One metric of every row; `group` is the heading above neighbouring columns."""

    metric: Metric
    group: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ReportTable:
    title: str
    names: tuple[str, ...]
    columns: tuple[MetricColumn, ...]
    note: str = ""
    of: str = "model"
    """Kind of the rows."""

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def lines(self) -> Iterator[tuple[str, tuple[Cell, ...]]]:
        """Yield the lines of a terminal table: one for each row, and two for the ends of its
        intervals.
        """
        for name, cells in zip(self.names, self.rows, strict=True):
            yield name, cells
            if any(cell.low for cell in cells):
                yield "  from", tuple(Cell(cell.low) for cell in cells)
                yield "  to", tuple(Cell(cell.high) for cell in cells)

    def groups(self) -> list[tuple[str, int]]:
        """Return the groups of neighbouring columns with their numbers of columns."""
        return [
            (group, len(list(neighbours)))
            for group, neighbours in groupby(column.group for column in self.columns)
        ]

    def __str__(self) -> str:
        """Return the table as text, in columns."""
        heads = [c.metric.brief or c.metric.name for c in self.columns]
        grid = [
            [self.title, *heads],
            *([name, *(cell.text for cell in cells)] for name, cells in self.lines()),
        ]
        if any(column.group.strip() for column in self.columns):
            grid.insert(0, ["", *(column.group.strip() for column in self.columns)])
        widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in grid
        )


def shown_name(result: Result) -> str:
    """Return a row's name: an unnamed ensemble is named by its size."""
    if result.kind == "ensemble" and " + " in result.name:
        return f"ensemble of {result.members}"
    return result.name


def short(text: str) -> str:
    """Shorten a long name to its start and its end, where names of one family differ."""
    shown = visible(text)
    tail = WIDEST * 3 // 8
    return shown if len(shown) <= WIDEST else f"{shown[: WIDEST - 1 - tail]}…{shown[-tail:]}"


def tables(results: Sequence[Result]) -> list[ReportTable]:
    """Return all tables: in-distribution quality, cost, OOD detection, then data sets and shifts if
    there are several.
    """
    mean = _mean_of(named_set.name for r in results for named_set in r.sets or ())
    average = _mean_of(s.name for r in results for s in r.shift)
    by_shift = [{average: r.shift_average, **_over_severities(r)} for r in results]
    by_title = {
        "In distribution": quality(results),
        "Between members": diversity(results),
        "Cost": columns(COST, [r.cost for r in results]),
        "Out of distribution": _grouped(OOD, [_ood(r) for r in results]),
        OTHER_SCORES: _by_score(results),
        "By data set": _by_set(results, mean),
        "Under distribution shift": _grouped(SHIFT, by_shift),
    }
    notes = {"Cost": " ".join(cost_notes([r.cost for r in results]))}
    names = tuple(map(shown_name, results))
    return [
        ReportTable(title, names, tuple(table_columns), notes.get(title, ""))
        for title, table_columns in by_title.items()
        if table_columns
    ]


def brief(results: Sequence[Result], ood_scores: Sequence[str] = ()) -> list[ReportTable]:
    """Return tables for a terminal: metrics with a brief name; OOD sets and shifts as averages.

    `ood_scores` are the names of the scores that detect OOD samples, for the title.
    """
    by_score = f", by {' or '.join(ood_scores)}" if ood_scores else ""
    averages = [
        {
            group: average
            for group, average in r.ood_average.items()
            if group != "all" or len(r.ood_average) > 2
        }
        for r in results
    ]
    shifts = [r.shift_average for r in results]
    severities = [
        {str(at): average.severities[at] for at in sorted(average.severities)} if average else {}
        for average in shifts
    ]
    costs = columns(COST, [r.cost for r in results], " ")  # the blank gives them no heading
    inside, outside = quality(results), _grouped(OOD, averages)
    sets = results[0].sets if results else ()
    first = f", {visible(sets[0].name)}" if sets else ""
    by_title = {
        f"in distribution{first}": [
            *(column for column in inside if column.metric.key not in PROMISED),
            *diversity(results),
            *costs,
        ],
        "decisions": [
            *(column for column in inside if column.metric.key in PROMISED),
            *(column for column in outside if column.metric.key == FLAGGED),
        ],
        f"out of distribution{by_score}": [
            column for column in outside if column.metric.key != FLAGGED
        ],
        OTHER_SCORES: _by_score(results),
        "under shift, by severity": [
            *_grouped(SHIFT[:2], severities),
            *columns(SHIFT, shifts, "mean"),
        ],
        "by data set": _by_set(results, " mean"),
    }
    names = tuple(map(shown_name, results))
    kept = {
        title: tuple(c for c in table_columns if c.metric.brief)
        for title, table_columns in by_title.items()
    }
    return [
        ReportTable(title, names, table_columns)
        for title, table_columns in kept.items()
        if table_columns
    ]


def _by_score(results: Sequence[Result]) -> list[MetricColumn]:
    """Return the AUROC of each other OOD score that was asked for, as the mean over OOD sets."""
    kinds = dict.fromkeys(kind for r in results for item in r.ood for kind in item.scores or ())

    def means(result: Result) -> SimpleNamespace:
        sets = [item.scores or {} for item in result.ood]
        measured = [kind for kind in kinds if all(kind in scores for scores in sets)]
        return SimpleNamespace(
            **{kind: fmean(scores[kind] for scores in sets) for kind in measured if sets}
        )

    metrics = [Metric(kind, "higher", kind, key=kind) for kind in kinds]
    return columns(metrics, [*map(means, results)])


def _by_set(results: Sequence[Result], mean: str) -> list[MetricColumn]:
    """Return quality by data set, with the mean under this heading."""
    sets = [{**{s.name: s for s in r.sets or ()}, mean: r.sets_average} for r in results]
    return _grouped((QUALITY[0], *QUALITY[2:4]), sets)


def quality(results: Sequence[Result]) -> list[MetricColumn]:
    """Return the quality on the labelled set."""
    return columns((*QUALITY, *ANSWERS), [r.id for r in results])


def diversity(results: Sequence[Result]) -> list[MetricColumn]:
    """Return the differences between members, of models that have several."""
    return columns(DIVERSITY, [r.diversity if r.members > 1 else None for r in results])


def columns(
    metrics: Iterable[Metric], records: Sequence[Any], group: str = ""
) -> list[MetricColumn]:
    """Return a column for each metric that any of these records has."""
    return [
        MetricColumn(metric, group, _cells(metric, records))
        for metric in metrics
        if any(metric.of(record) is not None for record in records)
    ]


def _grouped(metrics: Sequence[Metric], rows: Sequence[Mapping[Any, Any]]) -> list[MetricColumn]:
    """Return columns for each group of records; rows may lack a group."""
    groups = dict.fromkeys(name for row in rows for name in row)
    return [
        column
        for group in groups
        for column in columns(metrics, [row.get(group) for row in rows], group)
    ]


def _cells(metric: Metric, records: Sequence[Any]) -> tuple[Cell, ...]:
    """Return the cells of one column, with equal decimals; ranks are those of the rounded
    values.
    """
    values = [metric.of(record) for record in records]
    decimals = decimals_of(values) if metric.unit else DECIMALS
    texts = [ABSENT if value is None else f"{value:.{decimals}f}" for value in values]
    numbers = sorted(
        {float(text) for text in texts if text != ABSENT}, reverse=metric.better == "higher"
    )
    # Of two numbers the second best is the worst.
    places: tuple[Rank, ...] = ("best", "second") if len(numbers) > 2 else ("best",)
    ranks = dict(zip(numbers, places, strict=False)) if metric.better and len(numbers) > 1 else {}
    cells = []
    for record, text in zip(records, texts, strict=True):
        ends: Interval | tuple[()] = (getattr(record, "ci", None) or {}).get(metric.key) or ()
        rank = "" if text == ABSENT else ranks.get(float(text), "")
        low, high = (f"{end:.{decimals}f}" for end in ends) if ends else ("", "")
        cells.append(Cell(text, rank, low, high))
    return tuple(cells)


def decimals_of(values: Sequence[float | None]) -> int:
    """Return the number of decimals that gives the smallest value three digits."""
    least = min((value for value in values if value is not None and value > 0), default=1.0)
    return max(0, min(2 - math.floor(math.log10(least)), 6))


def cost_notes(costs: Sequence[Any]) -> list[str]:
    """Return sentences below a table about the units of its multiply-adds and times."""
    notes = []
    present = [cost for cost in costs if cost is not None]
    lengths = sorted({cost.tokens for cost in present} - {None})
    if lengths:
        counts = " or ".join(map(str, lengths))
        notes.append(f"MACs are those of one text of {counts} tokens.")
    if any(cost.macs_all_tokens not in (None, cost.macs) for cost in present):
        notes.append("MACs leave out tokens of the last layer that the classifier does not read.")
    batches = {getattr(cost, "latency_batch", None) for cost in present}
    sizes = sorted(size for size in batches if size is not None)
    if sizes:
        counts = " or ".join(map(str, sizes))
        notes.append(f"Times are those of a batch of {counts} sample{'s' * (sizes != [1])}.")
    return notes


def _ood(result: Result) -> dict[str, Any]:
    """Return OOD results by name, followed by the means of groups with several sets."""
    sets = {f"{item.name} ({item.group})": item for item in result.ood}
    counts = {
        group: sum(group in ("all", o.group) for o in result.ood) for group in result.ood_average
    }
    return sets | {
        f"mean, {group}": item for group, item in result.ood_average.items() if counts[group] > 1
    }


def _mean_of(sets: Iterable[str]) -> str:
    """Return the heading of an average over sets, none of which has that name."""
    names, title = set(sets), "mean"
    while title in names:
        title += " of all"
    return title


def _over_severities(result: Result) -> dict[str, ShiftLevel]:
    """Return the mean of each shift over its severities."""
    names = dict.fromkeys(shift.name for shift in result.shift)
    return {name: level([shift for shift in result.shift if shift.name == name]) for name in names}
