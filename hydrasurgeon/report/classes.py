"""What models make of each class: samples, and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hydrasurgeon.measuring.results import ABSENT, Metric
from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import Cell, Column, Table

ROWS = 40
"""Classes of a table; of more, those that the reference answers worst."""

SAMPLES, FRACTION = Metric("samples"), Metric("of all, %")
"""The balance of the classes."""
ACCURACY = Metric("accuracy", "higher")
"""What each model makes of a class."""


def balance(answers: JudgedClasses) -> str:
    """How even the classes are, in a sentence."""
    sizes = Counter(answers.labels.tolist()).values()
    most, least = max(sizes), min(sizes)
    if most == least:
        return f"{len(sizes):,} classes of {most:,} samples each."
    ratio = f"{most / least:.1f} times as many"
    return (
        f"{len(sizes):,} classes of {least:,} to {most:,} samples, the largest {ratio} as the "
        "smallest."
    )


def class_tables(rows: Drawn, reference: int, names: Sequence[str]) -> list[Table]:
    """Accuracy by class, the reference's worst first."""
    every = [_by_class(row.choices) for _, _, row in rows]
    first = every[reference]
    total = sum(size for _, size in first.values())
    shown = sorted(first, key=lambda at: (first[at][0] / first[at][1], at))[:ROWS]
    note = ""
    if len(first) > ROWS:
        note = f"The {ROWS} of {len(first):,} classes that the reference answers worst."
    columns = [
        Column(SAMPLES, "", tuple(_cell(first[at][1], ",") for at in shown)),
        Column(FRACTION, "", tuple(_cell(100 * first[at][1] / total, ".1f") for at in shown)),
    ]
    for (_, title, _), by_class in zip(rows, every, strict=True):
        cells = [
            _cell(by_class[at][0] / by_class[at][1], ".3f") if at in by_class else Cell(ABSENT)
            for at in shown
        ]
        columns.append(Column(ACCURACY, ACCURACY.head, tuple(cells), title))
    called = tuple(names[at] if at < len(names) else str(at) for at in shown)
    return [Table("Accuracy by class", called, tuple(columns), note, "class")]


def _by_class(answers: JudgedClasses) -> dict[int, tuple[int, int]]:
    """Of each class how many samples are answered rightly, and how many there are."""
    right = Counter(answers.labels[answers.correct].tolist())
    return {at: (right[at], size) for at, size in Counter(answers.labels.tolist()).items()}


def _cell(value: float, digits: str) -> Cell:
    return Cell(format(value, digits))
