"""What models make of each class: samples, accuracy, and what a class is taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hydrasurgeon.measuring.answers import Answered
from hydrasurgeon.problems.classes import JudgedClasses
from hydrasurgeon.report.charts import Drawn
from hydrasurgeon.report.columns import ABSENT, Cell, Column, Metric, Rank, Table, short
from hydrasurgeon.report.svg import drawing, figure, mark, number, text_of

ROWS = 40
"""Classes of a table; of more, those that the reference answers worst."""
PAIRS = 12
"""Confused pairs of a table."""
DRAWN = 20
"""Classes of a drawn confusion matrix; of more, the table of pairs says it."""
TITLE = 14
"""Characters of a class's name beside the matrix."""
SIDE = 360
"""Width of the matrix with the names at its left, in CSS pixels."""
NUMBERED = 10
"""Classes of a matrix that has room for numbers in its cells."""

SAMPLES, FRACTION = Metric("n", "samples"), Metric("fraction", "of all, %")
"""The balance of the classes."""
ACCURACY, CONFUSED = Metric("accuracy", "accuracy", "higher"), Metric("confused", "confused by")
"""What each model makes of a class, and of a pair of classes."""


@dataclass(frozen=True)
class Classes:
    """The rows of a report, and what the classes that they answered for are called."""

    drawn: Drawn
    reference: int
    names: Sequence[str]

    @property
    def first(self) -> JudgedClasses:
        return self.drawn[self.reference][2].choices

    def name(self, at: int) -> str:
        return self.names[at] if at < len(self.names) else str(at)

    def balance(self) -> str:
        """How even the classes are, in a sentence."""
        counts = torch.bincount(self.first.labels)
        present = counts[counts > 0]
        most, least = int(present.max()), int(present.min())
        if most == least:
            return f"{len(present):,} classes of {most:,} samples each."
        ratio = f"{most / least:.1f} times as many"
        return (
            f"{len(present):,} classes of {least:,} to {most:,} samples, the largest {ratio} "
            "as the smallest."
        )

    def tables(self) -> list[Table]:
        """Accuracy by class, and the pairs that are confused most, both in the reference's order."""
        return [self._accuracies(), *self._pairs()]

    def _accuracies(self) -> Table:
        counts = torch.bincount(self.first.labels)
        order = (counts > 0).nonzero()[:, 0].tolist()
        recalls = [_recall(row) for _, _, row in self.drawn]
        first = recalls[self.reference]
        order = sorted(order, key=lambda at: (first[at], at))
        note = (
            f"The {ROWS} of {len(order):,} classes that the reference answers worst."
            if len(order) > ROWS
            else ""
        )
        order = order[:ROWS]
        total = len(self.first.labels)
        sizes = [int(counts[at]) for at in order]
        columns = [
            Column(SAMPLES, "", tuple(Cell(f"{n:,}", values=(n,)) for n in sizes)),
            Column(
                FRACTION,
                "",
                tuple(Cell(f"{100 * n / total:.1f}", values=(100 * n / total,)) for n in sizes),
            ),
        ]
        cells = [_ranked([recall.get(at) for recall in recalls]) for at in order]
        for at, (_, name, _) in enumerate(self.drawn):
            columns.append(Column(ACCURACY, ACCURACY.head, tuple(row[at] for row in cells), name))
        return Table(
            "Accuracy by class", tuple(map(self.name, order)), tuple(columns), note, "class"
        )

    def _pairs(self) -> list[Table]:
        """None where the reference makes no mistake."""
        confusions = [confused(row.choices) for _, _, row in self.drawn]
        sizes = torch.bincount(self.first.labels).tolist()
        order = [pair for pair, _ in mistakes(confusions[self.reference])][:PAIRS]
        if not order:
            return []
        columns = [
            Column(
                SAMPLES,
                "",
                tuple(Cell(f"{sizes[true]:,}", values=(sizes[true],)) for true, _ in order),
            )
        ]
        for (_, name, _), counts in zip(self.drawn, confusions, strict=True):
            cells = tuple(
                Cell(f"{counts.get(pair, 0):,}", values=(counts.get(pair, 0),)) for pair in order
            )
            columns.append(Column(CONFUSED, CONFUSED.head, cells, name))
        names = tuple(f"{self.name(true)} → {self.name(taken)}" for true, taken in order)
        note = "A class, and what it was taken for; samples are those of the class."
        return [Table("Most confused pairs", names, tuple(columns), note, "true class → answer")]

    def matrices(self) -> list[str]:
        """The confusion matrix of each row, where there are few classes."""
        return [self._matrix(name, row) for _, name, row in self.drawn if row.classes <= DRAWN]

    def _matrix(self, name: str, row: Answered) -> str:
        classes, counts = row.classes, confused(row.choices)
        labels = [short(self.name(at), TITLE) for at in range(classes)]
        longest = max(map(len, labels))
        left, below = 14 + round(6.4 * longest), 18 + round(5.6 * longest)
        step = (SIDE - left) / classes
        pieces = []
        for at, label in enumerate(map(text_of, labels)):
            middle, x = (at + 0.5) * step, left + (at + 0.5) * step
            pieces.append(
                f'<text class="tick" x="{left - 6}" y="{number(middle)}" dy=".32em" text-anchor="end">{label}</text>'
                f'<text class="tick" transform="translate({number(x)} {number(SIDE - left + 8)}) rotate(-60)"'
                f' text-anchor="end" dy=".4em">{label}</text>'
            )
        sizes = torch.bincount(row.choices.labels, minlength=classes).tolist()
        for (true, taken), count in sorted(counts.items()):
            fraction, x, y = count / sizes[true], left + taken * step, true * step
            became = "right" if true == taken else f"taken for {self.name(taken)}"
            tip = (
                f"{self.name(true)}: {count:,} of {sizes[true]:,} {became}, {100 * fraction:.1f} %"
            )
            # The root shows a mistake of a few per cent beside a diagonal of nearly all.
            shape = (
                f'rect x="{number(x + 0.5)}" y="{number(y + 0.5)}" width="{number(step - 1)}"'
                f' height="{number(step - 1)}" fill-opacity="{number(fraction**0.5)}"/>'
            )
            pieces.append(mark(shape, tip, kind=f"mark {'right' if true == taken else 'wrong'}"))
            if classes <= NUMBERED and fraction >= 0.005:
                over = " over" if fraction > 0.45 else ""
                place = f'x="{number(x + step / 2)}" y="{number(y + step / 2)}" dy=".34em" text-anchor="middle"'
                pieces.append(f'<text class="in-cell{over}" {place}>{100 * fraction:.0f}</text>')
        says = "No sample is answered wrongly."
        if wrong := mistakes(counts):
            (true, taken), most = wrong[0]
            says = (
                f"Most often, {self.name(true)} is taken for {self.name(taken)}: {most:,} of "
                f"{sizes[true]:,}."
            )
        content = drawing(
            f"Confusion matrix of {name}", says, SIDE, SIDE - left + below, "".join(pieces)
        )
        return figure(f"Confusion: {name}", content)


def confused(answers: JudgedClasses) -> dict[tuple[int, int], int]:
    """How many samples of a class got each answer: {(class, answer): count}, of those that occur."""
    pairs, counts = torch.stack([answers.labels, answers.predicted], dim=1).unique(
        dim=0, return_counts=True
    )
    return {
        (true, taken): n for (true, taken), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    }


def mistakes(counts: Mapping[tuple[int, int], int]) -> list[tuple[tuple[int, int], int]]:
    """The pairs of different classes, those that are confused most first."""
    return sorted(
        (each for each in counts.items() if each[0][0] != each[0][1]),
        key=lambda each: (-each[1], each[0]),
    )


def _recall(row: Answered) -> dict[int, float]:
    """The fraction of each class's samples that are answered rightly, of classes that have samples."""
    labels, correct = row.choices.labels, row.choices.correct
    counts = torch.bincount(labels)
    right = torch.bincount(labels[correct], minlength=len(counts))
    return {at: right[at].item() / n for at, n in enumerate(counts.tolist()) if n}


def _ranked(values: Sequence[float | None]) -> list[Cell]:
    """One class by every row, the best in bold where they differ."""
    texts = [ABSENT if value is None else f"{value:.3f}" for value in values]
    present = {text for text in texts if text != ABSENT}
    best = max(present, key=float) if len(present) > 1 else None
    ranks: list[Rank] = ["best" if text == best else "" for text in texts]
    return [
        Cell(text, rank, values=(value,))
        for text, rank, value in zip(texts, ranks, values, strict=True)
    ]
