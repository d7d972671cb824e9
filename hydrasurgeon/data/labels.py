"""Labels and class names as people write them → the model's classes: by name where both have names.

A label is the name or number of one class; a number from 0 to 1, how true yes is; or a list of
names or numbers. A number may be a class's name ("1" to "5" stars) or its position (0 is the
model's first class): which one, the model's own names decide, or `--labels`. Where a row has a
probability for each class and no label besides, that is the most probable one.
"""

from __future__ import annotations

import json
import re
import string
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import PROBE, DataError
from hydrasurgeon.files.foreign import MAX_NAME, is_name
from hydrasurgeon.files.manifest import MAX_CLASSES, Model, ProblemName
from hydrasurgeon.files.rows import harmless
from hydrasurgeon.lookup import did_you_mean, plugins

Labels = NDArray[Any]
"""Class numbers, int64 [sample]; how true yes is, float64 [sample]; or 0 and 1, float32 [sample,
label].
"""

Fit = tuple[Labels, tuple[str, ...] | None, str | None]
"""Labels of a model (or positions among its classes), the names that its classes have now, and which
order was assumed.
"""

UNLABELLED = -1
"""In place of the class of a sample that has none."""
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
"""How far from 1 probabilities may sum to, which are rounded."""
MAX_CELLS = 1 << 30
"""Samples times labels, where a sample has any number of labels: far beyond any data set there is.
"""
YES = ("no", "yes")
"""Names that the labels 0 and 1 of one logit may have."""
ONE_EACH = "Labels are whole numbers or names, one for each row and in all rows alike."
FRACTIONS = "Labels of a model with one logit are 1 for yes, 0 for no, or a fraction between."
NUMBERS = "Labels of a model of numbers are numbers, one for each row."
CHANCES = (
    'Probabilities are an object such as {"red": 0.9, "blue": 0.1}, or a list in the order of '
    "classes, and sum to 1."
)
LISTS = 'Labels of a model with many labels are lists of names, such as ["red", "round"]; [] where none holds.'
TAGS = "Tags are lists of names: O, B-X for the first word of an X, and I-X for its others."
OTHER_CLASSES = (
    f"Use the data set the model was trained for, fit it a classifier of these classes ({PROBE}), or "
    "give CLIP other --classes."
)
"""What next, where the data has other classes than the model."""
SHOWN = 6
"""Class names that a message lists."""
AROUND = string.whitespace + ".,;:!?\"'`()[]{}…“”„‘’«»"
"""Punctuation around a name that is none of its own."""


@dataclass(frozen=True)
class Column:
    """Labels as the data holds them."""

    labels: Labels
    """Positions among `names`, where there are any."""
    names: tuple[str, ...] | None = None
    numbers: tuple[int, ...] | None = None
    """The numbers that `names` were written as: each may also be the position of a class."""
    reading: str | None = None
    """What `--labels` says of them: names, positions, sorted or exact."""
    note: str | None = None
    chances: NDArray[np.float32] | None = None
    """The probability of each class, where they were given."""
    own: NDArray[np.bool_] | None = None
    """Which rows have a label beside their probabilities; that of others is the most probable."""

    @property
    def held(self) -> NDArray[Any]:
        """The probabilities, where they were given, else the labels."""
        return self.labels if self.chances is None else self.chances

    def at(self, rows: Any) -> Column:
        """The labels of some rows."""
        chances = None if self.chances is None else self.chances[rows]
        own = None if self.own is None else self.own[rows]
        return replace(self, labels=self.labels[rows], chances=chances, own=own)

    @property
    def positions(self) -> Labels:
        """The numbers themselves, where single ones were written."""
        if self.numbers is None or self.labels.ndim == 2:
            return self.labels
        return np.array(self.numbers, dtype=np.int64)[self.labels]

    def named(self, names: Sequence[str]) -> Column:
        """The same labels, where the data says what its numbers are called."""
        if self.numbers is None:
            return self
        if self.chances is not None and self.numbers != tuple(range(len(names))):
            return self
        return Column(self.positions, tuple(names), chances=self.chances, own=self.own)


def are_codes(names: Sequence[str]) -> bool:
    return all(CODE.fullmatch(name) for name in names)


def labels_of(spec: str, values: Sequence[Any]) -> Column | None:
    """A column of numbers, of names, or of lists of them; None where every one is -1."""
    values = [sys.intern(value) if type(value) is str else value for value in values]
    texts = all(isinstance(value, str) for value in values)
    if texts and values and all(map(JSON.fullmatch, values)):
        values = [_cell(spec, row, value) for row, value in enumerate(values)]
    if any(isinstance(value, Mapping) for value in values):
        return _of_objects(spec, values)
    if any(isinstance(value, list | tuple) for value in values):
        return _of_fractions(spec, values) if _are_fractions(values) else _of_lists(spec, values)
    for row, value in enumerate(values):
        if value is None or value == "":
            raise DataError(f"{spec}: row {row} has no label", hint=ONE_EACH)
    are_numbers = texts and all(map(NUMBER.fullmatch, values))
    are_plain = are_numbers or (texts and not all(map(MANY.fullmatch, values)))
    for row, value in enumerate(values):
        if not are_plain and (type(value) not in (int, float) or value != value):
            raise DataError(f"{spec}: row {row} has the label {_shown(value)}", hint=ONE_EACH)
    if (texts and not are_numbers) or all(map(_is_integer, values)):
        return in_order(spec, values)
    return Column(np.array(values, dtype=np.float64))


def _is_integer(value: Any) -> bool:
    return type(value) is int or bool(INTEGER.fullmatch(str(value)))


def _ordered(values: Iterable[Any]) -> tuple[list[Any], tuple[int, ...] | None]:
    """Distinct names in order, and the numbers that they are, where all are numbers."""
    names = sorted({*values})
    if not names or not all(map(_is_integer, names)):
        return names, None
    names.sort(key=int)
    return names, tuple(map(int, names))


def in_order(spec: str, values: Sequence[Any]) -> Column | None:
    """Names or integers, whose classes stand in their order; None where every one is -1, which
    stands for no label.
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
) -> Column:
    """Values by their places among the names of classes, perhaps more than are in use."""
    position = {name: at for at, name in enumerate(names)}
    labels = np.array([position[value] for value in values], dtype=np.int64)
    return Column(labels, class_names(spec, [*map(str, names)]), numbers)


def _cell(spec: str, row: int, text: str) -> Any:
    """What JSON in a cell of a table holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"row {row} has the label {_shown(text)}, which is no JSON"
        raise DataError(f"{spec}: {what}", hint=CHANCES if "{" in text else LISTS) from error


def _of_objects(spec: str, values: Sequence[Any]) -> Column:
    """Probabilities by the names of classes; what a row does not name has none."""
    for row, value in enumerate(values):
        if not isinstance(value, Mapping):
            what = f"row {row} has the label {_shown(value)} where others have an object"
            raise DataError(f"{spec}: {what}", hint=CHANCES)
    names = class_names(spec, list({name for value in values for name in value}))
    if not names:
        raise DataError(f"{spec}: row 0: its probabilities sum to 0", hint=CHANCES)
    # Parquet has all names in all rows: those that a row leaves out are None.
    cells = {name: [value.get(name) for value in values] for name in names}
    by_name = {name: [0 if p is None else p for p in row] for name, row in cells.items()}
    return of_probabilities(spec, by_name)


def of_probabilities(spec: str, columns: Mapping[str, Sequence[Any]]) -> Column:
    """Probabilities by the names of classes: for each a column of numbers, perhaps as texts. They sum
    to 1, and the labels are the most probable.
    """
    names, numbers = _ordered(columns)
    _check_cells(spec, len(next(iter(columns.values()), ())), len(names))
    each = [[_chance(spec, row, cell) for row, cell in enumerate(columns[n])] for n in names]
    chances = np.array(each, dtype=np.float64).T
    sums = chances.sum(axis=1)
    wrong = np.abs(sums - 1) > ROUNDED + 1e-9  # .99 is within
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(
            f"{spec}: row {row}: its probabilities sum to {sums[row]:.6g}", hint=CHANCES
        )
    shares = (chances / sums[:, None]).astype(np.float32)
    return Column(shares.argmax(axis=1), class_names(spec, names), numbers, chances=shares)


def _are_fractions(values: Sequence[Any]) -> bool:
    """Whether lists are of probabilities: some number is neither 0 nor 1."""
    lists = (value for value in values if isinstance(value, list | tuple))
    return any(type(cell) is float and cell not in (0, 1) for value in lists for cell in value)


def _of_fractions(spec: str, values: Sequence[Any]) -> Column:
    """Probabilities in the order of classes."""
    first = next(value for value in values if isinstance(value, list | tuple))
    for row, value in enumerate(values):
        if not isinstance(value, list | tuple) or len(value) != len(first):
            what = f"row {row} has the label {_shown(value)} where others have {len(first)} numbers"
            raise DataError(f"{spec}: {what}", hint=CHANCES)
    by_position = {str(at): [value[at] for value in values] for at in range(len(first))}
    return replace(of_probabilities(spec, by_position), reading="positions")


def _chance(spec: str, row: int, cell: Any) -> float:
    """One probability."""
    chance = cell
    if isinstance(cell, str) and NUMBER.fullmatch(cell.strip()):
        chance = float(cell)
    if isinstance(chance, bool) or not isinstance(chance, int | float) or not 0 <= chance < 2:
        raise DataError(f"{spec}: row {row} has the probability {_shown(cell)}", hint=CHANCES)
    return float(chance)


def beside_probabilities(column: Column, values: Sequence[Any]) -> Column:
    """Probabilities with the labels that some rows have besides, by the names of the same classes."""
    assert column.names is not None
    position = {name: at for at, name in enumerate(column.names)}
    given = np.array([position.get(called(value), UNLABELLED) for value in values], dtype=np.int64)
    own = given != UNLABELLED
    return replace(column, labels=np.where(own, given, column.labels), own=own)


def called(value: Any) -> str:
    """The name in a column of labels; nothing where there is none."""
    if value is None or value != value or value in (UNLABELLED, str(UNLABELLED)):
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _check_cells(spec: str, rows: int, names: int) -> None:
    if rows * names > MAX_CELLS:
        raise DataError(f"{spec}: {rows:,} samples of {names:,} labels are too many", hint=LISTS)


def _of_lists(spec: str, values: Sequence[Any]) -> Column | None:
    """A 1 where a label holds, for lists of names or numbers of classes, or of a 0 or 1 for each."""
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
                f"{spec}: row {row} has the label {_shown(value)} where others have a list",
                hint=LISTS,
            )
    distinct, numbers = _ordered(label for labels in lists for label in labels)
    _check_cells(spec, len(values), len(distinct))
    position = {label: at for at, label in enumerate(distinct)}
    holds = np.zeros((len(values), len(distinct)), dtype=np.float32)
    for row, labels in enumerate(lists):
        holds[row, [position[label] for label in labels]] = 1
    return Column(holds, class_names(spec, [str(label) for label in distinct]), numbers)


def is_label_array(labels: NDArray[Any]) -> bool:
    """Whether an array may hold labels: whole numbers, fractions, or a row of 0 and 1 for each
    sample.
    """
    if labels.ndim == 2:
        return labels.dtype.kind in "iufb" and bool(np.isin(labels, (0, 1)).all())
    return labels.ndim == 1 and (
        labels.dtype.kind in "iu" or (labels.dtype.kind == "f" and np.isfinite(labels).all())
    )


def array_labels(spec: str, labels: NDArray[Any], names: Sequence[str] | None) -> Column | None:
    """Labels of such an array, perhaps with the names of its classes."""
    if labels.ndim == 2:
        holds = labels.astype(np.float32)
        if names is not None:
            return Column(holds, tuple(names))
        positions = tuple(range(labels.shape[1]))
        return Column(holds, tuple(map(str, positions)), positions, "positions")
    if labels.dtype.kind == "f":
        return Column(labels.astype(np.float64))
    column = in_order(spec, labels.tolist())
    if column is None or names is None:
        return column
    return column.named(names)


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


def _trimmed(name: str) -> str:
    return name.strip(AROUND) or name


SPELLINGS: dict[str, Callable[[str], str]] = {
    "Unicode form": lambda name: normalize("NFKC", name),
    "case": str.casefold,
    "blanks": lambda name: " ".join(name.split()),
    "punctuation at the ends": _trimmed,
}
"""In what two spellings of one name may differ → a name without it."""


def _unspelt(name: str) -> str:
    """A name without what spellings differ in."""
    for plain in SPELLINGS.values():
        name = plain(name)
    return name


def _difference(name: str, other: str) -> str:
    """In what two spellings differ."""
    return next((what for what, f in SPELLINGS.items() if f(name) == f(other)), "spelling")


def _check_spellings(spec: str, column: Column) -> None:
    """Refuse names of new classes of which two may be meant as one."""
    seen: dict[str, int] = {}
    names = column.names or ()
    for at, name in enumerate(names):
        first = seen.setdefault(_unspelt(name), at)
        if first != at and column.reading != "exact":
            one, other = (f"{names[i]!r} ({_rows_of(column, i).sum():,} rows)" for i in (first, at))
            raise DataError(
                f"{spec}: the labels {one} and {other} differ only in "
                f"{_difference(names[first], name)}",
                hint="Write them alike, or say --labels exact if they are two classes.",
            )


ONE, LIST, WORDS = "one label", "a list of labels", "a tag for each word"
"""What a row may have."""


def _kind_of(labels: Labels) -> str:
    if labels.ndim == 1:
        return ONE
    return WORDS if labels.dtype.kind == "i" else LIST


def new_problem(
    spec: str, column: Column, wanted: ProblemName | None
) -> tuple[ProblemName, int, tuple[str, ...] | None]:
    """What kind of problem a new classifier of these labels answers, how many classes it has, and
    their names.
    """
    if column.numbers is None:
        _check_spellings(spec, column)
    kind = _kind_of(column.labels)
    if kind == WORDS and column.names is None:
        raise DataError(f"{spec}: its tags are numbers without names", hint=TAGS)
    problem = OF_KINDS.get(kind) or wanted or OF_DTYPES[column.labels.dtype.kind]
    if problem in ONE_OUTPUT:
        return problem, 1, None
    return problem, *new_classes(spec, column)


def new_classes(spec: str, column: Column) -> tuple[int, tuple[str, ...] | None]:
    """How many classes there are, and their names; numbers that count from 0 need none."""
    numbers = column.numbers
    if numbers is None:
        if column.names is not None:
            return len(column.names), column.names
        return int(column.labels.max(initial=0)) + 1, None
    if column.reading is None and UNLABELLED in numbers:
        raise DataError(
            f"{spec}: some labels are -1, which may be a class or stand for no label",
            hint="Say --labels names where it is a class, else leave these rows out.",
        )
    are_positions = column.reading == "positions"
    if column.reading is None:
        are_positions = numbers == tuple(range(len(numbers)))
    if not are_positions:
        return len(numbers), column.names
    if numbers and not 0 <= numbers[0] <= numbers[-1] < MAX_CLASSES:
        raise DataError(f"{spec}: labels {numbers[0]} to {numbers[-1]} are no positions")
    return max(numbers, default=-1) + 1, None


OF_DTYPES: dict[str, ProblemName] = {"i": "single_label", "f": "one_logit"}
"""Kind of numbers that labels are → the problem that they are taken for."""
OF_KINDS: dict[str, ProblemName] = {LIST: "multi_label", WORDS: "tokens"}
"""What a row has → the problem, where it is one of a kind."""
ONE_OUTPUT: tuple[ProblemName, ...] = ("one_logit", "number")
"""Problems that have one output, without a name."""


def matched(spec: str, column: Column, model: Model) -> Column:
    """The data's labels → the model's; the names that classes have now, and which order was
    assumed.

    DataError where the model has no such labels. Names are the model's, or the data's where the
    model has none.
    """
    is_float = column.labels.ndim == 1 and column.labels.dtype.kind == "f"
    if column.names is None and not is_float:  # fitted before
        numbers = tuple(range(model.num_classes))
        numbered = tuple(map(str, numbers))
        column = replace(column, names=numbered, numbers=numbers, reading="positions")
    read, wanted, hint = READ.get(model.problem) or plugins("problems")[model.problem].labels
    kind = _kind_of(column.labels)
    # Of CLIP a picture may show one thing, or several.
    if kind != wanted and not (model.is_zero_shot and kind == ONE):
        what = f"{spec}: row 0 has {kind}, where {wanted} is due"
        raise DataError(what, hint=f"{hint} For others, fit a classifier ({PROBE}).")
    labels, names, note = read(spec, column, model)
    notes = [text for text in (column.note, note) if text]
    chances = None
    if column.chances is not None and read is not _of_one_output:
        said = f"labels of {spec} are probabilities, {_taken(column, learnt=read is _of_classes)}"
        if said not in (column.note or ""):
            notes.append(said)
        if read is _of_classes:
            chances = _of_many_labels(spec, replace(column, labels=column.chances), model)[0]
    return Column(labels, names, note="; ".join(notes) or None, chances=chances, own=column.own)


def _taken(column: Column, *, learnt: bool) -> str:
    """What becomes of probabilities."""
    rest = "the most probable, and holds for agreement with that"
    if column.own is not None and column.own.any():
        rest = "the labels beside them"
        if not column.own.all():
            rest += ", and the most probable where there is none"
    return (
        f"which training learns; all else takes {rest}" if learnt else f"of which is taken {rest}"
    )


def _of_classes(spec: str, column: Column, model: Model) -> Fit:
    """One of several classes, for each row or for each word that has one."""
    labels = column.labels
    if labels.dtype.kind == "f":
        row = int(np.argmax(labels != np.floor(labels)))
        raise DataError(f"{spec}: row {row} has the label {float(labels[row])}", hint=ONE_EACH)
    assert column.names is not None
    known = (labels != UNLABELLED) | (labels.ndim == 1)
    outside = np.argwhere(known & ((labels < 0) | (labels >= len(column.names))))
    if len(outside):
        at = tuple(outside[0])
        raise DataError(
            f"{spec}: row {at[0]} has label {labels[at]}, it has classes 0-{len(column.names) - 1}",
            hint=OTHER_CLASSES,
        )
    positions, names, note = positions_of(spec, column, model)
    return np.where(known, positions[labels], UNLABELLED), names, note


def positions_of(spec: str, column: Column, model: Model) -> Fit:
    """For each class of the data its position among the model's, or -1; the classes' names, and
    which order was assumed.
    """
    assert column.names is not None
    if column.numbers is not None and _are_positions(spec, column, model):
        return _by_position(spec, column, model)
    labels = model.labels
    in_order = column.reading in ("positions", "sorted")
    if labels is None or in_order or _same_order(column.names, model):
        return _by_order(spec, column, model)
    return _by_name(spec, column, labels), labels, None


def _are_positions(spec: str, column: Column, model: Model) -> bool:
    """Whether numbers are positions of classes, and not names of the model's."""
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


def _by_position(spec: str, column: Column, model: Model) -> Fit:
    numbers, count, labels = column.numbers or (), model.num_classes, model.labels
    positions = np.full(len(numbers), -1, dtype=np.int64)
    for at in _used(column):
        if not 0 <= numbers[at] < count:
            raise DataError(
                f"{spec}: row {_row_of(column, at)} has label {numbers[at]}, the model has "
                f"classes 0-{count - 1}",
                hint=OTHER_CLASSES,
            )
        positions[at] = numbers[at]
    note = None
    if labels:
        note = (
            f"labels of {spec} are numbers, taken as the model's classes in its order: "
            f"0 is {labels[0]}, {count - 1} is {labels[-1]}"
        )
    return positions, labels, note


def _by_order(spec: str, column: Column, model: Model) -> Fit:
    """The data's classes one by one as the model's."""
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
    theirs = f"0…{count - 1}" if labels is None else listed(labels)
    note = f"classes of {spec}, in this order, taken as the model's {theirs}: {listed(names)}"
    return np.argsort(order), labels or names, None if names == labels else note


def _numeric_order(spec: str, column: Column) -> tuple[int, ...]:
    """The order of names that are numbers; DataError where their order as text is another, and
    nobody said which counts.
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
                "Say --labels positions for the order of numbers, or --labels sorted for that of "
                "text, which torchvision's ImageFolder has."
            ),
        )
    if column.reading is None:
        return stored
    return as_text if column.reading == "sorted" else by_number


def _of_one_output(spec: str, column: Column, model: Model) -> Fit:
    """Numbers as they are; of one logit how true yes is, from 0 to 1."""
    is_logit = model.problem == "one_logit"
    least, most, hint = (0, 1, FRACTIONS) if is_logit else (-np.inf, np.inf, NUMBERS)
    labels, worth = column.positions.astype(np.float64), column.numbers
    if column.names is not None and column.numbers is None:
        words = YES if is_logit else ()
        wrong = next((at for at in _used(column) if column.names[at] not in words), None)
        if wrong is not None:
            what = f"row {_row_of(column, wrong)} has the label {_shown(column.names[wrong])}"
            raise DataError(f"{spec}: {what}", hint=hint)
        worth = tuple(int(name == "yes") for name in column.names)
        labels = np.array(worth, np.float64)[column.labels]
    if column.chances is not None and worth is not None:
        if is_logit and max(worth) > 1:
            raise DataError(f"{spec}: row 0 has a probability of {max(worth)}", hint=hint)
        means = column.chances.astype(np.float64) @ np.array(worth)
        labels = means if column.own is None else np.where(column.own, labels, means)
    fits = np.isfinite(labels) & (labels >= least) & (labels <= most)
    if not fits.all():
        row = int(np.argmin(fits))
        raise DataError(f"{spec}: row {row} has the label {labels[row]:g}", hint=hint)
    return labels, model.labels, None


def _of_many_labels(spec: str, column: Column, model: Model) -> Fit:
    """A 1 for each of the model's labels that holds."""
    holds = column.labels
    if holds.ndim != 2:
        numbers, names, note = _of_classes(spec, column, model)
        return np.eye(model.num_classes, dtype=np.float32)[numbers], names, note
    positions, names, note = positions_of(spec, column, model)
    matrix = np.zeros((len(holds), model.num_classes), dtype=np.float32)
    known = positions >= 0
    matrix[:, positions[known]] = holds[:, known]
    return matrix, names, note


Match = Callable[[str, Column, Model], Fit]
READ: dict[str, tuple[Match, str, str]] = {
    "single_label": (_of_classes, ONE, ONE_EACH),
    "one_logit": (_of_one_output, ONE, FRACTIONS),
    "multi_label": (_of_many_labels, LIST, LISTS),
    "number": (_of_one_output, ONE, NUMBERS),
    "tokens": (_of_classes, WORDS, TAGS),
}
"""Kind of problem → how labels are fitted to a model of it, what a row must have, and a hint; those
of plugins are their `labels`.
"""


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


def _by_name(spec: str, column: Column, labels: Sequence[str]) -> NDArray[np.int64]:
    """The numbers of the model's classes, by name; classes without samples need not be known."""
    names = column.names or ()
    places = _places_of(names, labels)
    used = _used(column)
    unknown = sorted((_row_of(column, at), names[at]) for at in used if places[at] < 0)
    if unknown:
        row, name = unknown[0]
        near = did_you_mean(name, labels)
        alike = next((label for label in labels if _unspelt(label) == _unspelt(name)), None)
        if alike is not None:
            near = f", which differs only in {_difference(name, alike)} from {_shown(alike)}"
        # What the data lacks comes first.
        ours = sorted(labels, key=lambda label: label in names)
        raise DataError(
            f"{spec}: row {row}: the model has no class {listed([name for _, name in unknown])}"
            f"{near}; the model's: {listed(ours)}",
            hint=OTHER_CLASSES,
        )
    counts = Counter(labels)
    twice = next((names[at] for at in used if counts[names[at]] > 1), None)
    if twice is not None:
        raise DataError(
            f"{spec}: the model has more than one class {twice}",
            hint="Give the labels as numbers of the model's classes.",
        )
    return np.array(places, dtype=np.int64)


def _places_of(names: Sequence[str], labels: Sequence[str]) -> list[int]:
    """The position of each name among the labels, or -1; numbers may be spelt otherwise (1 is 01),
    and names as `predict` writes them to a table ('-).
    """
    position = {label: at for at, label in enumerate(labels)}
    position = {harmless(label): at for label, at in position.items()} | position
    exact = [position.get(name, -1) for name in names]
    if -1 in exact and all(map(NUMBER.fullmatch, (*names, *labels))):
        by_value = {Decimal(label): at for at, label in enumerate(labels)}
        if len(by_value) == len(labels):
            return [by_value.get(Decimal(name), -1) for name in names]
    return exact


def _used(column: Column) -> list[int]:
    """The data's classes that some row has."""
    if column.held.dtype.kind == "f":
        used = np.flatnonzero(column.held.any(axis=0))
        return (used if column.labels.ndim == 2 else np.union1d(used, column.labels)).tolist()
    return np.unique(column.held[column.held != UNLABELLED]).tolist()


def _rows_of(column: Column, at: int) -> NDArray[np.bool_]:
    """Whether each row has the data's class at this position."""
    if column.held.dtype.kind == "f":
        likely: NDArray[np.bool_] = column.held[:, at] > 0
        return likely if column.labels.ndim == 2 else likely | (column.labels == at)
    return (column.held == at).reshape(len(column.held), -1).any(axis=1)


def _row_of(column: Column, at: int) -> int:
    """The first of them."""
    return int(np.argmax(_rows_of(column, at)))


def listed(names: Sequence[str]) -> str:
    """Some names, and how many there are."""
    shown = ", ".join(name[:40] for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown}, … ({len(names):,})"
