"""What models make of each type of entity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hydrasurgeon.measuring.results import ABSENT, Metric
from hydrasurgeon.problems.entities import JudgedTokens, called_kind
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import Cell, Column, Table
from hydrasurgeon.statistics.entities import Tags, entities_of

ENTITIES = Metric("entities")
MEASURES = tuple(Metric(name, "higher") for name in ("precision", "recall", "F1"))
"""What each type is measured by; names that the glossary has."""


def entity_tables(rows: Drawn, reference: int, names: Sequence[str]) -> list[Table]:
    """Precision, recall and F1 of each type, the reference's worst first."""
    size = _sizes(rows[reference][2].inside.labels)
    by_model = [
        (name, _by_type(row.inside))
        for _, name, row in rows
        if isinstance(row.inside, JudgedTokens)
    ]
    found = {kind for _, of in by_model for kind in of}
    worst = by_model[reference][1]
    kinds = sorted(found, key=lambda kind: (worst.get(kind, (0, 0, 0))[2] or 0.0, kind))
    columns = [Column(ENTITIES, "", tuple(_cell(size[kind], ",") for kind in kinds))]
    for name, of in by_model:
        for at, metric in enumerate(MEASURES):
            cells = [_cell(of[kind][at] if kind in of else None, ".3f") for kind in kinds]
            columns.append(Column(metric, name, tuple(cells)))
    note = "By strict IOB2: an entity is right if its type and both its ends are."
    called = tuple(str(called_kind(kind, names or None)) for kind in kinds)
    return [Table("Types", called, tuple(columns), note, "type")]


def balance(judged: JudgedTokens, names: Sequence[str]) -> str:
    """How many entities there are, in a sentence."""
    sizes = _sizes(judged.labels).most_common()
    listed = ", ".join(f"{size:,} {called_kind(kind, names or None)}" for kind, size in sizes)
    count = sum(size for _, size in sizes)
    return f"{count:,} entities in {judged.count:,} texts: {listed or 'none'}."


def _sizes(labels: Tags) -> Counter[int]:
    return Counter(entities_of(labels).kind.tolist())


def _by_type(judged: JudgedTokens) -> dict[int, tuple[float | None, float | None, float]]:
    """Precision, recall and F1."""
    true, found = (
        {*zip(*(each.tolist() for each in (e.text, e.first, e.last, e.kind)), strict=True)}
        for e in (entities_of(judged.labels), entities_of(judged.tags))
    )
    size, given, right = (
        Counter(kind for *_, kind in each) for each in (true, found, true & found)
    )
    return {
        kind: (
            right[kind] / given[kind] if given[kind] else None,
            right[kind] / size[kind] if size[kind] else None,
            2 * right[kind] / (given[kind] + size[kind]),
        )
        for kind in size | given
    }


def _cell(value: float | None, digits: str) -> Cell:
    return Cell(ABSENT) if value is None else Cell(format(value, digits))
