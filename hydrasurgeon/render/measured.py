"""Tables of what was measured: quality and cost, the best of each column in bold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.render.console import Part, as_json, raw, say, show
from hydrasurgeon.render.pieces import notes, show_table
from hydrasurgeon.render.tables import Column, Row, Table

if TYPE_CHECKING:
    from hydrasurgeon.measuring.results import Report, Result
    from hydrasurgeon.stages.bench import Benched
    from hydrasurgeon.stages.evaluate import Evaluation


def evaluated(evaluation: Evaluation, *, json: bool, quiet: bool) -> None:
    if not quiet:
        for name in evaluation.skipped:
            say(f"skipped: {name}")
        notes(evaluation.notes)
    if json:
        return as_json(evaluation.report.model_dump(mode="json"))
    for text in evaluation.printed.values():
        return raw(text)
    if not quiet:
        for at, table in enumerate(report_tables(evaluation.report)):
            if at:
                show("")
            show_table(table)
        _lengths([None if r.cost is None else r.cost.tokens for r in evaluation.report.results])
        asserted = evaluation.report.asserts
        if asserted and all(each.holds for each in asserted):
            show("")
            show(f"all {len(asserted)} assertions hold")
        for path in evaluation.cards:
            show("written into ", (str(path), "bold"))
        if evaluation.hub is not None:
            show("uploaded to ", (evaluation.hub, "bold"))
    return None


def report_tables(report: Report) -> list[Table]:
    """In-distribution quality and cost, then OOD detection, then each metric by data set."""
    results = report.results
    names = [_title(result) for result in results]
    tables = [_table("in distribution", names, [_quality(result) for result in results])]
    if any(result.ood for result in results):
        tables.append(_table("out of distribution", names, [_foreign(r) for r in results]))
    shifted = [result for result in results if result.shift_average is not None]
    if shifted:
        titles = [_title(result) for result in shifted]
        tables.append(_table("under shift, by severity", titles, [_shifted(r) for r in shifted]))
    several = [result for result in results if result.sets is not None]
    if several:
        titles = [_title(result) for result in several]
        tables += [
            _table(f"{metric} by data set", titles, [_by_set(r, metric, field) for r in several])
            for metric, field in BY_SET
        ]
    return tables


Place = tuple[str, str, str]
"""Of a number: the metric it is of, what stands above its column, the column's name."""


def _table(title: str, names: Sequence[str], rows: Sequence[Mapping[Place, float]]) -> Table:
    places = list(dict.fromkeys(place for row in rows for place in row))
    by_column = [cells(place[0], [row.get(place) for row in rows]) for place in places]
    best = [best_of(place[0], column) for place, column in zip(places, by_column, strict=True)]

    def marked(row: Iterable[str]) -> tuple[Part, ...]:
        return tuple((text, "bold") if text == top else text for text, top in zip(row, best, strict=True))

    return Table(
        title,
        tuple(Column(name, group) for _, group, name in places),
        tuple(Row(name, marked(row)) for name, row in zip(names, zip(*by_column, strict=True), strict=True)),
    )


def _by_set(result: Result, metric: str, field: str) -> dict[Place, float]:
    """One metric on every data set, and its mean over them."""
    row = {(metric, "", each.name): getattr(each, field) for each in result.sets or ()}
    return row | {(metric, " ", "mean"): getattr(result.sets_average, field)}


def _title(result: Result) -> str:
    return f"ensemble of {result.members}" if result.kind == "ensemble" else result.name


def _quality(result: Result) -> dict[Place, float]:
    i = result.id
    worth = {"Acc": i.accuracy, "Brier": i.brier, "NLL": i.nll, "ECE": i.ece, "aECE": i.aece}
    if i.coverage is not None and i.set_size is not None:
        worth |= {"covered": i.coverage, "set size": i.set_size}
    diversity = {"MI": result.diversity.mi, "DI": result.diversity.disagreement}
    cost: dict[str, float] = {}
    if result.cost is not None:
        cost = {"params M": result.cost.params / 1e6, "MACs M": result.cost.macs / 1e6}
        if result.cost.expected_macs is not None:
            cost["expected M"] = result.cost.expected_macs / 1e6
        if result.cost.latency_ms is not None:
            cost["ms"] = result.cost.latency_ms
    # Costs stand together on a narrow terminal; the blank gives them no heading.
    row = {(name, "", name): value for name, value in (worth | diversity).items()}
    return row | {(name, " ", name): value for name, value in cost.items()}


def _foreign(result: Result) -> dict[Place, float]:
    row: dict[Place, float] = {}
    for group, average in result.ood_average.items():
        if group != "all" or len(result.ood_average) > 2:
            values = {"AUROC": average.auroc, "FPR95": average.fpr95, "AUPR": average.aupr}
            row |= {(name, group, name): value for name, value in values.items()}
    return row


def _shifted(result: Result) -> dict[Place, float]:
    """Accuracy and Brier at each severity, their means, and errors as a share of the first row's."""
    average = result.shift_average
    assert average is not None
    row: dict[Place, float] = {}
    for name, field in (("Acc", "accuracy"), ("Brier", "brier")):
        row |= {(name, name, str(at)): getattr(level, field) for at, level in average.severities.items()}
        row[name, name, "mean"] = getattr(average, field)
    if average.mce is not None:
        row["mCE", " ", "mCE"] = average.mce
    return row


def benched(benched: Benched, *, json: bool, quiet: bool) -> None:
    if json:
        return as_json(benched.model_dump(mode="json"))
    if quiet:
        return None
    notes(benched.notes)
    rows = []
    params = cells("params M", [contender.params / 1e6 for contender in benched.results])
    macs = cells("MACs M", [contender.macs / 1e6 for contender in benched.results])
    for contender, *sizes in zip(benched.results, params, macs, strict=True):
        name = f"{contender.name} ({contender.kind})"
        about = (*sizes, _times(contender.macs_ratio))
        for point in contender.points:
            times = (
                point.dtype,
                str(point.batch),
                f"{point.latency_ms:.2f}",
                _times(point.ratio),
                f"{point.throughput:.1f}",
                f"{point.peak_bytes / 1e6:.1f}",
            )
            rows.append(Row(name, (*about, *times)))
            name, about = "", ("", "", "")
    columns = (
        *(Column(column, "size") for column in ("params M", "MACs M", "of single")),
        *(Column(column, "speed", repeat=True) for column in ("dtype", "batch")),
        *(Column(column, "speed") for column in ("ms", "of single", "samples/s", "peak MB")),
    )
    show_table(Table("", columns, tuple(rows)))
    return _lengths([contender.tokens for contender in benched.results])


def _lengths(tokens: Sequence[int | None]) -> None:
    """How long the text is whose multiply-adds a table shows."""
    lengths = sorted({length for length in tokens if length is not None})
    if lengths:
        show(f"MACs: of one text of {' or '.join(map(str, lengths))} tokens")


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}×"


HIGHER_IS_BETTER = ("Acc", "AUROC", "AUPR")
"""Columns whose best value is the largest; of all others it is the smallest."""
# More diversity is neither good nor bad by itself, and how often sets hold the truth was asked for.
UNRANKED = ("MI", "DI", "covered", "set size")
BY_SET = (("Acc", "accuracy"), ("NLL", "nll"), ("ECE", "ece"))
"""The columns of each data set, where there are several."""
ABSENT = "–"
"""What stands where nothing was measured."""
COSTS = ("params M", "MACs M", "expected M", "ms")
"""The columns of what a model costs."""


def best_of(name: str, values: Sequence[str]) -> str | None:
    numbers = [value for value in values if value != ABSENT]
    if name in UNRANKED or len(numbers) < 2:
        return None
    return (max if name in HIGHER_IS_BETTER else min)(numbers, key=float)


def cells(name: str, values: Sequence[float | None]) -> list[str]:
    """A column with as many decimals in each row: three for shares; costs so many that the least has three digits."""
    decimals = 3
    if name in COSTS:
        least = min((value for value in values if value is not None and value > 0), default=1.0)
        decimals = max(0, min(2 - math.floor(math.log10(least)), 6))
    return [ABSENT if value is None else f"{value:.{decimals}f}" for value in values]
