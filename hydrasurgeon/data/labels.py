"""Labels and class names as people write them → class numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import MAX_NAME, is_name

Labels = NDArray[np.int64]

# Above any data set: a new classifier has a row of weights for every number up to the largest label.
MAX_CLASSES = 1_000_000


INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
"""A class number as text."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Any number as text."""


CODE = re.compile(r"n?\d+")
"""A number or WordNet's number, as ImageNet's folders are called: it names no class in words."""
MANY = re.compile(r"\[.*\]|[0-9.]+(\s*[,;|\s]\s*[0-9.]+)+")
"""Several labels as text, or a fraction with a comma."""


def are_codes(names: Sequence[str]) -> bool:
    return all(CODE.fullmatch(name) for name in names)


def labels_of(spec: str, values: Sequence[Any]) -> tuple[Labels | None, tuple[str, ...] | None]:
    """A column of whole numbers, or of names: then the classes are the names in their order."""
    values = [_short(spec, value) for value in values]
    absent = next((row for row, value in enumerate(values) if value is None or value == ""), None)
    if absent is not None:
        raise DataError(f"{spec}: row {absent} has no label", hint="Label every row, or none.")
    if all(isinstance(value, str) for value in values):
        if values and all(MANY.fullmatch(value) for value in values):
            raise _unusable(spec, 0, values[0])
        if not all(NUMBER.fullmatch(value) for value in values):
            classes = class_names(spec, sorted(set(values)))
            number = {name: i for i, name in enumerate(classes)}
            return np.array([number[value] for value in values], dtype=np.int64), classes
        # Numbers in quotes, as in every csv file.
        values = [int(value) if INTEGER.fullmatch(value) else value for value in values]
    wrong = next((row for row, value in enumerate(values) if type(value) is not int), None)
    if wrong is not None:
        raise _unusable(spec, wrong, values[wrong])
    return class_numbers(spec, values), None


def _unusable(spec: str, row: int, value: object) -> DataError:
    return DataError(
        f"{spec}: row {row} has the label {_shown(value)}",
        hint="Labels are whole numbers or names, one for each row and in all rows alike.",
    )


def class_numbers(spec: str, values: Sequence[int] | NDArray[Any]) -> Labels | None:
    """Integers as labels; None where every one is -1, which stands for no label."""
    whole = np.asarray(values) if len(values) else np.zeros(0, dtype=np.int64)
    outside = np.flatnonzero((whole < -1) | (whole >= MAX_CLASSES))
    if len(outside):
        raise DataError(
            f"{spec}: row {outside[0]} has the label {whole[outside[0]]}",
            hint=f"Labels are the numbers of classes, from 0 and below {MAX_CLASSES:,}; -1 stands for none.",
        )
    labels = whole.astype(np.int64)
    return None if len(labels) and (labels == -1).all() else labels


def class_names(spec: str, names: Sequence[Any]) -> tuple[str, ...]:
    """Names that a manifest can hold and a terminal can show."""
    if len(names) > MAX_CLASSES:
        raise DataError(f"{spec}: has {len(names):,} classes; at most {MAX_CLASSES:,} are read")
    for name in names:
        if not isinstance(name, str) or not is_name(name):
            raise DataError(
                f"{spec}: {_shown(name)} is no name of a class",
                hint="A name is UTF-8 text of one line, without control characters.",
            )
    return tuple(names)


def _short(spec: str, value: Any) -> Any:
    """A label, unless it is a whole text: a column of them may stand for more than the memory holds."""
    if isinstance(value, str) and len(value) > MAX_NAME:
        raise DataError(
            f"{spec}: a class name has {len(value):,} characters; at most {MAX_NAME} are read",
            hint="Is the column of labels a column of texts?",
        )
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
