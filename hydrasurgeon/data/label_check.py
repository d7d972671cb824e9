"""Check of labels before any work: a list of the errors of a data set, and notes on what looks
wrong.

Errors are two spellings of one class, classes that only the validation data has, and rows without
text. Notes name a rare class whose name is one letter from a frequent one's, inputs that occur with
two labels, and copies.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import UNLABELLED, LabelColumn
from hydrasurgeon.data.matching import spelling_errors, unknown_classes
from hydrasurgeon.data.samples import EMPTY, Samples
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import visible

MOST = 20
"""Lines of a list of errors."""
RARE_ROWS, RARE_SHARE = 2, 0.05
"""A class is rare beside another if it has at most so many rows, or so small a fraction of the other's."""
SHORTEST = 5
"""Letters of the shortest name that is compared with others."""
SHORTEST_WORD = 4
"""Letters of the shortest word in which one letter is a typing error: type_a and type_b are two."""
NEAR = 3
"""Pairs of names that a note lists."""
ROWS = 8
"""Numbers of rows that an error lists."""
BEGINNING = 40
"""Characters of a text that a note shows."""


@contextlib.contextmanager
def collecting(errors: list[DataError]) -> Iterator[None]:
    """Add an error of the data to the list instead of raising it."""
    try:
        yield
    except DataError as error:
        errors.append(error)


def raise_all(errors: Sequence[DataError]) -> None:
    """Raise the errors as one, if there are any; one alone stays as it is."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [line for error in errors for line in (error.message, *error.details)]
        more = [f"… and {len(lines) - MOST:,} more"] if len(lines) > MOST else []
        hints = [*dict.fromkeys(error.hint for error in errors if error.hint)]
        # Of hints that begin alike the longest says all.
        longest = [
            hint
            for hint in hints
            if not any(other is not hint and other.startswith(hint[:-1]) for other in hints)
        ]
        raise DataError(
            f"the data have {len(errors):,} faults",
            details=[*lines[:MOST], *more],
            hint=" ".join(longest),
        )


def new_class_errors(train: Samples, val: Samples | None) -> list[DataError]:
    """Return what is wrong with the labels that a new classifier is to learn: two spellings of one
    class, and classes of the validation data that the training data lacks.
    """
    column = train.written
    if column is not None and column.labels.ndim == 1 and column.labels.dtype.kind == "i":
        values = np.unique(column.labels[column.labels != UNLABELLED])
        if len(values) == 1:
            problem = f"all rows have one class, {_label(column, values[0])}"
            hint = "A classifier needs two classes or more. Is --columns label=NAME another column?"
            return [DataError(f"{visible(train.spec)}: {problem}", hint=hint)]
    if column is None or column.names is None or column.numbers is not None:
        return []
    errors = spelling_errors(train.spec, column)
    if val is not None and val.written is not None and val.written.numbers is None:
        errors += unknown_classes(f"--val {val.spec}", val.written, column.names)
    return errors


def text_errors(samples: Samples, *, skip_bad: bool) -> list[DataError]:
    """Return an error if there are rows without text, unless such rows are left out."""
    errors = list[DataError]()
    if samples.kind == "text" and not skip_bad:
        rows = np.flatnonzero(samples.digests == EMPTY).tolist()
        with collecting(errors):
            for row in rows[:1]:
                samples.read(row)
        for error in errors:
            if len(rows) > 1:
                error.details = (
                    f"{len(rows) - 1:,} more rows cannot be read: {_listed(rows[1:])}",
                )
    return errors


def _listed(rows: Sequence[int]) -> str:
    """Return the first of some numbers: `3, 9, 14 …`."""
    return f"{', '.join(map(str, rows[:ROWS]))}{' …' * (len(rows) > ROWS)}"


def class_counts(samples: Samples) -> str | None:
    """Return `train.csv: 50 classes, 1 to 65 rows; fewest: conactless_work 1`; None for labels that
    are no classes.
    """
    rows = rows_by_class(samples.written)
    if not rows:
        return None
    least, most = min(rows.values()), max(rows.values())
    rarest = [name for name, count in rows.items() if count == least]
    counts = f"{least:,} rows each" if least == most else f"{least:,} to {most:,} rows"
    fewest = f"; fewest: {', '.join(rarest[:NEAR])}{' …' * (len(rarest) > NEAR)} {least:,}"
    classes, count = len(samples.classes or rows), f"{len(rows):,}"
    if len(rows) < classes:
        count = f"{count} of {classes:,}"
    return f"{visible(samples.spec)}: {count} classes, {counts}{fewest * (least < most)}"


def label_notes(samples: Samples) -> list[str]:
    """Return notes on what looks wrong with a labelled data set, for whoever made it to look at."""
    if samples.written is None:
        return []
    notes = [*_near_names(samples.written), *_repeated(samples)]
    empty = int((samples.digests == EMPTY).sum())
    if samples.kind == "text" and empty:
        notes.append(f"{empty:,} of its {len(samples):,} rows have no text, and are left out")
    return [f"{visible(samples.spec)}: {note}" for note in notes]


def rows_by_class(column: LabelColumn | None) -> dict[str, int]:
    """Return the number of rows of each class that occurs; nothing for numbers and tags."""
    if column is None or column.labels.dtype.kind not in "if":
        return {}
    labels = column.labels
    if labels.ndim == 2:
        if labels.dtype.kind == "i" or column.names is None:
            return {}
        counts = (labels > 0).sum(axis=0)
    elif labels.dtype.kind == "f":
        return {}
    else:
        counts = np.bincount(labels[labels >= 0])
    names = column.names or [str(number) for number in range(len(counts))]
    return {names[at]: int(count) for at, count in enumerate(counts) if count}


def _near_names(column: LabelColumn | None) -> Iterator[str]:
    """Yield notes on rare classes that may be misspelt frequent ones."""
    rows = rows_by_class(column)
    pairs = [
        f"{rare!r} ({rows[rare]:,}) and {frequent!r} ({rows[frequent]:,})"
        for rare, frequent in sorted(_one_letter_apart([*rows]))
        if rows[rare] <= max(RARE_ROWS, RARE_SHARE * rows[frequent]) < rows[frequent]
    ]
    if pairs:
        more = f" and {len(pairs) - NEAR:,} more" if len(pairs) > NEAR else ""
        listed = ", ".join(pairs[:NEAR])
        yield f"one letter apart, perhaps one class: {listed}{more}"


def _one_letter_apart(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ordered pairs of names of which one has a letter more or another letter."""
    by_rest = defaultdict[str, set[str]](set)
    for name in names:
        if len(name) >= SHORTEST:
            for rest in {name, *(name[:at] + name[at + 1 :] for at in range(len(name)))}:
                by_rest[rest].add(name)
    yield from {
        (one, other)
        for group in by_rest.values()
        for one in group
        for other in group
        if one != other and _is_typing_error(one, other)
    }


def _is_typing_error(one: str, other: str) -> bool:
    """Return True if the names differ in one letter of a longer word."""
    start = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    for shorter, longer in ((one, other), (other, one)):
        if len(longer) - len(shorter) == 1 and longer[start + 1 :] == shorter[start:]:
            return longer[start].isalpha() and _word_at(longer, start) > SHORTEST_WORD
    if len(one) != len(other) or one[start + 1 :] != other[start + 1 :]:
        return False
    letters = one[start].isalpha() and other[start].isalpha()
    return letters and min(_word_at(one, start), _word_at(other, start)) >= SHORTEST_WORD


def _word_at(name: str, at: int) -> int:
    """Count the letters of the word that stands at a place."""
    words = (match.span() for match in re.finditer(r"[^\W\d_]+", name))
    return next((end - start for start, end in words if start <= at < end), 0)


def _repeated(samples: Samples) -> Iterator[str]:
    """Yield notes on copies, and on inputs that occur with two labels."""
    digests, column = samples.digests, samples.written
    rows = np.flatnonzero(digests != EMPTY)
    _, first, place = np.unique(digests[rows], return_index=True, return_inverse=True)
    copies = len(rows) - len(first)
    if not copies:
        return
    conflicts: Mapping[int, int] = {}
    if column is not None and column.labels.ndim == 1 and column.labels.dtype.kind == "i":
        labels = column.labels[rows]
        other = np.flatnonzero(labels != labels[first[place]])[::-1]
        conflicts = {int(first[place[at]]): int(at) for at in other}
    if conflicts:
        shown = []
        for at, differing in sorted(conflicts.items())[:NEAR]:
            names = [
                f"{_label(column, labels[row])} in row {samples.row(int(rows[row]))}"
                for row in (at, differing)
            ]
            shown.append(f"{_beginning(samples, int(rows[at]))}({', '.join(names)})")
        more = f" and {len(conflicts) - NEAR:,} more" if len(conflicts) > NEAR else ""
        yield f"{len(conflicts):,} {samples.contents} have two labels: {'; '.join(shown)}{more}"
    yield f"{copies:,} of its {len(samples):,} rows are copies of others"


def _label(column: LabelColumn | None, label: NDArray[np.generic]) -> str:
    """Return a label as the data has it."""
    if column is None or column.names is None or label.dtype.kind != "i":
        return f"{label:g}"
    return column.names[int(label)]


def _beginning(samples: Samples, row: int) -> str:
    """Return the first words of a text, with a blank; nothing for an image."""
    if samples.kind != "text":
        return ""
    content = samples.read(row)
    text = content if isinstance(content, str) else " / ".join(map(str, content))  # type: ignore[arg-type]
    return f"{text if len(text) <= BEGINNING else f'{text[:BEGINNING]}…'!r} "
