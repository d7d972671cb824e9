"""The columns of every table of results: name, direction, digits, and the field that each is read from.

The terminal, the page, Markdown, model cards and the README's tables are written from these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.measuring.results import Interval, Result, ShiftLevel, level

Rank = Literal["best", "second", ""]

ABSENT = "–"
"""What stands where nothing was measured."""
DECIMALS = 3
"""Decimals of fractions and losses."""
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
"""What stands behind the name of a metric: the direction in which it is better."""
WIDEST = 52
"""Characters of a name in a heading, a table or a legend; the verdicts have it whole."""


@dataclass(frozen=True)
class Metric:
    """One number of a record."""

    key: str
    name: str
    better: Literal["higher", "lower", ""] = ""
    brief: str = ""
    """Its name on a terminal; without one it is not shown there."""
    unit: float | None = None
    """What it is divided by; a metric with a unit is a cost, with so many decimals that the least has three digits."""

    @property
    def head(self) -> str:
        return self.name + ARROWS[self.better]

    def of(self, record: Any) -> float | None:
        value = getattr(record, self.key, None)
        return None if value is None else float(value) / (self.unit or 1)

    def text(self, record: Any, decimals: int) -> str:
        value = self.of(record)
        return ABSENT if value is None else f"{value:.{decimals}f}"


QUALITY = (
    Metric("accuracy", "accuracy", "higher", "Acc"),
    Metric("brier", "Brier", "lower", "Brier"),
    Metric("nll", "NLL", "lower", "NLL"),
    Metric("ece", "ECE", "lower", "ECE"),
    Metric("aece", "aECE", "lower", "aECE"),
)
"""What every labelled set is measured by."""
ANSWERS = (
    Metric("smece", "SmoothECE", "lower"),
    Metric("aurc", "AURC", "lower"),
    Metric("cov5", "coverage at 5 % risk", "higher"),
    Metric("coverage", "set coverage", "", "covered"),
    Metric("set_size", "set size", "", "set size"),
)
"""What the first labelled set is measured by besides."""
DIVERSITY = (Metric("mi", "MI", "", "MI"), Metric("disagreement", "disagreement", "", "DI"))
"""How members differ: more of it is neither good nor bad by itself."""
COST = (
    Metric("params", "parameters, M", "lower", "params M", 1e6),
    Metric("macs", "multiply-adds, M", "lower", "MACs M", 1e6),
    Metric("expected_macs", "expected multiply-adds, M", "lower", "expected M", 1e6),
    Metric("latency_ms", "time, ms", "lower", "ms", 1),
)
"""What a model costs; `expected_macs` is a cascade's, which does not run all its members on each sample."""
OOD = (
    Metric("auroc", "AUROC", "higher", "AUROC"),
    Metric("fpr95", "FPR95", "lower", "FPR95"),
    Metric("aupr", "AUPR", "higher", "AUPR"),
)
"""What an OOD set is detected by."""
SHIFT = (*QUALITY[:2], Metric("mce", "mCE", "lower", "mCE"))
"""What is left under shifts."""


@dataclass(frozen=True)
class Cell:
    text: str
    rank: Rank = ""
    low: str = ""
    high: str = ""
    """The ends of its interval, where there is one."""


@dataclass(frozen=True)
class Column:
    """One metric of every row; `group` stands above it and its neighbours of the same group."""

    metric: Metric
    group: str
    cells: tuple[Cell, ...]
    title: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    names: tuple[str, ...]
    columns: tuple[Column, ...]
    note: str = ""

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(zip(*(column.cells for column in self.columns), strict=True))

    def groups(self) -> list[tuple[str, int]]:
        """The groups of neighbours, and how many columns each has."""
        return [(group, len(list(each))) for group, each in groupby(column.group for column in self.columns)]


def shown_name(result: Result) -> str:
    """What a row is called: an ensemble by its size, for its name is that of all its members."""
    return f"ensemble of {result.members}" if result.kind == "ensemble" else result.name


def short(text: str, widest: int = WIDEST) -> str:
    """A long name by its start and its end, where names of one family differ."""
    shown = visible(text)
    tail = widest * 3 // 8
    return shown if len(shown) <= widest else f"{shown[: widest - 1 - tail]}…{shown[-tail:]}"


def tables(results: Sequence[Result]) -> list[Table]:
    """In-distribution quality, cost, OOD detection, then data sets and shifts where there are several."""
    mean = _free("mean", (each.name for r in results for each in r.sets or ()))
    average = _free("mean", (s.name for r in results for s in r.shift))
    by_set = [{**{s.name: s for s in r.sets or ()}, mean: r.sets_average} for r in results]
    by_shift = [{average: r.shift_average, **_over_severities(r)} for r in results]
    made = {
        "In distribution": quality(results),
        "Cost": columns(COST, [r.cost for r in results]),
        "Out of distribution": _grouped(OOD, [_ood(r) for r in results]),
        "By data set": _grouped((QUALITY[0], *QUALITY[2:4]), by_set),
        "Under distribution shift": _grouped(SHIFT, by_shift),
    }
    notes = {"Cost": tokens([None if r.cost is None else r.cost.tokens for r in results])}
    names = tuple(map(shown_name, results))
    return [Table(title, names, tuple(each), notes.get(title, "")) for title, each in made.items() if each]


def brief(results: Sequence[Result]) -> list[Table]:
    """The same for a terminal: what has a brief name, OOD sets and shifts by their averages."""
    averages = [
        {group: each for group, each in r.ood_average.items() if group != "all" or len(r.ood_average) > 2}
        for r in results
    ]
    sets = [{**{s.name: s for s in r.sets or ()}, " mean": r.sets_average} for r in results]
    costs = columns(COST, [r.cost for r in results], " ")  # the blank gives them no heading
    made = {
        "in distribution": [*quality(results), *costs],
        "out of distribution": _grouped(OOD, averages),
        "under shift, by severity": _by_severity(results),
        "by data set": _grouped((QUALITY[0], *QUALITY[2:4]), sets),
    }
    names = tuple(map(shown_name, results))
    kept = {title: tuple(c for c in each if c.metric.brief) for title, each in made.items()}
    return [Table(title, names, each) for title, each in kept.items() if each]


def quality(results: Sequence[Result]) -> list[Column]:
    """How well the labelled set is answered, and how members differ."""
    return [
        *columns((*QUALITY, *ANSWERS), [r.id for r in results]),
        *columns(DIVERSITY, [r.diversity for r in results]),
    ]


def columns(metrics: Iterable[Metric], records: Sequence[Any], group: str = "") -> list[Column]:
    """A column for each metric that any of these records has."""
    return [
        Column(metric, group, _cells(metric, records))
        for metric in metrics
        if any(metric.of(record) is not None for record in records)
    ]


def _grouped(metrics: Sequence[Metric], rows: Sequence[Mapping[Any, Any]]) -> list[Column]:
    """Columns for each group of records; in each row the same names may be missing."""
    groups = dict.fromkeys(name for row in rows for name in row)
    return [column for group in groups for column in columns(metrics, [row.get(group) for row in rows], group)]


def _cells(metric: Metric, records: Sequence[Any]) -> tuple[Cell, ...]:
    """One column, with as many decimals in each row; what looks alike ranks alike."""
    values = [metric.of(record) for record in records]
    decimals = decimals_of(values) if metric.unit else DECIMALS
    texts = [ABSENT if value is None else f"{value:.{decimals}f}" for value in values]
    numbers = sorted({float(text) for text in texts if text != ABSENT}, reverse=metric.better == "higher")
    # Of two numbers the second best is the worst.
    places: tuple[Rank, ...] = ("best", "second") if len(numbers) > 2 else ("best",)
    ranks = dict(zip(numbers, places, strict=False)) if metric.better and len(numbers) > 1 else {}
    cells = []
    for record, text in zip(records, texts, strict=True):
        ends: Interval | None = (getattr(record, "ci", None) or {}).get(metric.key)
        rank = "" if text == ABSENT else ranks.get(float(text), "")
        cells.append(Cell(text, rank, *(f"{end:.{decimals}f}" for end in ends or ())))
    return tuple(cells)


def decimals_of(values: Sequence[float | None]) -> int:
    """So many that the least has three digits."""
    least = min((value for value in values if value is not None and value > 0), default=1.0)
    return max(0, min(2 - math.floor(math.log10(least)), 6))


def tokens(lengths: Sequence[int | None]) -> str:
    """How long the text is whose multiply-adds a table shows."""
    present = sorted({length for length in lengths if length is not None})
    return f"Multiply-adds are of one text of {' or '.join(map(str, present))} tokens." if present else ""


def _ood(result: Result) -> dict[str, Any]:
    """OOD sets by name, then the means of groups of several."""
    sets = {f"{each.name} ({each.group})": each for each in result.ood}
    counts = {group: sum(group in ("all", o.group) for o in result.ood) for group in result.ood_average}
    return sets | {f"mean, {group}": each for group, each in result.ood_average.items() if counts[group] > 1}


def _free(title: str, taken: Iterable[str]) -> str:
    """What stands above an average over sets, none of which is called so."""
    names = set(taken)
    while title in names:
        title += " of all"
    return title


def _over_severities(result: Result) -> dict[str, ShiftLevel]:
    """The mean of each shift over its severities."""
    names = dict.fromkeys(each.name for each in result.shift)
    return {name: level([each for each in result.shift if each.name == name]) for name in names}


def _by_severity(results: Sequence[Result]) -> list[Column]:
    """Accuracy and Brier at each severity, their means, and errors as a share of the first row's."""
    averages = [r.shift_average for r in results]
    severities = sorted({at for each in averages if each is not None for at in each.severities})
    made = []
    for metric in SHIFT[:2] if severities else ():
        for at in severities:
            records = [None if each is None else each.severities.get(at) for each in averages]
            made.append(Column(metric, metric.brief, _cells(metric, records), str(at)))
        made.append(Column(metric, metric.brief, _cells(metric, averages), "mean"))
    return [*made, *columns(SHIFT[2:], averages, " ")]
