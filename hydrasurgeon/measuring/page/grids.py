"""The tables of a report as data: which column is better which way, what is best and second best in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hydrasurgeon.measuring.results import Report, Result

Rank = Literal["best", "second", ""]

ABSENT = "–"
"""What stands where nothing was measured."""
DECIMALS = 3
"""Of shares and losses."""


@dataclass(frozen=True)
class Column:
    name: str
    better: Literal["higher", "lower", ""] = ""
    group: str = ""
    """What stands above this column and its neighbours of the same group."""
    is_cost: bool = False


@dataclass(frozen=True)
class Cell:
    text: str
    rank: Rank = ""
    low: str = ""
    high: str = ""
    """The ends of its interval, where there is one."""


@dataclass(frozen=True)
class Grid:
    title: str
    columns: tuple[Column, ...]
    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


Entry = tuple[float | None, tuple[float, float] | None]
"""A number, and its interval."""
Row = Mapping[Column, Entry]


def shown_name(result: Result) -> str:
    """What a row is called: an ensemble by its size, for its name is that of all its members."""
    return f"ensemble of {result.members}" if result.kind == "ensemble" else result.name


def grids(report: Report) -> list[Grid]:
    """In-distribution quality, cost, OOD detection, then data sets and shifts where there are several."""
    results = report.results
    tables = [_grid("In distribution", results, [_quality(r) for r in results])]
    if any(r.cost for r in results):
        tables.append(_grid("Cost", results, [_cost(r) for r in results], note=_length(results)))
    if any(r.ood for r in results):
        tables.append(_grid("Out of distribution", results, [_foreign(r) for r in results]))
    if any(r.sets for r in results):
        tables.append(
            _grid(
                "By data set",
                results,
                [_sets(r, _mean(s.name for r in results for s in r.sets or ())) for r in results],
            )
        )
    if any(r.shift for r in results):
        tables.append(
            _grid(
                "Under distribution shift",
                results,
                [_shift(r, _mean(s.name for r in results for s in r.shift)) for r in results],
            )
        )
    return tables


def _grid(title: str, results: Sequence[Result], rows: Sequence[Row], *, note: str = "") -> Grid:
    columns = tuple(dict.fromkeys(column for row in rows for column in row))
    by_column = [_cells(column, [row.get(column, (None, None)) for row in rows]) for column in columns]
    across = zip(*by_column, strict=True)
    return Grid(title, columns, tuple(map(shown_name, results)), tuple(across), note)


def _cells(column: Column, entries: Sequence[Entry]) -> list[Cell]:
    """One column, with as many decimals in each row; what looks alike ranks alike."""
    decimals = _decimals([value for value, _ in entries]) if column.is_cost else DECIMALS

    def text(value: float) -> str:
        return f"{value:.{decimals}f}"

    numbers = sorted(
        {float(text(value)) for value, _ in entries if value is not None}, reverse=column.better == "higher"
    )
    ranks: dict[str, Rank] = {}
    if column.better and sum(value is not None for value, _ in entries) > 1 and len(numbers) > 1:
        ranks = {text(numbers[0]): "best"}
        # Of two numbers the second best is the worst.
        if len(numbers) > 2:
            ranks[text(numbers[1])] = "second"
    return [
        Cell(ABSENT)
        if value is None
        else Cell(text(value), ranks.get(text(value), ""), *(map(text, ends) if ends else ()))
        for value, ends in entries
    ]


def _decimals(values: Sequence[float | None]) -> int:
    """So many that the least has three digits."""
    least = min((value for value in values if value is not None and value > 0), default=1.0)
    return max(0, min(2 - math.floor(math.log10(least)), 6))


def _quality(result: Result) -> Row:
    i, ends = result.id, result.id.ci or {}
    table: tuple[tuple[str, Literal["higher", "lower", ""], str, float | None], ...] = (
        ("accuracy", "higher", "accuracy", i.accuracy),
        ("Brier", "lower", "brier", i.brier),
        ("NLL", "lower", "nll", i.nll),
        ("ECE", "lower", "ece", i.ece),
        ("aECE", "lower", "aece", i.aece),
        ("SmoothECE", "lower", "smece", i.smece),
        ("AURC", "lower", "aurc", i.aurc),
        ("coverage at 5 % risk", "higher", "cov5", i.cov5),
        ("set coverage", "", "coverage", i.coverage),
        ("set size", "", "set_size", i.set_size),
        ("MI", "", "mi", result.diversity.mi),
        ("disagreement", "", "disagreement", result.diversity.disagreement),
    )
    return {Column(name, better): (value, ends.get(key)) for name, better, key, value in table if value is not None}


def _cost(result: Result) -> Row:
    if result.cost is None:
        return {}
    # `expected_macs`: of a cascade, which does not run all of its members on each sample.
    values = result.cost.model_dump()
    units: tuple[tuple[str, str, Callable[[float], float]], ...] = (
        ("parameters, M", "params", _millions),
        ("multiply-adds, M", "macs", _millions),
        ("expected multiply-adds, M", "expected_macs", _millions),
        ("time, ms", "latency_ms", float),
    )
    return {
        Column(name, "lower", is_cost=True): (unit(values[key]), None)
        for name, key, unit in units
        if values.get(key) is not None
    }


def _millions(value: float) -> float:
    return value / 1e6


def _length(results: Sequence[Result]) -> str:
    lengths = sorted({r.cost.tokens for r in results if r.cost and r.cost.tokens is not None})
    return f"Multiply-adds are of one text of {' or '.join(map(str, lengths))} tokens." if lengths else ""


def _foreign(result: Result) -> Row:
    row: dict[Column, Entry] = {}
    averages = [
        (f"mean, {group}", value)
        for group, value in result.ood_average.items()
        if sum(o.group == group or group == "all" for o in result.ood) > 1
    ]
    for name, values in [*((f"{o.name} ({o.group})", o) for o in result.ood), *averages]:
        ends = values.ci or {}
        row[Column("AUROC", "higher", name)] = (values.auroc, ends.get("auroc"))
        row[Column("FPR95", "lower", name)] = (values.fpr95, ends.get("fpr95"))
        row[Column("AUPR", "higher", name)] = (values.aupr, ends.get("aupr"))
    return row


def _mean(names: Iterable[str]) -> str:
    """What stands above an average over sets, none of which is called so."""
    taken, title = set(names), "mean"
    while title in taken:
        title += " of all"
    return title


def _sets(result: Result, mean: str) -> Row:
    row: dict[Column, Entry] = {}
    average = [(mean, result.sets_average)] if result.sets_average is not None else []
    for name, values in [*((s.name, s) for s in result.sets or ()), *average]:
        row[Column("accuracy", "higher", name)] = (values.accuracy, None)
        row[Column("NLL", "lower", name)] = (values.nll, None)
        row[Column("ECE", "lower", name)] = (values.ece, None)
    return row


def _shift(result: Result, mean: str) -> Row:
    """Each shift, a mean over its severities, and what is left over all of them, under `mean`."""
    row: dict[Column, Entry] = {}
    average = result.shift_average
    if average is not None:
        row[Column("accuracy", "higher", mean)] = (average.accuracy, None)
        row[Column("Brier", "lower", mean)] = (average.brier, None)
        if average.mce is not None:
            row[Column("mCE", "lower", mean)] = (average.mce, None)
    for name in dict.fromkeys(s.name for s in result.shift):
        values = [s for s in result.shift if s.name == name]
        row[Column("accuracy", "higher", name)] = (sum(s.accuracy for s in values) / len(values), None)
        row[Column("Brier", "lower", name)] = (sum(s.brier for s in values) / len(values), None)
    return row
