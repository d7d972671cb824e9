"""Tables of metrics by class, or by type of entity."""

from __future__ import annotations

from collections.abc import Sequence

from hydrasurgeon.measuring.results import ABSENT, Metric
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import Cell, MetricColumn, ReportTable

ROWS = 40
"""Maximum number of classes in a table; if there are more, those that the reference answers
worst.
"""


def class_tables(rows: Drawn, reference: int, names: Sequence[str]) -> list[ReportTable]:
    """Return a table with the reference's worst classes first; none if answers are not classes."""
    metrics_by_class = [row.inside.by_class() for _, _, row in rows]
    first = metrics_by_class[reference]
    if not first:
        return []
    size, *measures = next(iter(first.values()))
    worst = {klass: of[measures[-1]] or 0.0 for klass, of in first.items()}
    classes = {klass for of in metrics_by_class for klass in of}
    shown = sorted(classes, key=lambda klass: (worst.get(klass, 0.0), klass))[:ROWS]
    counts = tuple(Cell(f"{first[klass][size]:,}" if klass in first else "0") for klass in shown)
    columns = [MetricColumn(Metric(size), "", counts)]
    for (_, name, _), of in zip(rows, metrics_by_class, strict=True):
        for measure in measures:
            cells = tuple(_cell(of[klass][measure] if klass in of else None) for klass in shown)
            columns.append(MetricColumn(Metric(measure, "higher"), name, cells))
    names = rows[reference][2].inside.class_names(names)
    called = tuple(names[klass] if klass < len(names) else str(klass) for klass in shown)
    note = f"{ROWS} of {len(classes):,}." if len(classes) > ROWS else ""
    return [ReportTable("By class", called, tuple(columns), note, "class")]


def _cell(value: float | None) -> Cell:
    return Cell(ABSENT if value is None else f"{value:.3f}")
