"""Tables of what was measured: quality and cost, the best of each column in bold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from hydrasurgeon.render.console import out, raw, say

if TYPE_CHECKING:
    from hydrasurgeon.measuring.report import Report, Result
    from hydrasurgeon.stages.bench import Benched
    from hydrasurgeon.stages.evaluate import Evaluation


__all__ = ["benched", "evaluated", "report_tables"]


def evaluated(evaluation: Evaluation, *, json: bool, quiet: bool) -> None:
    for name in evaluation.skipped:
        if not quiet:
            say(f"skipped: {name}")
    if json:
        return raw(evaluation.report.to_json())
    if not quiet:
        for table in report_tables(evaluation.report):
            out().print(table)
        for path in evaluation.cards:
            out().print(f"written into [bold]{escape(str(path))}[/]")
    return None


def report_tables(report: Report) -> list[Table]:
    """What people read: in-distribution quality and cost, then OOD detection; the best of each column in bold."""
    tables = [_table(report, "in distribution", _quality)]
    if any(result.ood for result in report.results):
        tables.append(_table(report, "out of distribution", _foreign))
    several = [result for result in report.results if result.sets is not None]
    return tables + ([_by_set(several, *metric) for metric in BY_SET] if several else [])


def _by_set(results: Sequence[Result], name: str, field: str) -> Table:
    """One metric on every data set, and its mean over them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{name} by data set", no_wrap=True)
    rows = []
    for result in results:
        by_name = {each.name: getattr(each, field) for each in result.sets or ()}
        rows.append({**by_name, "mean": getattr(result.sets_average, field)})
    for column in rows[0]:
        table.add_column(escape(column), justify="right")
    shown = [[cell(name, value) for value in row.values()] for row in rows]
    best = [best_of(name, list(column)) for column in zip(*shown, strict=True)]
    for result, row in zip(results, shown, strict=True):
        marked = [f"[bold]{c}[/]" if c == top else c for c, top in zip(row, best, strict=True)]
        table.add_row(escape(_title(result)), *marked)
    return table


def _table(report: Report, title: str, cells: Callable[[Result], dict[str, float]]) -> Table:
    rows = [cells(result) for result in report.results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    best = {
        name: best_of(name, [cell(name, row[name]) for row in rows if name in row])
        for name in columns
    }
    for result, row in zip(report.results, rows, strict=True):
        shown = [cell(name, row.get(name)) for name in columns]
        marked = [
            f"[bold]{cell}[/]" if cell == best[name] else cell
            for name, cell in zip(columns, shown, strict=True)
        ]
        table.add_row(escape(_title(result)), *marked)
    return table


def _title(result: Result) -> str:
    return f"ensemble of {result.members}" if result.kind == "ensemble" else result.name


def _quality(result: Result) -> dict[str, float]:
    i = result.id
    row: dict[str, float] = {
        "Acc": i.accuracy,
        "Brier": i.brier,
        "NLL": i.nll,
        "ECE": i.ece,
        "aECE": i.aece,
    }
    row |= {"MI": result.diversity.mi, "DI": result.diversity.disagreement}
    if result.cost is not None:
        row |= {
            "params M": result.cost.params / 1e6,
            "MACs M": result.cost.macs / 1e6,
        }
        if result.cost.latency_ms is not None:
            row["ms"] = result.cost.latency_ms
    return row


def _foreign(result: Result) -> dict[str, float]:
    row: dict[str, float] = {}
    for group, average in result.ood_average.items():
        if group != "all" or len(result.ood_average) > 2:
            row |= {
                f"AUROC {group}": average.auroc,
                f"FPR95 {group}": average.fpr95,
                f"AUPR {group}": average.aupr,
            }
    return row


def benched(found: Benched, *, json: bool, quiet: bool) -> None:
    if json:
        return raw(found.model_dump_json(indent=1))
    for text in found.notes:
        say(f"note: {text}")
    if quiet:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = (
        "params M",
        "MACs M",
        "of single",
        "dtype",
        "batch",
        "ms",
        "samples/s",
        "peak MB",
        "of single",
    )
    table.add_column("model", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for contender in found.results:
        head = [
            f"{escape(contender.name)} ({contender.kind})", cell("params M", contender.params / 1e6),
            cell("MACs M", contender.macs / 1e6), _times(contender.macs_ratio),
        ]  # fmt: skip
        for point in contender.points:
            table.add_row(
                *head, point.dtype, str(point.batch), f"{point.latency_ms:.2f}", f"{point.throughput:.1f}",
                f"{point.peak_bytes / 1e6:.1f}", _times(point.ratio),
            )  # fmt: skip
            head = [""] * len(head)
    out().print(table)
    return None


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


HIGHER_IS_BETTER = ("Acc", "AUROC", "AUPR")
UNRANKED = ("MI", "DI")  # more diversity is neither good nor bad by itself
BY_SET = (("Acc", "accuracy"), ("NLL", "nll"), ("ECE", "ece"))
COSTS = ("params M", "MACs M", "ms")


def best_of(name: str, values: list[str]) -> str | None:
    if name in UNRANKED or len(values) < 2:
        return None
    return (max if name.startswith(HIGHER_IS_BETTER) else min)(values, key=float)


def cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name in COSTS:
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return f"{value:.3f}"
