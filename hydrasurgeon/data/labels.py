"""Labels and class names as people write them → the model's classes: by name where both have names.

A label is the number or name of one class; a number from 0 to 1, how true yes is; or a list of
names or numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import MAX_NAME, is_name
from hydrasurgeon.files.manifest import Model

Labels = NDArray[Any]
"""Class numbers, int64 [sample]; how true yes is, float64 [sample]; or 0 and 1, float32 [sample,
label].
"""

# Above any data set: a new classifier has a row of weights for every number up to the largest
# label.
MAX_CLASSES = 1_000_000
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
"""A class number as text."""
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Any number as text."""
CODE = re.compile(r"n?\d+")
"""A number or WordNet's number, as ImageNet's folders are called: it names no class in words."""
MANY = re.compile(r"\[.*\]|[0-9.]+(\s*[,;|\s]\s*[0-9.]+)+")
"""Several labels as text, or a fraction with a comma."""
LIST = re.compile(r"\[.*\]", re.DOTALL)
"""A list as JSON has it, in a cell of a table."""
MAX_CELLS = 1 << 30
"""Samples times labels, where a sample has any number of labels: far beyond any data set there is.
"""
YES = ("no", "yes")
"""Names that the labels 0 and 1 of one logit may have."""
ONE_EACH = "Labels are whole numbers or names, one for each row and in all rows alike."
"""What labels of classes are."""
FRACTIONS = "Labels of a model with one logit are 1 for yes, 0 for no, or a fraction between."
"""What labels of one logit are."""
LISTS = 'Labels of a model with many labels are lists of names, such as ["red", "round"]; [] where none holds.'
"""What labels of a model with many labels are."""
OTHER_CLASSES = (
    "Use the data set the model was trained for, make it a classifier of these classes "
    "(hydrasurgeon finetune "
    "--set classifier=fresh --data D), or give CLIP other --classes."
)
"""What next, where the data has other classes than the model."""
SHOWN = 6
"""Class names that a message lists."""


def are_codes(names: Sequence[str]) -> bool:
    return all(CODE.fullmatch(name) for name in names)


def labels_of(spec: str, values: Sequence[Any]) -> tuple[Labels | None, tuple[str, ...] | None]:
    """A column of numbers, of names, or of lists: of names, the classes are those in their order."""
    values = list(values)
    texts = all(isinstance(value, str) for value in values)
    if texts and values and all(map(LIST.fullmatch, values)):
        values = [_list_in(spec, row, value) for row, value in enumerate(values)]
    if any(isinstance(value, list | tuple) for value in values):
        return _of_lists(spec, values)
    if (
        texts
        and not all(map(NUMBER.fullmatch, values))
        and "" not in values
        and not all(map(MANY.fullmatch, values))
    ):
        classes = class_names(spec, sorted(set(values)))
        number = {name: i for i, name in enumerate(classes)}
        return np.array([number[value] for value in values], dtype=np.int64), classes
    # Numbers in quotes, as in every csv file.
    values = [int(value) if texts and INTEGER.fullmatch(value) else value for value in values]
    values = [
        float(value) if texts and isinstance(value, str) and NUMBER.fullmatch(value) else value
        for value in values
    ]
    wrong = [
        row for row, value in enumerate(values) if type(value) not in (int, float) or value != value
    ]
    if wrong:
        row = next((row for row in wrong if values[row] in (None, "")), None)
        what = (
            f"row {wrong[0]} has the label {_shown(values[wrong[0]])}"
            if row is None
            else f"row {row} has no label"
        )
        raise DataError(f"{spec}: {what}", hint=ONE_EACH)
    if any(type(value) is float for value in values):
        return np.array(values, dtype=np.float64), None
    return class_numbers(spec, values), None


def _list_in(spec: str, row: int, text: str) -> list[Any]:
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{spec}: row {row} has the label {_shown(text)}, which is no list", hint=LISTS
        ) from error


def _of_lists(spec: str, values: Sequence[Any]) -> tuple[Labels, tuple[str, ...] | None]:
    """A 1 where a label holds, for names or numbers of classes."""
    kind = next(
        (type(each) for value in values if isinstance(value, list | tuple) for each in value), str
    )
    for row, value in enumerate(values):
        alike = (
            isinstance(value, list | tuple)
            and kind in (str, int)
            and all(type(each) is kind for each in value)
        )
        if not alike or (kind is int and not all(0 <= each < MAX_CLASSES for each in value)):
            why = "is out of range" if alike else "where others have a list"
            raise DataError(f"{spec}: row {row} has the label {_shown(value)} {why}", hint=LISTS)
    every = {each for value in values for each in value}
    classes = class_names(spec, sorted(every)) if kind is str else None
    columns = {
        each: at
        for at, each in enumerate(
            classes if classes is not None else range(max(every, default=-1) + 1)
        )
    }
    if len(values) * len(columns) > MAX_CELLS:
        raise DataError(
            f"{spec}: {len(values):,} samples of {len(columns):,} labels are too many", hint=LISTS
        )
    holds = np.zeros((len(values), len(columns)), dtype=np.float32)
    for row, value in enumerate(values):
        holds[row, [columns[each] for each in value]] = 1
    return holds, classes


def class_numbers(spec: str, values: Sequence[int] | NDArray[Any]) -> Labels | None:
    """Integers as labels; None where every one is -1, which stands for no label."""
    whole = np.asarray(values) if len(values) else np.zeros(0, dtype=np.int64)
    outside = np.flatnonzero((whole < -1) | (whole >= MAX_CLASSES))
    if len(outside):
        raise DataError(
            f"{spec}: row {outside[0]} has the label {whole[outside[0]]}",
            hint=(
                f"Labels are the numbers of classes, from 0 and below {MAX_CLASSES:,}; -1 stands "
                "for none."
            ),
        )
    labels = whole.astype(np.int64)
    return None if len(labels) and (labels == -1).all() else labels


def is_label_array(labels: NDArray[Any]) -> bool:
    """Whether an array may hold labels: whole numbers, fractions, or a row of 0 and 1 for each
    sample.
    """
    if labels.ndim == 2:
        return labels.dtype.kind in "iufb" and bool(np.isin(labels, (0, 1)).all())
    return labels.ndim == 1 and (
        labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and np.isfinite(labels).all())
    )


def array_labels(spec: str, labels: NDArray[Any]) -> Labels | None:
    """Labels of such an array."""
    if labels.ndim == 2:
        return labels.astype(np.float32)
    return labels.astype(np.float64) if labels.dtype.kind == "f" else class_numbers(spec, labels)


def class_names(spec: str, names: Sequence[Any]) -> tuple[str, ...]:
    """Names that a manifest can hold and a terminal can show."""
    wrong = next((name for name in names if not isinstance(name, str) or not is_name(name)), None)
    if wrong is not None:
        raise DataError(
            f"{spec}: {_shown(wrong)} is no name of a class",
            hint=(
                f"A name is UTF-8 text of one line and at most {MAX_NAME} characters. Is it a "
                "column of texts?"
            ),
        )
    return tuple(names)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def matched(
    spec: str, numbers: Labels, names: Sequence[str] | None, model: Model
) -> tuple[Labels, tuple[str, ...] | None, str | None]:
    """The data's labels → the model's; the names that classes have now, and which order was
    assumed.

    DataError where the model has no such labels. Names are the model's, or the data's where the
    model has none.
    """
    return READ[model.problem](spec, numbers, names, model)


def _of_classes(
    spec: str, numbers: Labels, names: Sequence[str] | None, model: Model
) -> tuple[Labels, tuple[str, ...] | None, str | None]:
    """One of several classes."""
    if numbers.dtype.kind != "i":
        several = numbers.ndim == 2
        row = 0 if several else int(np.flatnonzero(numbers != np.floor(numbers))[:1].sum())
        what = (
            "a list of labels, where a name or number is due"
            if several
            else f"the label {float(numbers[row])}"
        )
        hint = f"{ONE_EACH} For others, train a model of that kind: --set classifier=fresh."
        raise DataError(f"{spec}: row {row} has {what}", hint=hint)
    labels = model.labels
    count = model.num_classes if names is None else len(names)
    bad = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(bad):
        owner = "the model" if names is None else "it"
        raise DataError(
            f"{spec}: row {bad[0]} has label {numbers[bad[0]]}, {owner} has classes 0-{count - 1}",
            hint=OTHER_CLASSES,
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
        raise DataError(
            f"{spec}: has {len(names)} classes, the model has {model.num_classes}",
            hint=OTHER_CLASSES,
        )
    theirs = f"0…{count - 1}" if labels is None else listed(labels)
    note = f"classes of {spec}, in this order, taken as the model's {theirs}: {listed(names)}"
    return numbers, labels or tuple(names), None if names == labels else note


def _of_one_logit(
    spec: str, numbers: Labels, names: Sequence[str] | None, model: Model
) -> tuple[Labels, tuple[str, ...] | None, str | None]:
    """How true yes is, from 0 to 1."""
    if numbers.ndim == 2:
        raise DataError(
            f"{spec}: row 0 has a list of labels, where a number is due", hint=FRACTIONS
        )
    if names is not None:
        strange = [row for row, number in enumerate(numbers) if names[number] not in YES]
        if strange:
            name = names[int(numbers[strange[0]])]
            raise DataError(
                f"{spec}: row {strange[0]} has the label {_shown(name)}", hint=FRACTIONS
            )
        numbers = np.array([YES.index(name) for name in names])[numbers]
    outside = np.flatnonzero((numbers < 0) | (numbers > 1))
    if len(outside):
        raise DataError(
            f"{spec}: row {outside[0]} has the label {numbers[outside[0]]:g}", hint=FRACTIONS
        )
    return numbers.astype(np.float64), model.labels, None


def _of_many_labels(
    spec: str, holds: Labels, names: Sequence[str] | None, model: Model
) -> tuple[Labels, tuple[str, ...] | None, str | None]:
    """A 1 for each of the model's labels that holds."""
    if holds.ndim != 2 and model.is_zero_shot:
        numbers, labels, note = _of_classes(
            spec, holds, names, model
        )  # of pictures of one thing each
        return np.eye(model.num_classes, dtype=np.float32)[numbers], labels, note
    if holds.ndim != 2:
        first = names[int(holds[0])] if names is not None and len(holds) else holds[:1].tolist()
        raise DataError(
            f"{spec}: row 0 has the label {_shown(first)}, where a list is due", hint=LISTS
        )
    labels, count, note = model.labels, model.num_classes, None
    places = list(range(holds.shape[1]))
    if names is not None and labels is not None:
        where = {name: at for at, name in enumerate(labels)}
        places = [where.get(name, count) for name in names]
    elif names is not None and len(names) == count:
        labels, note = (
            tuple(names),
            f"labels of {spec}, in this order, taken as the model's: {listed(names)}",
        )
    elif names is not None:
        raise DataError(
            f"{spec}: has {len(names)} labels, the model has {count}", hint=OTHER_CLASSES
        )
    beyond = [at for at, place in enumerate(places) if place >= count]
    if beyond:
        row = int(np.flatnonzero(holds[:, beyond].any(axis=1))[0])
        at = next(at for at in beyond if holds[row, at])
        name = at if names is None else names[at]
        owned = f"0-{count - 1}" if labels is None else listed(labels)
        raise DataError(
            f"{spec}: row {row} has the label {_shown(name)}, the model has {owned}",
            hint=OTHER_CLASSES,
        )
    made = np.zeros((len(holds), count), dtype=np.float32)
    made[:, places] = holds
    return made, labels, note


Match = Callable[
    [str, Labels, Sequence[str] | None, Model], tuple[Labels, tuple[str, ...] | None, str | None]
]
READ: dict[str, Match] = {
    "single_label": _of_classes,
    "one_logit": _of_one_logit,
    "multi_label": _of_many_labels,
}
"""Kind of problem → how labels are fitted to a model of it."""


def _same_order(names: Sequence[str], model: Model) -> bool:
    """Whether names that differ can only mean the model's classes one by one: codes, or CLIP's own
    words for them.
    """
    labels = model.labels or ()
    if tuple(names) == labels:
        return True
    if all(name in labels for name in names):
        return False
    if model.is_zero_shot:
        # Words of the user's for the data's classes: those that both use must stand in the same
        # places.
        return all(
            name not in labels or labels[i : i + 1] == (name,) for i, name in enumerate(names)
        )
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
            f"{spec}: the model has no class {listed(unknown)}; the data's classes: "
            f"{listed(theirs)}; "
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
