"""Tables of what was measured: quality and cost, the best of each column in bold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydrasurgeon.render.console import as_json, notes, raw, say, show, view
from hydrasurgeon.render.tables import Column, Row, Table, show_table
from hydrasurgeon.report.columns import ABSENT, COST, brief, decimals_of, tokens

if TYPE_CHECKING:
    from hydrasurgeon.report.columns import Table as Results
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
    if quiet:
        return None
    results = evaluation.report.results
    for at, each in enumerate(brief(results)):
        if at:
            show("")
        show_table(results_table(each))
    _lengths([None if r.cost is None else r.cost.tokens for r in results])
    asserted = evaluation.report.asserts
    if asserted and all(each.holds for each in asserted):
        show("")
        show(f"all {len(asserted)} assertions hold")
    for path in evaluation.cards:
        show("written into ", (str(path), "bold"))
    if evaluation.hub is not None:
        show("uploaded to ", (evaluation.hub, "bold"))
    return None


def results_table(results: Results) -> Table:
    columns = tuple(Column(c.title or c.metric.brief, c.group) for c in results.columns)
    rows = (
        Row(name, tuple((cell.text, "bold") if cell.rank == "best" else cell.text for cell in cells))
        for name, cells in zip(results.names, results.rows, strict=True)
    )
    return Table(results.title, columns, tuple(rows))


@view(lambda benched: benched.model_dump(mode="json"))
def benched(benched: Benched) -> None:
    results = benched.results
    digits = [decimals_of([metric.of(each) for each in results]) for metric in COST[:2]]
    rows = []
    for contender in results:
        name = f"{contender.name} ({contender.kind})"
        sizes = [metric.text(contender, decimals) for metric, decimals in zip(COST, digits, strict=False)]
        about: tuple[str, ...] = (*sizes, _times(contender.macs_ratio))
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
        *(Column(name, "size") for name in (COST[0].brief, COST[1].brief, "of single")),
        *(Column(name, "speed") for name in ("dtype", "batch", "ms", "of single", "samples/s", "peak MB")),
    )
    show_table(Table("", columns, tuple(rows)))
    _lengths([contender.tokens for contender in results])


def _lengths(lengths: list[int | None]) -> None:
    if note := tokens(lengths):
        show(note)


def _times(ratio: float | None) -> str:
    return ABSENT if ratio is None else f"{ratio:.2f}×"
