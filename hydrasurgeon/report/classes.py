"""What models make of each class: samples, accuracy, and what a class is taken for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import ABSENT, Cell, Column, Metric, Table

ROWS = 40
"""Classes of a table; of more, those that the reference answers worst."""
PAIRS = 12
"""Confused pairs of a table."""

SAMPLES, FRACTION = Metric("n", "samples"), Metric("fraction", "of all, %")
"""The balance of the classes."""
ACCURACY, CONFUSED = Metric("accuracy", "accuracy", "higher"), Metric("confused", "confused by")
"""What each model makes of a class, and of a pair of classes."""

Pair = tuple[int, int]
"""A class, and what it was taken for."""


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
    """Accuracy by class, and the pairs that are confused most, both in the reference's order."""

    def name(at: int) -> str:
        return names[at] if at < len(names) else str(at)

    def columns(metric: Metric, cell: Callable[[Counter[Pair]], list[Cell]]) -> list[Column]:
        return [
            Column(metric, metric.head, tuple(cell(pairs)), title)
            for (_, title, _), pairs in zip(rows, pairs_of, strict=True)
        ]

    pairs_of = [_pairs(row.choices) for _, _, row in rows]
    first = pairs_of[reference]
    sizes = Counter(rows[reference][2].choices.labels.tolist())
    total = sum(sizes.values())
    order = sorted(sizes, key=lambda at: (first[at, at] / sizes[at], at))
    shown = order[:ROWS]
    note = ""
    if len(order) > ROWS:
        note = f"The {ROWS} of {len(order):,} classes that the reference answers worst."
    accuracies = Table(
        "Accuracy by class",
        tuple(map(name, shown)),
        (
            Column(SAMPLES, "", tuple(_cell(sizes[at], ",") for at in shown)),
            Column(FRACTION, "", tuple(_cell(100 * sizes[at] / total, ".1f") for at in shown)),
            *columns(ACCURACY, lambda pairs: [_recall(pairs, at) for at in shown]),
        ),
        note,
        "class",
    )
    mistakes = [pair for pair in first if pair[0] != pair[1]]
    mistakes = sorted(mistakes, key=lambda pair: (-first[pair], pair))[:PAIRS]
    if not mistakes:
        return [accuracies]
    confused = Table(
        "Most confused pairs",
        tuple(f"{name(true)} → {name(taken)}" for true, taken in mistakes),
        (
            Column(SAMPLES, "", tuple(_cell(sizes[true], ",") for true, _ in mistakes)),
            *columns(CONFUSED, lambda pairs: [_cell(pairs[pair], ",") for pair in mistakes]),
        ),
        "A class, and what it was taken for; samples are those of the class.",
        "true class → answer",
    )
    return [accuracies, confused]


def _pairs(answers: JudgedClasses) -> Counter[Pair]:
    """How many samples of a class got each answer."""
    return Counter(zip(answers.labels.tolist(), answers.predicted.tolist(), strict=True))


def _recall(pairs: Counter[Pair], at: int) -> Cell:
    """The fraction of a class's samples that are answered rightly."""
    size = sum(count for (true, _), count in pairs.items() if true == at)
    return _cell(pairs[at, at] / size, ".3f") if size else Cell(ABSENT)


def _cell(value: float, digits: str) -> Cell:
    return Cell(format(value, digits), values=(value,))
