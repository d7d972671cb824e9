"""What models make of each class, or of each type of entity."""

from __future__ import annotations

from collections.abc import Sequence

from hydrasurgeon.measuring.results import ABSENT, Metric
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import Cell, Column, Table

ROWS = 40
"""Classes of a table; of more, those that the reference answers worst."""


def class_tables(rows: Drawn, reference: int, names: Sequence[str]) -> list[Table]:
    """A table, the reference's worst classes first; none where answers are no classes."""
    every = [row.inside.by_class() for _, _, row in rows]
    first = every[reference]
    if not first:
        return []
    size, *measures = next(iter(first.values()))
    worst = {klass: of[measures[-1]] or 0.0 for klass, of in first.items()}
    found = {klass for of in every for klass in of}
    shown = sorted(found, key=lambda klass: (worst.get(klass, 0.0), klass))[:ROWS]
    counts = tuple(Cell(f"{first[klass][size]:,}" if klass in first else "0") for klass in shown)
    columns = [Column(Metric(size), "", counts)]
    for (_, name, _), of in zip(rows, every, strict=True):
        for measure in measures:
            cells = tuple(_cell(of[klass][measure] if klass in of else None) for klass in shown)
            columns.append(Column(Metric(measure, "higher"), name, cells))
    names = rows[reference][2].inside.class_names(names)
    called = tuple(names[klass] if klass < len(names) else str(klass) for klass in shown)
    note = f"{ROWS} of {len(found):,}." if len(found) > ROWS else ""
    return [Table("By class", called, tuple(columns), note, "class")]


def _cell(value: float | None) -> Cell:
    return Cell(ABSENT if value is None else f"{value:.3f}")
