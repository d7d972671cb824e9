"""Labels and class names as people write them → the model's classes: by name where both have names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import MAX_NAME, is_name
from hydrasurgeon.files.manifest import Model

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
OTHER_CLASSES = (
    "Use the data set the model was trained for, make it a classifier of these classes (hydrasurgeon finetune "
    "--set classifier=fresh --data D), or give CLIP other --classes."
)
"""What next, where the data has other classes than the model."""
SHOWN = 6
"""Class names that a message lists."""


def are_codes(names: Sequence[str]) -> bool:
    return all(CODE.fullmatch(name) for name in names)


def labels_of(spec: str, values: Sequence[Any]) -> tuple[Labels | None, tuple[str, ...] | None]:
    """A column of whole numbers, or of names: then the classes are the names in their order."""
    values = list(values)
    texts = all(isinstance(value, str) for value in values)
    if texts and not all(map(NUMBER.fullmatch, values)) and "" not in values and not all(map(MANY.fullmatch, values)):
        classes = class_names(spec, sorted(set(values)))
        number = {name: i for i, name in enumerate(classes)}
        return np.array([number[value] for value in values], dtype=np.int64), classes
    # Numbers in quotes, as in every csv file.
    values = [int(value) if texts and INTEGER.fullmatch(value) else value for value in values]
    wrong = [row for row, value in enumerate(values) if type(value) is not int]
    if wrong:
        row = next((row for row in wrong if values[row] in (None, "")), None)
        what = f"row {wrong[0]} has the label {_shown(values[wrong[0]])}" if row is None else f"row {row} has no label"
        raise DataError(
            f"{spec}: {what}", hint="Labels are whole numbers or names, one for each row and in all rows alike."
        )
    return class_numbers(spec, values), None


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
    wrong = next((name for name in names if not isinstance(name, str) or not is_name(name)), None)
    if wrong is not None:
        raise DataError(
            f"{spec}: {_shown(wrong)} is no name of a class",
            hint=f"A name is UTF-8 text of one line and at most {MAX_NAME} characters. Is it a column of texts?",
        )
    return tuple(names)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def matched(
    spec: str, numbers: Labels, names: Sequence[str] | None, model: Model
) -> tuple[Labels, tuple[str, ...] | None, str | None]:
    """Numbers of the data's classes → of the model's; the names they have now, and which order was assumed.

    DataError where the model has no such classes. Names are the model's, or the data's where the model has none.
    """
    labels = model.labels
    count = model.num_classes if names is None else len(names)
    bad = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(bad):
        owner = "the model" if names is None else "it"
        raise DataError(
            f"{spec}: row {bad[0]} has label {numbers[bad[0]]}, {owner} has classes 0-{count - 1}", hint=OTHER_CLASSES
        )
    if names is None:
        note = labels and (
            f"labels of {spec} are numbers, taken as the model's classes in its order: "
            f"0 is {labels[0]}, {count - 1} is {labels[-1]}"
        )
        return numbers, labels, note or None
    if labels is not None and not _same_order(names, model):
        return _by_name(spec, names, numbers, labels), labels, None
    if len(names) != model.num_classes:
        raise DataError(f"{spec}: has {len(names)} classes, the model has {model.num_classes}", hint=OTHER_CLASSES)
    theirs = f"0…{count - 1}" if labels is None else listed(labels)
    note = f"classes of {spec}, in this order, taken as the model's {theirs}: {listed(names)}"
    return numbers, labels or tuple(names), None if names == labels else note


def _same_order(names: Sequence[str], model: Model) -> bool:
    """Whether names that differ can only mean the model's classes one by one: codes, or CLIP's own words for them."""
    labels = model.labels or ()
    if tuple(names) == labels:
        return True
    if all(name in labels for name in names):
        return False
    if model.is_zero_shot:
        # Words of the user's for the data's classes: those that both use must stand in the same places.
        return all(name not in labels or labels[i : i + 1] == (name,) for i, name in enumerate(names))
    return are_codes(names) and not are_codes(labels)


def _by_name(spec: str, names: Sequence[str], numbers: Labels, labels: Sequence[str]) -> Labels:
    """The numbers of the model's classes, by name; classes without samples need not be known."""
    where = {name: i for i, name in enumerate(labels)}
    used = [names[i] for i in np.unique(numbers)]
    unknown = [name for name in used if name not in where]
    if unknown:
        # What the other side lacks comes first.
        theirs = [*unknown, *(name for name in names if name not in unknown)]
        ours = sorted(labels, key=lambda label: label in names)
        raise DataError(
            f"{spec}: the model has no class {listed(unknown)}; the data's classes: {listed(theirs)}; "
            f"the model's: {listed(ours)}",
            hint=OTHER_CLASSES,
        )
    twice = next((name for name in used if list(labels).count(name) > 1), None)
    if twice is not None:
        raise DataError(
            f"{spec}: the model has more than one class {twice}",
            hint="Give the labels as numbers of the model's classes.",
        )
    return np.array([where.get(name, -1) for name in names], dtype=np.int64)[numbers]


def listed(names: Sequence[str]) -> str:
    """Some names, and how many there are."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown}, … ({len(names):,})"
