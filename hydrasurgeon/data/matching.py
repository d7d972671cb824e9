"""Labels of the data → classes of a model.

They are matched by name where both have names, else by position or order, as the model's own names
or `--labels` decide. For a new model, the labels determine its task.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.labels import (
    CHANCES,
    INTEGER,
    LISTS,
    NUMBER,
    ONE_EACH,
    UNLABELLED,
    LabelColumn,
    Labels,
    are_codes,
    shown,
)
from hydrasurgeon.errors import PROBE, DataError
from hydrasurgeon.files.manifest import MAX_CLASSES, Model, TaskName, task_class
from hydrasurgeon.files.rows import harmless
from hydrasurgeon.lookup import did_you_mean, format_number

Fit = tuple[Labels, tuple[str, ...] | None, str | None]
"""Labels of a model (or positions among its classes), the names of its classes, and a note on the
order that was assumed.
"""

NO_ANSWER = ("abstain", "unfamiliar")
"""Words that `predict` writes in place of an answer."""
YES = ("no", "yes")
"""Names of the labels 0 and 1 of one logit."""
FRACTIONS = (
    "Labels of a model with one logit are 1 for yes, 0 for no, or a fraction between. Classes are names "
    "or whole numbers; for other numbers fit a model: finetune --recipe probe --set task=regression."
)
MOST_NUMBER = 1e12
"""Largest label of a model of numbers, so that squares of errors stay far from overflow in float32."""
NUMBERS = "Labels of a model of numbers are numbers from -1e12 to 1e12, one for each row."
TAGS = "Tags are lists of names: O, B-X for the first word of an X, and I-X for its others."
OTHER_CLASSES = (
    f"Use the data set the model was trained for, fit it a classifier of these classes ({PROBE}), or "
    "give CLIP other --classes."
)
"""Hint for data with other classes than the model."""
SHOWN = 6
"""Number of class names that a message lists."""
AROUND = string.whitespace + ".,;:!?\"'`()[]{}…“”„‘’«»"
"""Characters around a name that are not part of it."""


def _trimmed(name: str) -> str:
    return name.strip(AROUND) or name


SPELLINGS: dict[str, Callable[[str], str]] = {
    "Unicode form": lambda name: normalize("NFKC", name),
    "case": str.casefold,
    "blanks": lambda name: " ".join(name.split()),
    "punctuation at the ends": _trimmed,
}
"""Functions that remove one kind of difference between spellings, by the name of the difference."""


def _unspelt(name: str) -> str:
    """Return a name without differences in spelling."""
    for plain in SPELLINGS.values():
        name = plain(name)
    return name


def _difference(name: str, other: str) -> str:
    """Return the name of the difference between two spellings."""
    return next(
        (difference for difference, f in SPELLINGS.items() if f(name) == f(other)),
        "spelling",
    )


def spelling_errors(spec: str, column: LabelColumn) -> list[DataError]:
    """Return an error for each name of a new class that may be meant as another one."""
    seen: dict[str, int] = {}
    names, errors = column.names or (), list[DataError]()
    for at, name in enumerate(names):
        first = seen.setdefault(_unspelt(name), at)
        if first != at and column.reading != "exact":
            one, other = (f"{names[i]!r} ({_rows_of(column, i).sum():,} rows)" for i in (first, at))
            error = DataError(
                f"{spec}: the labels {one} and {other} differ only in "
                f"{_difference(names[first], name)}",
                hint="Write them alike, or say --labels exact if they are two classes.",
            )
            errors.append(error)
    return errors


def unknown_classes(spec: str, column: LabelColumn, names: Sequence[str]) -> list[DataError]:
    """Return an error for each class of validation data that is none of these, where it is matched by
    name.
    """
    if column.reading in ("positions", "sorted") or are_codes(column.names or ()):
        return []
    places, errors = _places_of(column.names or (), names), list[DataError]()
    for at in _used(column):
        if places[at] < 0:
            assert column.names is not None
            name, near = column.names[at], _near(column.names[at], names)
            message = (
                f"{spec}: row {_row_of(column, at)} has the class {shown(name)}, which --data lacks"
            )
            hint = "Delete such rows, or move some of them to --data."
            if near:
                message, hint = f"{message}; it {near}", "Spell them alike."
            errors.append(DataError(message, hint=hint))
    return errors


def _near(name: str, labels: Sequence[str]) -> str:
    """Return `differs only in case from 'card'`; nothing where no other name is written so."""
    alike = next((label for label in labels if _unspelt(label) == _unspelt(name)), None)
    return (
        "" if alike is None else f"differs only in {_difference(name, alike)} from {shown(alike)}"
    )


ONE, LIST, WORDS = "one label", "a list of labels", "a tag for each word"
"""Kinds of labels that a row may have."""


def _kind_of(labels: Labels) -> str:
    if labels.ndim == 1:
        return ONE
    return WORDS if labels.dtype.kind == "i" else LIST


def new_task(
    spec: str, column: LabelColumn, option_task: TaskName | None
) -> tuple[TaskName, int, tuple[str, ...] | None]:
    """Return the task that a new classifier of these labels solves, its number of classes, and
    their names.
    """
    if column.numbers is None:
        for error in spelling_errors(spec, column):
            raise error
    kind = _kind_of(column.labels)
    if kind == WORDS and column.names is None:
        raise DataError(f"{spec}: its tags are numbers without names", hint=TAGS)
    task = OF_KINDS.get(kind) or option_task or OF_DTYPES[column.labels.dtype.kind]
    if task in ONE_OUTPUT:
        return task, 1, None
    count, names = new_classes(spec, column)
    check_class_names(spec, names)
    return task, count, names


def check_class_names(where: object, names: Sequence[str] | None) -> None:
    """Refuse names that stand for no answer in the answers of `predict`."""
    for name in NO_ANSWER:
        if name in (names or ()):
            raise DataError(
                f"{where}: has a class {name!r}",
                hint=f"Rename it: `answer` is {' or '.join(map(repr, NO_ANSWER))} for rows without an answer.",
            )


def new_classes(spec: str, column: LabelColumn) -> tuple[int, tuple[str, ...] | None]:
    """Return the number of classes and their names; numbers that count from 0 need no names."""
    numbers = column.numbers
    if numbers is None:
        if column.names is not None:
            return len(column.names), column.names
        return int(column.labels.max(initial=0)) + 1, None
    if column.reading is None and UNLABELLED in numbers:
        raise DataError(
            f"{spec}: some labels are -1, which may be a class or stand for no label",
            hint="Give --labels names if it is a class; otherwise delete these rows.",
        )
    are_positions = column.reading == "positions"
    if column.reading is None:
        are_positions = numbers == tuple(range(len(numbers)))
    if not are_positions:
        return len(numbers), column.names
    if numbers and not 0 <= numbers[0] <= numbers[-1] < MAX_CLASSES:
        raise DataError(f"{spec}: labels {numbers[0]} to {numbers[-1]} are not positions")
    return max(numbers, default=-1) + 1, None


OF_DTYPES: dict[str, TaskName] = {"i": "single_label", "f": "binary"}
"""Task by the kind of number that labels are."""
OF_KINDS: dict[str, TaskName] = {LIST: "multi_label", WORDS: "token_classification"}
"""Task by the kind of labels, where it is the only one."""
ONE_OUTPUT: tuple[TaskName, ...] = ("binary", "regression")
"""Tasks with a single output, which has no name."""


def matched(spec: str, column: LabelColumn, model: Model) -> LabelColumn:
    """Return the data's labels as the model's, with the class names and a note on the order that
    was assumed.

    DataError if the model has no such labels. Names are the model's, or the data's if the model has
    none.
    """
    is_float = column.labels.ndim == 1 and column.labels.dtype.kind == "f"
    if column.names is None and not is_float:  # fitted before
        numbers = tuple(range(model.num_classes))
        numbered = tuple(map(str, numbers))
        column = replace(column, names=numbered, numbers=numbers, reading="positions")
    rule: LabelRule = task_class(model.task).labels
    kind = _kind_of(column.labels)
    # Of CLIP a picture may show one thing, or several.
    if kind != rule.kind and not (model.is_zero_shot and kind == ONE):
        problem = f"{spec}: row 0 has {kind}, expected {rule.kind}"
        raise DataError(problem, hint=f"{rule.hint} For others, fit a classifier ({PROBE}).")
    labels, names, note = rule.match(spec, column, model)
    notes = [text for text in (column.note, note) if text]
    chances = None
    if column.chances is not None and rule.match is not _of_one_output:
        learnt = rule.match is _of_classes
        use = f"labels of {spec} are probabilities, {_use_of_chances(column, learnt=learnt)}"
        if use not in (column.note or ""):
            notes.append(use)
        if learnt:
            chances = _of_many_labels(spec, replace(column, labels=column.chances), model)[0]
    return LabelColumn(
        labels, names, note="; ".join(notes) or None, chances=chances, has_label=column.has_label
    )


def _use_of_chances(column: LabelColumn, *, learnt: bool) -> str:
    """Describe the use of probabilities, for a note."""
    rest = "the most probable, and holds for agreement with that"
    if column.has_label is not None and column.has_label.any():
        rest = "the labels beside them"
        if not column.has_label.all():
            rest += ", and the most probable where there is none"
    return (
        f"which training learns; all else takes {rest}" if learnt else f"of which is taken {rest}"
    )


def _of_classes(spec: str, column: LabelColumn, model: Model) -> Fit:
    """Match labels of one class, for each row or for each word that has one."""
    labels = column.labels
    if labels.dtype.kind == "f":
        row = int(np.argmax(labels != np.floor(labels)))
        raise DataError(f"{spec}: row {row} has the label {float(labels[row])}", hint=ONE_EACH)
    assert column.names is not None
    labelled = (labels != UNLABELLED) | (labels.ndim == 1)
    outside = np.argwhere(labelled & ((labels < 0) | (labels >= len(column.names))))
    if len(outside):
        at = tuple(outside[0])
        raise DataError(
            f"{spec}: row {at[0]} has label {labels[at]}, but the data has classes 0-{len(column.names) - 1}",
            hint=OTHER_CLASSES,
        )
    positions, names, note = positions_of(spec, column, model)
    return np.where(labelled, positions[labels], UNLABELLED), names, note


def positions_of(spec: str, column: LabelColumn, model: Model) -> Fit:
    """Return the model's position of each class of the data, or -1; with the class names and a note
    on the order that was assumed.
    """
    assert column.names is not None
    if column.numbers is not None and _are_positions(spec, column, model):
        return _by_position(spec, column, model)
    labels = model.labels
    in_order = column.reading in ("positions", "sorted")
    if labels is None or in_order or _same_order(column.names, model):
        return _by_order(spec, column, model)
    return _by_name(spec, column, labels), labels, None


def _are_positions(spec: str, column: LabelColumn, model: Model) -> bool:
    """Return True if numbers are positions of classes instead of the model's class names."""
    if column.reading is not None:
        return column.reading == "positions"
    labels = model.labels or ()
    if not any(NUMBER.fullmatch(label) for label in labels):
        return True
    names = column.names or ()
    places = _places_of(names, labels)
    if -1 not in places:
        return False
    unknown = names[places.index(-1)]
    raise DataError(
        f"{spec}: labels {listed(names)} may be names or positions of the model's classes "
        f"{listed(labels)}: as names, {unknown} is none of them; as positions, 0 is {labels[0]}",
        hint="Say which: --labels names, or --labels positions.",
    )


def _by_position(spec: str, column: LabelColumn, model: Model) -> Fit:
    numbers, count, labels = column.numbers or (), model.num_classes, model.labels
    is_list = column.reading == "positions" and numbers == tuple(range(len(numbers)))
    if column.chances is not None and is_list and len(numbers) != count:
        problem = f"row 0 has {len(numbers)} probabilities, the model has {count} classes"
        raise DataError(f"{spec}: {problem}", hint=CHANCES)
    positions = np.full(len(numbers), -1, dtype=np.int64)
    for at in _used(column):
        if not 0 <= numbers[at] < count:
            row = f"row {_row_of(column, at)} has label {numbers[at]}"
            raise UnknownClass(f"{spec}: {row}, the model has classes 0-{count - 1}", row)
        positions[at] = numbers[at]
    note = None
    if labels:
        note = (
            f"the labels of {spec} are numbers and stand for the model's classes: "
            f"0 is {labels[0]}, {count - 1} is {labels[-1]}"
        )
    return positions, labels, note


def _by_order(spec: str, column: LabelColumn, model: Model) -> Fit:
    """Match the data's classes one by one with the model's."""
    names, count, labels = column.names or (), model.num_classes, model.labels
    if len(names) != count:
        raise DataError(
            f"{spec}: has {len(names)} classes, the model has {count or 'no classifier'}",
            hint=OTHER_CLASSES,
        )
    order = tuple(range(count))
    if all(INTEGER.fullmatch(name) for name in names) and names != labels:
        order = _numeric_order(spec, column)
        names = tuple(names[at] for at in order)
    model_labels = f"0…{count - 1}" if labels is None else listed(labels)
    note = f"the classes of {spec} are taken as the model's {model_labels}, in this order: {listed(names)}"
    return np.argsort(order), labels or names, None if names == labels else note


def _numeric_order(spec: str, column: LabelColumn) -> tuple[int, ...]:
    """Return the order of classes whose names are numbers; DataError if their order as text differs
    and `--labels` does not choose.
    """
    names = column.names or ()
    stored = tuple(range(len(names)))
    by_number = tuple(sorted(stored, key=lambda at: int(names[at])))
    as_text = tuple(sorted(stored, key=lambda at: names[at]))
    if column.reading is None and stored == as_text != by_number:
        raise DataError(
            f"{spec}: classes are numbers, and their order is not clear: by number "
            f"{listed([names[at] for at in by_number])}; as text {listed(names)}",
            hint=(
                "Give --labels positions for the order of numbers, or --labels sorted for that of "
                "text, which torchvision's ImageFolder has."
            ),
        )
    if column.reading is None:
        return stored
    return as_text if column.reading == "sorted" else by_number


def _of_one_output(spec: str, column: LabelColumn, model: Model) -> Fit:
    """Match labels of one output: numbers, or for one logit the truth of yes from 0 to 1."""
    is_logit = model.task == "binary"
    least, most, hint = (0, 1, FRACTIONS) if is_logit else (-MOST_NUMBER, MOST_NUMBER, NUMBERS)
    labels, worth = column.positions.astype(np.float64), column.numbers
    if column.names is not None and column.numbers is None:
        words = YES if is_logit else ()
        wrong = next((at for at in _used(column) if column.names[at] not in words), None)
        if wrong is not None:
            problem = f"row {_row_of(column, wrong)} has the label {shown(column.names[wrong])}"
            raise DataError(f"{spec}: {problem}", hint=hint)
        worth = tuple(int(name == "yes") for name in column.names)
        labels = np.array(worth, np.float64)[column.labels]
    if column.chances is not None and worth is not None:
        if is_logit and max(worth) > 1:
            raise DataError(f"{spec}: row 0 has a probability of {max(worth)}", hint=hint)
        means = column.chances.astype(np.float64) @ np.array(worth)
        labels = means if column.has_label is None else np.where(column.has_label, labels, means)
    fits = np.isfinite(labels) & (labels >= least) & (labels <= most)
    if not fits.all():
        row = int(np.argmin(fits))
        raise DataError(
            f"{spec}: row {row} has the label {format_number(labels[row], 6)}", hint=hint
        )
    return labels, model.labels, None


def _of_many_labels(spec: str, column: LabelColumn, model: Model) -> Fit:
    """Match lists of labels: 1 for each of the model's labels that holds."""
    holds = column.labels
    if holds.ndim != 2:
        numbers, names, note = _of_classes(spec, column, model)
        return np.eye(model.num_classes, dtype=np.float32)[numbers], names, note
    positions, names, note = positions_of(spec, column, model)
    matrix = np.zeros((len(holds), model.num_classes), dtype=np.float32)
    matching = positions >= 0
    matrix[:, positions[matching]] = holds[:, matching]
    return matrix, names, note


Match = Callable[[str, LabelColumn, Model], Fit]


@dataclass(frozen=True)
class LabelRule:
    """Labels that a task accepts."""

    match: Match
    """Function that turns labels of the data into those of the model."""
    kind: str
    """Kind of labels that a row must have."""
    hint: str
    """Hint for other labels."""


CLASS_EACH = LabelRule(_of_classes, ONE, ONE_EACH)
FRACTION_EACH = LabelRule(_of_one_output, ONE, FRACTIONS)
MANY_EACH = LabelRule(_of_many_labels, LIST, LISTS)
NUMBER_EACH = LabelRule(_of_one_output, ONE, NUMBERS)
TAG_EACH = LabelRule(_of_classes, WORDS, TAGS)


def _same_order(names: Sequence[str], model: Model) -> bool:
    """Return True if differing names can only mean the model's classes one by one: codes, or the
    user's words for CLIP's classes.
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


class UnknownClass(DataError):
    """Error: a row has a class that the model lacks."""

    def __init__(self, message: str, row: str, near: str = "") -> None:
        super().__init__(message, hint=OTHER_CLASSES)
        self.row, self.near = row, near
        """Description of the row and its class, and of a similarly written class."""


def _by_name(spec: str, column: LabelColumn, labels: Sequence[str]) -> NDArray[np.int64]:
    """Match classes by name; classes without samples may be unknown."""
    names = column.names or ()
    places = _places_of(names, labels)
    used = _used(column)
    unknown = sorted((_row_of(column, at), names[at]) for at in used if places[at] < 0)
    if unknown:
        row, name = unknown[0]
        near, differs = did_you_mean(name, labels), _near(name, labels)
        if differs:
            near = f", which {differs}"
        # What the data lacks comes first.
        model_labels = sorted(labels, key=lambda label: label in names)
        raise UnknownClass(
            f"{spec}: row {row}: the model has no class {listed([name for _, name in unknown])}"
            f"{near}; the model's: {listed(model_labels)}",
            f"row {row} has the class {shown(name)}",
            differs,
        )
    counts = Counter(labels)
    twice = next((names[at] for at in used if counts[names[at]] > 1), None)
    if twice is not None:
        raise DataError(
            f"{spec}: the model has several classes named {twice}",
            hint="Give the labels as numbers of the model's classes.",
        )
    return np.array(places, dtype=np.int64)


def _places_of(names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """Return the position of each name among the labels, or -1; numbers may be written differently
    (1 is 01), and names as `predict` writes them to a table ('-).
    """
    position = {label: at for at, label in enumerate(labels)}
    position = {harmless(label): at for label, at in position.items()} | position
    exact = [position.get(name, -1) for name in names]
    if -1 in exact and all(map(NUMBER.fullmatch, (*names, *labels))):
        by_value = {Decimal(label): at for at, label in enumerate(labels)}
        if len(by_value) == len(labels):
            return [by_value.get(Decimal(name), -1) for name in names]
    return exact


def _used(column: LabelColumn) -> list[int]:
    """Return the data's classes that occur in a row."""
    if column.held.dtype.kind == "f":
        used = np.flatnonzero(column.held.any(axis=0))
        return (used if column.labels.ndim == 2 else np.union1d(used, column.labels)).tolist()
    return np.unique(column.held[column.held != UNLABELLED]).tolist()


def _rows_of(column: LabelColumn, at: int) -> NDArray[np.bool_]:
    """Return True for each row that has the data's class at this position."""
    if column.held.dtype.kind == "f":
        likely: NDArray[np.bool_] = column.held[:, at] > 0
        return likely if column.labels.ndim == 2 else likely | (column.labels == at)
    return (column.held == at).reshape(len(column.held), -1).any(axis=1)


def _row_of(column: LabelColumn, at: int) -> int:
    """Return the first row that has the data's class at this position."""
    return int(np.argmax(_rows_of(column, at)))


def listed(names: Sequence[str]) -> str:
    """Return some names, and the number of all."""
    shown = ", ".join(name[:40] for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown}, … ({len(names):,})"
