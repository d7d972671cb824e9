"""Labels and class names as people write them.

A label is the name or number of one class; a number from 0 to 1, how true yes is; a list of names or
numbers; or a probability for each class, of which the most probable is the label where a row has no
other.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import MAX_NAME, is_name

Labels = NDArray[Any]
"""Class numbers, int64 [sample]; truth of yes from 0 to 1, float64 [sample]; or 0 and 1, float32
[sample, label].
"""

UNLABELLED = -1
"""Class number of a sample without a label."""
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
"""A class number as text."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Any number as text."""
CODE = re.compile(r"n?\d+")
"""A number or WordNet's number, as ImageNet's folders are called: it names no class in words."""
MANY = re.compile(r"\[.*\]|[0-9.]+(\s*[,;|\s]\s*[0-9.]+)+")
"""Several labels as text, or a fraction with a comma."""
JSON = re.compile(r"\s*(\[.*\]|\{.*\})\s*", re.DOTALL)
"""A list or an object as JSON has it, in a cell of a table."""
ROUNDED = 0.01
"""Maximum distance from 1 of a sum of probabilities, which may be rounded."""
MAX_CELLS = 1 << 30
"""Maximum number of samples times labels, where a sample has any number of labels: far beyond any
existing data set.
"""
ONE_EACH = "Labels are whole numbers or names, one for each row and in all rows alike. Decimals have a point."
UNLABELLED_ROWS = (
    "Fill in the labels, or leave such rows out by --skip-bad (bench and export have none)."
)
CHANCES = (
    'Probabilities are an object such as {"red": 0.9, "blue": 0.1}, or a list in the order of '
    "classes, and sum to 1."
)
LISTS = 'Labels of a model with many labels are lists of names, such as ["red", "round"]; [] where none holds.'


@dataclass(frozen=True)
class LabelColumn:
    """Labels as the data holds them."""

    labels: Labels
    """Positions among `names`, where there are any."""
    names: tuple[str, ...] | None = None
    numbers: tuple[int, ...] | None = None
    """Numbers that `names` were written as; each may also be the position of a class."""
    reading: str | None = None
    """Value of `--labels`: names, positions, sorted or exact."""
    note: str | None = None
    chances: NDArray[np.float32] | None = None
    """Probabilities of each class, if the data have them."""
    has_label: NDArray[np.bool_] | None = None
    """True for rows with a label beside their probabilities; the label of other rows is the most
    probable class.
    """

    @property
    def held(self) -> NDArray[Any]:
        """Probabilities if the data have them, else labels."""
        return self.labels if self.chances is None else self.chances

    def at(self, rows: Any) -> LabelColumn:
        """Return the labels of some rows."""
        chances = None if self.chances is None else self.chances[rows]
        has_label = None if self.has_label is None else self.has_label[rows]
        return replace(self, labels=self.labels[rows], chances=chances, has_label=has_label)

    @property
    def positions(self) -> Labels:
        """Labels as the numbers that were written, where each row has one number."""
        if self.numbers is None or self.labels.ndim == 2:
            return self.labels
        return np.array(self.numbers, dtype=np.int64)[self.labels]

    def named(self, names: Sequence[str]) -> LabelColumn:
        """Return a copy with the names that the data give to its numbers."""
        if self.numbers is None:
            return self
        if self.chances is not None and self.numbers != tuple(range(len(names))):
            return self
        return LabelColumn(
            self.positions, tuple(names), chances=self.chances, has_label=self.has_label
        )


def are_codes(names: Sequence[str]) -> bool:
    return all(CODE.fullmatch(name) for name in names)


def labels_of(spec: str, values: Sequence[Any]) -> LabelColumn | None:
    """Return a column of numbers, of names, or of lists of them; None if every label is -1."""
    values = [sys.intern(value) if type(value) is str else value for value in values]
    if any(type(value) is bool for value in values):  # names, as a CSV file has them
        values = [str(value) if type(value) is bool else value for value in values]
    texts = all(isinstance(value, str) for value in values)
    if texts and values and all(map(JSON.fullmatch, values)):
        values = [_cell(spec, row, value) for row, value in enumerate(values)]
    if any(isinstance(value, Mapping) for value in values):
        return _of_objects(spec, values)
    if any(isinstance(value, list | tuple) for value in values):
        return _of_fractions(spec, values) if _are_fractions(values) else _of_lists(spec, values)
    empty = [row for row, value in enumerate(values) if value is None or value == ""]
    if empty:
        more = f" (and {len(empty) - 1:,} more)" if len(empty) > 1 else ""
        raise DataError(f"{spec}: row {empty[0]} has no label{more}", hint=UNLABELLED_ROWS)
    are_numbers = texts and all(map(NUMBER.fullmatch, values))
    are_plain = are_numbers or (texts and not all(map(MANY.fullmatch, values)))
    for row, value in enumerate(values):
        if not are_plain and (type(value) not in (int, float) or value != value):
            raise DataError(f"{spec}: row {row} has the label {shown(value)}", hint=ONE_EACH)
    if (texts and not are_numbers) or all(map(_is_integer, values)):
        return in_order(spec, values)
    return LabelColumn(np.array(values, dtype=np.float64))


def _is_integer(value: Any) -> bool:
    return type(value) is int or bool(INTEGER.fullmatch(str(value)))


def _ordered(values: Iterable[Any]) -> tuple[list[Any], tuple[int, ...] | None]:
    """Return distinct names in order, and their numbers if all are numbers."""
    names = sorted({*values})
    if not names or not all(map(_is_integer, names)):
        return names, None
    names.sort(key=int)
    return names, tuple(map(int, names))


def in_order(spec: str, values: Sequence[Any]) -> LabelColumn | None:
    """Return a column of names or integers, with the classes in their order; None if every label is
    -1, which means no label.
    """
    names, numbers = _ordered(values)
    if numbers == (UNLABELLED,):
        return None
    return named(spec, values, names, numbers)


def named(
    spec: str,
    values: Sequence[Any],
    names: Sequence[Any],
    numbers: tuple[int, ...] | None = None,
) -> LabelColumn:
    """Return a column of positions among the class names, some of which may be unused."""
    position = {name: at for at, name in enumerate(names)}
    labels = np.array([position[value] for value in values], dtype=np.int64)
    return LabelColumn(labels, class_names(spec, [*map(str, names)]), numbers)


def _cell(spec: str, row: int, text: str) -> Any:
    """Parse the JSON in a cell of a table."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"row {row} has the label {shown(text)}, which is not JSON"
        raise DataError(f"{spec}: {problem}", hint=CHANCES if "{" in text else LISTS) from error


def _of_objects(spec: str, values: Sequence[Any]) -> LabelColumn:
    """Return a column from objects {class name: probability}; omitted classes have probability
    0.
    """
    for row, value in enumerate(values):
        if not isinstance(value, Mapping):
            problem = f"row {row} has the label {shown(value)} where others have an object"
            raise DataError(f"{spec}: {problem}", hint=CHANCES)
    names = class_names(spec, list({name for value in values for name in value}))
    if not names:
        raise DataError(f"{spec}: row 0: its probabilities sum to 0", hint=CHANCES)
    # Parquet has all names in all rows: those that a row leaves out are None.
    cells = {name: [value.get(name) for value in values] for name in names}
    by_name = {name: [0 if p is None else p for p in row] for name, row in cells.items()}
    return of_probabilities(spec, by_name)


def of_probabilities(
    spec: str, columns: Mapping[str, Sequence[Any]], *, texts: bool = False
) -> LabelColumn:
    """Return a column of labels from probabilities by class name; the most probable is the label.

    With `texts` a number may be written as text, as in a cell of a CSV file.
    """
    names, numbers = _ordered(columns)
    _check_cells(spec, len(next(iter(columns.values()), ())), len(names))
    chances_by_class = [
        [_chance(spec, row, cell, texts) for row, cell in enumerate(columns[n])] for n in names
    ]
    chances = np.array(chances_by_class, dtype=np.float64).T
    sums = chances.sum(axis=1)
    wrong = np.abs(sums - 1) > ROUNDED + 1e-9  # .99 is within
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{spec}: row {row}: its probabilities sum to {sums[row]:.6g}", hint=CHANCES
        )
    shares = (chances / sums[:, None]).astype(np.float32)
    return LabelColumn(shares.argmax(axis=1), class_names(spec, names), numbers, chances=shares)


def _are_fractions(values: Sequence[Any]) -> bool:
    """Return True if lists hold probabilities: some number is neither 0 nor 1."""
    lists = (value for value in values if isinstance(value, list | tuple))
    return any(type(cell) is float and cell not in (0, 1) for value in lists for cell in value)


def _of_fractions(spec: str, values: Sequence[Any]) -> LabelColumn:
    """Return a column from lists of probabilities in the order of classes."""
    first = next(value for value in values if isinstance(value, list | tuple))
    for row, value in enumerate(values):
        if not isinstance(value, list | tuple) or len(value) != len(first):
            problem = (
                f"row {row} has the label {shown(value)} where others have {len(first)} numbers"
            )
            raise DataError(f"{spec}: {problem}", hint=CHANCES)
    by_position = {str(at): [value[at] for value in values] for at in range(len(first))}
    return replace(of_probabilities(spec, by_position), reading="positions")


def _chance(spec: str, row: int, cell: Any, texts: bool) -> float:
    """Read one probability."""
    chance = cell
    if texts and isinstance(cell, str) and NUMBER.fullmatch(cell.strip()):
        chance = float(cell)
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance < 2:
        raise DataError(f"{spec}: row {row} has the probability {shown(cell)}", hint=CHANCES)
    return float(chance)


def beside_probabilities(column: LabelColumn, values: Sequence[Any]) -> LabelColumn:
    """Add the labels that some rows have beside their probabilities; their names are those of the
    classes.
    """
    assert column.names is not None
    position = {name: at for at, name in enumerate(column.names)}
    explicit = np.array(
        [position.get(called(value), UNLABELLED) for value in values], dtype=np.int64
    )
    has_label = explicit != UNLABELLED
    return replace(column, labels=np.where(has_label, explicit, column.labels), has_label=has_label)


def called(value: Any) -> str:
    """Return the name in a label's cell; empty if there is no label."""
    if value is None or value != value or value in (UNLABELLED, str(UNLABELLED)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _check_cells(spec: str, rows: int, names: int) -> None:
    if rows * names > MAX_CELLS:
        raise DataError(f"{spec}: {rows:,} samples of {names:,} labels are too many", hint=LISTS)


def _of_lists(spec: str, values: Sequence[Any]) -> LabelColumn | None:
    """Return a column with 1 for each label of a sample, from lists of names, of class numbers, or
    of 0 and 1.
    """
    lists = [value for value in values if isinstance(value, list | tuple)]
    equally_long = len(lists) == len(values) and len({*map(len, lists)}) == 1
    if (
        equally_long
        and is_label_array(np.array(lists))
        # Who lists positions names none of them twice.
        and any(len({*row}) < len(row) for row in lists)
    ):
        return array_labels(spec, np.array(lists), None)
    kind = next((type(label) for labels in lists for label in labels), str)
    for row, value in enumerate(values):
        is_list = isinstance(value, list | tuple) and kind in (str, int)
        if not is_list or any(type(label) is not kind for label in value):
            raise DataError(
                f"{spec}: row {row} has the label {shown(value)} where others have a list",
                hint=LISTS,
            )
    distinct, numbers = _ordered(label for labels in lists for label in labels)
    _check_cells(spec, len(values), len(distinct))
    position = {label: at for at, label in enumerate(distinct)}
    holds = np.zeros((len(values), len(distinct)), dtype=np.float32)
    for row, labels in enumerate(lists):
        holds[row, [position[label] for label in labels]] = 1
    return LabelColumn(holds, class_names(spec, [str(label) for label in distinct]), numbers)


def is_label_array(labels: NDArray[Any]) -> bool:
    """Return True if an array may hold labels: integers, fractions, or a row of 0 and 1 for each
    sample.
    """
    if labels.ndim == 2:
        return labels.dtype.kind in "iufb" and bool(np.isin(labels, (0, 1)).all())
    return labels.ndim == 1 and (
        labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and np.isfinite(labels).all())
    )


def array_labels(
    spec: str, labels: NDArray[Any], names: Sequence[str] | None
) -> LabelColumn | None:
    """Return the column of an array of labels, optionally with class names."""
    if labels.ndim == 2:
        holds = labels.astype(np.float32)
        if names is not None:
            return LabelColumn(holds, tuple(names))
        positions = tuple(range(labels.shape[1]))
        return LabelColumn(holds, tuple(map(str, positions)), positions, "positions")
    if labels.dtype.kind == "f":
        return LabelColumn(labels.astype(np.float64))
    column = in_order(spec, labels.tolist())
    if column is None or names is None:
        return column
    return column.named(names)


def class_names(spec: str, names: Sequence[Any]) -> tuple[str, ...]:
    """Check class names: a manifest must be able to hold them, and a terminal to show them."""
    wrong = next((name for name in names if not isinstance(name, str) or not is_name(name)), None)
    if wrong is not None:
        raise DataError(
            f"{spec}: {shown(wrong)} is not a class name",
            hint=(
                f"A name is UTF-8 text of one line and at most {MAX_NAME} characters. Is it a "
                "column of texts?"
            ),
        )
    return tuple(names)


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
