"""Tables of samples: only the columns that samples consist of, or carry along, are kept.

The datasets library's readers do not fit: they copy each file into a cache, guess types (the label
01 becomes 1, NA becomes nothing), and name no row of what they cannot read.
"""

from __future__ import annotations

import csv
import os
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from hydrasurgeon.data.labels import (
    LabelColumn,
    beside_probabilities,
    called,
    class_names,
    labels_of,
    of_probabilities,
)
from hydrasurgeon.data.packed import Packed, growing
from hydrasurgeon.data.places import ending
from hydrasurgeon.data.samples import Rows, Samples, TextPairs, is_missing, why_unreadable
from hydrasurgeon.data.tags import rows_of_conll, tagged, with_entities
from hydrasurgeon.data.word_tokens import TokenSamples, of_tokens
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.rows import SEPARATORS, separator_of
from hydrasurgeon.files.untrusted import decoding, open_regular, parse_json, utf8
from hydrasurgeon.lookup import did_you_mean

QUOTES = "Is a double quote not closed? Within a quoted cell each double quote is written twice."
"""Hint for a table that ends within a cell."""
FIELDS = "Fields are separated by a comma, a semicolon or a tab; a cell that holds one stands in double quotes."
"""Hint for lines with other numbers of fields."""
IMAGES = ("image", "img")
"""Columns that may hold images, the first that is there."""
TEXTS = ("text", "sentence")
"""Columns that may hold texts."""
LABELS = ("label", "labels", "fine_label")
"""Columns that may hold labels."""
CHANCE = "p."
"""Prefix of columns that hold the probabilities of a class."""
GROUPS = ("group",)
"""Columns that may hold the query of a row."""
TOKENS = "tokens"
"""Column that lists the words of each text."""
TAGS = ("tags", "ner_tags")
"""Columns that may hold a tag for each word."""
ENTITIES = "entities"
"""Column that lists the entities of each text, by character positions."""
SECOND = "text_pair"
"""Column that holds the second text of each pair; the first is one of TEXTS."""
COLUMNS = frozenset((*IMAGES, *TEXTS, *LABELS, *GROUPS, SECOND, TOKENS, *TAGS, ENTITIES))
"""Columns that samples consist of."""
ID = "id"
"""Column that holds the name of each row in a list of answers."""
RENAME = "Rename its columns, or give one alone: predict(table['NAME'])."
"""Hint for a caller's table with other columns."""
PAIRS = {
    "sentence1",
    "sentence2",
    "sentence_b",
    "question",
    "question1",
    "question2",
    "text_b",
    "text2",
    "premise",
    "hypothesis",
    "query",
    "passage",
    "context",
    "document",
}
"""Columns that hold one of two texts under other names."""
# Bytes of one line of .jsonl, and characters of one field of .csv.
MAX_LINE = 16 << 20
# Bytes of a whole .json.
MAX_WHOLE = 4 << 30
# Bytes that any packed table may unpack to, and how many times its size a large one: a few bytes can
# become a thousand times as many, and texts do not shrink to a fiftieth.
MAX_UNPACKED = 64 << 20
MAX_RATIO = 50
# Bytes of a packed table that is unpacked once before its first row is read: a larger one is
# checked while it is read.
SMALL = 8 << 20
# Blank lines of a file.
MAX_BLANK = 1_000_000
# Rows of a text file that are Python's objects at once.
PIECE = 1 << 14
FIRST_WORDS = 40
"""Number of characters of a row that a message quotes."""
# Rows of a table; a limited one is drawn from the first of them.
MAX_ROWS = 50_000_000
DRAWN_FROM = 1_000_000


@dataclass(frozen=True)
class ColumnSelection:
    """Selection of columns: those that were named, and those that are carried along if they
    exist.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    """Names of columns by role."""
    carried: Collection[str] = ()
    limit: int | None = None
    """Number of rows that will be drawn from those that are read."""
    at_once: int | None = None
    """Maximum number of rows of a table; None for all."""
    labelled: bool = True
    """True if labels are needed."""
    skip_bad: bool = False
    """True if rows without a readable text, or without a needed label, are left out."""

    @property
    def known_columns(self) -> set[str]:
        """All that are read, where they are there."""
        return {*COLUMNS, *self.carried, *self.named.values()}

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Return the columns of a table that are read."""
        known_columns, chances = self.known_columns, "label" not in self.named
        return [n for n in names if n in known_columns or (chances and n.startswith(CHANCE))]

    @property
    def images(self) -> tuple[str, ...]:
        """Columns that may hold images, or paths of them."""
        image = self.named.get("image")
        return IMAGES if image is None else (image,)


@dataclass(frozen=True)
class Table:
    """Columns by name, with their values as the file holds them; the caller checks the values."""

    spec: str
    names: tuple[str, ...]
    """Names of all columns of the file."""
    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Class names of columns of class numbers."""
    root: Path | None = None
    """Folder that paths in the table are relative to."""
    lines: Sequence[int] = ()
    """Line of the file in which each row begins, counted from 1; empty if the file has no lines."""
    hint: str = "Name the columns: --columns text=NAME,label=NAME."
    """Hint for a missing column."""

    def place(self, row: int) -> str:
        """Return the place of a row in the file."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"

    def at(self, rows: Sequence[int]) -> Table:
        """Return some of the rows."""
        columns = {}
        for name, values in self.columns.items():
            columns[name] = growing(values)
            columns[name].extend(values[row] for row in rows)
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows if self.lines])

    def find(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.columns), None)

    def column(self, role: str, columns: ColumnSelection, usual: Sequence[str]) -> str | None:
        """Return the column that the user named for a role, else the first usual one that
        exists.
        """
        name = columns.named.get(role)
        if name is None:
            return self.find(usual)
        if name not in self.columns:
            near = did_you_mean(name, self.names)
            raise DataError(
                f"--columns {role}={name}: {self.spec} has no such column{near} "
                f"({listed(self.names)})",
                hint=f"Columns of one table alone stand behind it: {self.spec.partition('#')[0]}#{role},NAME.",
            )
        return name


def table_of(spec: str, source: Any) -> Table:
    """Return a caller's table (pandas, polars, pyarrow, or a mapping of columns) without labels,
    which answers do not need.
    """
    names = getattr(source, "column_names", None)
    if names is None:
        names = list(source) if isinstance(source, Mapping) else list(source.columns)
    columns = {}
    for name in names:
        if name not in (*LABELS, *TAGS, ENTITIES):
            columns[name] = _values(spec, name, source[name])
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1 or not all(isinstance(name, str) for name in names):
        raise DataError(f"{spec}: columns are not equally long, or their names are not texts")
    return Table(spec, tuple(names), columns, hint=RENAME)


def _values(spec: str, name: str, column: Any) -> Sequence[Any]:
    """Return the values of a column; pandas' marks for missing values become None."""
    if hasattr(column, "notna"):
        column = column.astype(object).where(column.notna(), None)
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            column = getattr(column, method)()
            break
    if not isinstance(column, Sequence) or isinstance(column, str | bytes):
        raise DataError(
            f"{spec}: the column {name} is not a list of values",
            hint="Give lists that are equally long, such as {'text': ['one', 'two']}.",
        )
    if name == TOKENS:  # pandas reads lists as arrays
        return [value.tolist() if hasattr(value, "tolist") else value for value in column]
    return column


def listed(names: Sequence[str]) -> str:
    """Return the list of a table's columns for a message."""
    shown = [name[:40] for name in names[:20]]
    more = ["…"] if len(names) > len(shown) else []
    return f"found: {', '.join([*shown, *more]) or 'none'}"


def read_tables(spec: str, path: Path, columns: ColumnSelection) -> Iterator[Table]:
    """Yield the wanted columns of one file, at most `columns.at_once` rows at a time."""
    with open_regular(path, error=DataError) as file:
        size = os.fstat(file.fileno()).st_size
        yield from tables_in(spec, ending(path), file, size, columns, root=path.parent)


def tables_in(
    spec: str,
    kind: str,
    file: IO[bytes],
    size: int,
    columns: ColumnSelection,
    *,
    root: Path | None = None,
) -> Iterator[Table]:
    """Yield tables of an open file of this size; `kind` is its ending."""
    source = TableSource(spec, file, size, root, columns)
    pieces = READERS[kind](source)
    if columns.at_once is None:
        yield _merge(pieces)
    else:
        yield from pieces


def _merge(pieces: Iterator[Table]) -> Table:
    """Return all rows of one file; columns that are missing in the first pieces are None there."""
    first = next(pieces)
    second = next(pieces, None)
    if second is None:
        return first
    table, columns, lines = first, dict[str, Packed | list[Any]](), array("q")
    for number, table in enumerate(chain([first, second], pieces)):
        for name, values in table.columns.items():
            if name not in columns:
                columns[name] = growing(values)
                columns[name].extend([None] * number * PIECE)
            columns[name].extend(values)
        lines.extend(table.lines)
    return replace(table, columns=columns, lines=lines)


@dataclass(frozen=True)
class TableSource:
    """A file that a table is read from."""

    spec: str
    file: IO[bytes]
    size: int
    """Size of the file in bytes, as it is stored."""
    root: Path | None
    """Folder that paths in the file are relative to; None for a remote file, which may hold
    none.
    """
    selection: ColumnSelection

    def lines(self) -> Iterator[str]:
        """Yield the lines of a UTF-8 file, without a byte order mark."""
        blank = 0
        for number, line in enumerate(iter(lambda: self.file.readline(MAX_LINE + 1), b""), 1):
            where = f"{self.spec}, line {number}"
            if len(line) > MAX_LINE:
                raise DataError(f"{where}: is too long; at most {MAX_LINE:,} bytes are read")
            blank += line.isspace()
            if blank > MAX_BLANK:
                raise DataError(f"{where}: more than {MAX_BLANK:,} lines are blank")
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            yield utf8(line, where, DataError)

    @property
    def most(self) -> int:
        """Bytes that it may unpack to."""
        return max(MAX_UNPACKED, MAX_RATIO * self.size)

    def check_unpacked(self, size: int) -> None:
        if size > self.most:
            raise DataError(
                f"{self.spec}: unpacks to more than {self.most:,} bytes",
                hint="Split it into several files, or unpack it if it is what you expect.",
            )

    def is_enough(self, rows: int) -> bool:
        """Return True if no more than this number of rows is read."""
        if self.selection.limit is not None and rows >= max(self.selection.limit, DRAWN_FROM):
            return True
        if rows > MAX_ROWS:
            raise DataError(
                f"{self.spec}: has more than {MAX_ROWS:,} rows", hint="Split it into several files."
            )
        return False

    def tables(
        self, records: Iterable[tuple[int, Mapping[str, Any]]], names: Iterable[str] = ()
    ) -> Iterator[Table]:
        """Yield tables from records, each given with the line in which it begins (0 if there are no
        lines); a record may have columns that others lack.
        """
        column_names = dict.fromkeys(names)
        columns: dict[str, list[Any]] = {name: [] for name in self.selection.chosen(column_names)}
        rows, first_row, at_once, lines = 0, 0, self.selection.at_once or PIECE, array("q")
        for line, record in records:
            if line:
                lines.append(line)
            for name in record:
                if name not in column_names:
                    column_names[name] = None
                    if self.selection.chosen([name]):
                        columns[name] = [None] * (rows - first_row)
            for name, values in columns.items():
                values.append(record.get(name))
            rows += 1
            if rows - first_row == at_once:
                yield self.table(column_names, columns, lines)
                columns, first_row, lines = {name: [] for name in columns}, rows, array("q")
            if self.is_enough(rows):
                break
        if rows > first_row or not rows:
            yield self.table(column_names, columns, lines)

    def table(
        self, names: Iterable[str], columns: Mapping[str, Sequence[Any]], lines: Sequence[int]
    ) -> Table:
        return Table(self.spec, tuple(names), columns, root=self.root, lines=lines)


def count_table(path: Path) -> int | None:
    """Return the number of rows of the table in a file; None if all of it would have to be read."""
    kind = ending(path)
    if kind not in COUNTED:
        return None
    with open_regular(path, error=DataError) as file:
        source = TableSource(
            str(path), file, os.fstat(file.fileno()).st_size, None, ColumnSelection()
        )
        return COUNTED[kind](source)


def joined(spec: str, tables: Sequence[Table], selection: ColumnSelection) -> Table:
    """Return the rows of tables with the same columns, one file after another."""
    tables = [table for table in tables if table.names] or tables[:1]
    first = tables[0]
    if len(tables) == 1:
        return first
    for other in tables[1:]:
        if {*other.names} != {*first.names} or other.classes != first.classes:
            raise DataError(
                f"{spec}: its files have other columns ({listed(first.names)}; "
                f"{listed(other.names)})"
            )
    columns = {name: growing(values) for name, values in first.columns.items()}
    for table in tables:
        for name, values in columns.items():
            values.extend(_rooted(table, name, selection))
    return Table(spec, first.names, columns, first.classes)


def _rooted(table: Table, name: str, selection: ColumnSelection) -> Sequence[Any]:
    """Return a column, with its paths relative to the current folder."""
    values, root = table.columns[name], table.root
    if name not in selection.images or root is None:
        return values
    # An absolute path, or a row without one, stays what it is.
    return [str(root / value) if isinstance(value, str) and value else value for value in values]


def rows(table: Table, columns: ColumnSelection) -> Samples:
    """Return images, texts or pairs of texts, with labels and groups if there are columns of
    them.
    """
    if not table.names:
        raise DataError(f"{table.spec}: holds no samples")
    if columns.skip_bad and (bad := _incomplete(table, columns)):
        return _without(table, columns, bad)
    if (words := _words(table, columns)) is not None:
        return words
    image = second = None
    if not {"text", "text_pair"} & columns.named.keys():
        image = table.column("image", columns, IMAGES)
    if image is not None:
        first = image
        samples: Samples = Rows(table.spec, table.columns[first], "image", root=table.root)
    else:
        first, second = _texts(table, columns)
        samples = Rows(table.spec, table.columns[first], "text")
    if second is not None:
        samples = TextPairs(samples, Rows(table.spec, table.columns[second], "text"), second)
    labels = table.column("label", columns, LABELS)
    group = table.column("group", columns, GROUPS)
    chances = [name for name in table.names if name.startswith(CHANCE) and name in table.columns]
    by_name = {name.removeprefix(CHANCE): table.columns[name] for name in chances}
    try:
        if len(by_name) > 1:
            _learn(samples, table, labels, by_name)
        elif labels is not None:
            samples.written = _labels(table, labels)
    except DataError as error:
        if columns.labelled:
            raise
        samples.refused = error
    if group is not None:
        samples.grouping = table.columns[group]
    return _with_columns(samples, table, columns, first, second, group)


def _incomplete(table: Table, columns: ColumnSelection) -> dict[int, str]:
    """Return the reasons why rows are left out: they lack a text, or a label where labels are
    needed.
    """
    texts: dict[str, str] = {}
    if {"text", "text_pair"} & columns.named.keys() or not table.find(columns.images):
        alone = "text" in columns.named
        first = table.column("text", columns, (*TEXTS, TOKENS))
        second = table.column(SECOND, columns, () if alone else (SECOND,))
        called = {first: "text", second: f"second text ({second})"}
        texts = {name: label_text for name, label_text in called.items() if name is not None}
    label = table.column("label", columns, (*LABELS, *TAGS, ENTITIES))
    chances = [name for name in table.columns if name.startswith(CHANCE)]
    labels = [] if label is None else [label]
    if len(chances) > 1:
        labels += chances
    bad: dict[int, str] = {}
    for row in range(len(next(iter(table.columns.values()), ()))):
        cells = {name: table.columns[name][row] for name in (*texts, *labels)}
        why = None
        for name, label_text in texts.items():
            if not isinstance(cells[name], list | tuple):
                why = why or why_unreadable(cells[name], label_text)
        unlabelled = bool(labels) and all(is_missing(cells[name]) for name in labels)
        if why is None and columns.labelled and unlabelled:
            why = "has no label"
        if why is not None:
            cell = next((value for value in cells.values() if not is_missing(value)), None)
            bad[row] = f"{table.place(row)} {why}" + f" ({first_words(cell)})" * (cell is not None)
    return bad


def _without(table: Table, columns: ColumnSelection, bad: Mapping[int, str]) -> Samples:
    """Return the samples of the other rows, which keep their row numbers."""
    count = len(next(iter(table.columns.values())))
    kept = [row for row in range(count) if row not in bad]
    if not kept:
        message = (
            f"{table.spec}: none of its {count:,} rows can be used; {next(iter(bad.values()))}"
        )
        raise DataError(message, hint="Name the columns: --columns text=NAME,label=NAME.")
    samples = rows(table.at(kept), replace(columns, skip_bad=False))
    samples.places, samples.left_out = kept, tuple(bad.values())
    return samples


def first_words(cell: Any) -> str:
    """Return the beginning of a cell, as one line."""
    words = " ".join(str(cell).split())
    return repr(words if len(words) <= FIRST_WORDS else f"{words[: FIRST_WORDS - 1]}…")


def _with_columns(
    samples: Samples, table: Table, columns: ColumnSelection, *used: str | None
) -> Samples:
    """Add to samples the carried columns, and the names of the columns that they consist of."""
    samples.table_columns, samples.used = table.names, tuple(filter(None, used))
    samples.columns = {
        name: table.columns[name] for name in columns.carried if name in table.columns
    }
    return samples


def _words(table: Table, columns: ColumnSelection) -> Samples | None:
    """Return texts whose words or entities the table lists; None for other tables with columns of
    these names.
    """
    spec, cells = table.spec, table.columns
    tokens = columns.named.get("text", TOKENS)
    text = table.column("text", columns, TEXTS)
    labels = table.column("label", columns, (*TAGS, *LABELS, ENTITIES))
    values = () if labels is None else cells[labels]
    written = None
    has_tags = labels in TAGS and tokens in cells
    if "text" not in columns.named and table.find(columns.images) is not None and not has_tags:
        return None
    is_chosen = tokens in cells and (has_tags or text in (None, tokens))
    if is_chosen and (text is None or _lists(cells[tokens], (str,))):
        texts = [of_tokens(spec, row, words) for row, words in enumerate(cells[tokens])]
        if has_tags or _lists(values, (str, int)):
            written = tagged(spec, texts, values, table.classes.get(labels or ""))
        elif labels is not None and labels != ENTITIES:
            written = _labels(table, labels)
    elif text is not None and labels == columns.named.get("label", ENTITIES):
        if not _lists(values, (Mapping,)):
            return None
        plain = Rows(spec, cells[text], "text")
        read = [str(plain.read(i)) for i in range(len(plain))]
        texts, written = with_entities(spec, read, values)
        tokens = text
    else:
        return None
    return _with_columns(TokenSamples(spec, texts, written), table, columns, tokens, labels)


def _lists(values: Sequence[Any], kinds: tuple[type, ...]) -> bool:
    """Return True if a column holds lists of these types, judged by the first list that is not
    empty.
    """
    is_list = False
    for value in values:
        if isinstance(value, list | tuple) and not value:
            is_list = True
        elif value is not None:
            return isinstance(value, list | tuple) and isinstance(value[0], kinds)
    return is_list


def _learn(
    samples: Samples, table: Table, labels: str | None, shares: Mapping[str, Sequence[Any]]
) -> None:
    """Set probabilities as labels of samples, with single labels beside them if their names
    match.
    """
    explicit = None if labels is None else _named_labels(table, labels)
    named = {*shares, ""}
    other = next((name for name in map(called, explicit or ()) if name not in named), None)
    if labels is not None and other is not None:
        samples.written = _labels(table, labels)
        note = f"the columns {CHANCE}{next(iter(shares))}, … are not read, as the label {other} has none"
        samples.written = samples.written and replace(samples.written, note=note)
        return
    try:
        samples.written = of_probabilities(table.spec, shares, texts=True)
        if explicit is not None:
            samples.written = beside_probabilities(samples.written, explicit)
    except DataError as error:
        if labels is not None:
            error.hint = f"{error.hint} Or leave them out: --columns label={labels}."
        samples.refused = error


def _labels(table: Table, name: str) -> LabelColumn | None:
    column = labels_of(table.spec, table.columns[name])
    if column is not None and name in table.classes:
        column = column.named(table.classes[name])
    return column


def _named_labels(table: Table, name: str) -> Sequence[Any]:
    """Return labels by the names that the table's file has for their numbers."""
    values, names = table.columns[name], table.classes.get(name, ())
    return [
        names[value] if isinstance(value, int) and 0 <= value < len(names) else value
        for value in values
    ]


def _texts(table: Table, columns: ColumnSelection) -> tuple[str, str | None]:
    """Return the column of texts, and that of second texts if they come in pairs."""
    first = table.column("text", columns, TEXTS)
    # A column of texts that was named stands alone, unless the other one was named too.
    alone = "text" in columns.named
    second = table.column(SECOND, columns, () if alone else (SECOND,))
    several = [name for name in table.names if name in PAIRS or name == first]
    if second is None and not alone and len(several) > 1:
        raise DataError(
            f"{table.spec}: columns {', '.join(several)} hold more than one text for each row",
            hint=f"Name both, --columns text={several[0]},text_pair={several[1]}, or the one that "
            "is read, "
            "--columns text=NAME.",
        )
    if first is None:
        problem = f"needs a column image or text ({listed(table.names)})"
        raise DataError(f"{table.spec}: {problem}", hint=table.hint)
    return first, second


def _records(source: TableSource) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(source.lines(), 1):
        if line.isspace():
            continue
        where = f"{source.spec}, line {number}"
        record = parse_json(line, where, most=MAX_LINE, error=DataError)
        if not isinstance(record, dict):
            raise DataError(
                f"{where}: is not a JSON object", hint='Each line is one, {"text": …, "label": …}.'
            )
        yield number, record


def _json(source: TableSource) -> Iterator[Table]:
    """Yield tables from a list of records."""
    spec, content = source.spec, source.file.read(MAX_WHOLE + 1)
    if len(content) > MAX_WHOLE:
        raise DataError(f"{spec}: is too large; at most {MAX_WHOLE:,} bytes are read")
    value = parse_json(content, spec, most=MAX_WHOLE, error=DataError)
    if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
        hint = 'Such as [{"text": …, "label": …}, …].'
        raise DataError(f"{spec}: is not a list of JSON objects", hint=hint)
    yield from source.tables((0, record) for record in value)


def _conll(source: TableSource) -> Iterator[Table]:
    rows = rows_of_conll(source.lines())
    names = TOKENS, TAGS[0]
    yield from source.tables(((0, dict(zip(names, row, strict=True))) for row in rows), names)


def _csv(source: TableSource, *, separators: str = SEPARATORS) -> Iterator[Table]:
    spec = source.spec
    with decoding(f"{spec}: not a readable .csv file", hint=QUOTES):
        lines = _lines_of_csv(source, separators)
        names = _once(spec, next(lines, []))
        if not names:
            raise DataError(f"{spec}: is empty", hint="Its first line names the columns.")
        yield from source.tables(_rows(spec, names, lines), names)


def _lines_of_csv(source: TableSource, separators: str) -> Any:
    """Return a reader of the lines, the first of which names the columns."""
    csv.field_size_limit(MAX_LINE)
    text = source.lines()
    head = next(text, "\n")
    separator = separator_of(head, separators)
    return csv.reader(chain([head], text), delimiter=separator, strict=True)


def _count_csv(source: TableSource, *, separators: str = SEPARATORS) -> int:
    with decoding(f"{source.spec}: not a readable .csv file"):
        lines = filter(None, _lines_of_csv(source, separators))
        return sum(1 for _ in lines) - 1


def _rows(spec: str, names: Sequence[str], lines: Any) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield records with the lines in which they begin, because a cell may hold line breaks."""
    lines_read = lines.line_num
    for fields in lines:
        if fields and len(fields) != len(names):
            raise DataError(
                f"{spec}, line {lines.line_num}: has {len(fields)} fields, the first line "
                f"{len(names)}",
                hint=FIELDS,
            )
        if fields:
            yield lines_read + 1, dict(zip(names, fields, strict=True))
        lines_read = lines.line_num


def _once(spec: str, names: Sequence[str]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise DataError(f"{spec}: two columns have one name ({', '.join(names)[:200]})")
    return tuple(names)


def _parquet(source: TableSource) -> Iterator[Table]:
    from pyarrow import Table as Arrow
    from pyarrow import parquet

    spec = source.spec
    with decoding(f"{spec}: not a readable .parquet file"):
        file = parquet.ParquetFile(source.file)
        about, schema = file.metadata, file.schema_arrow
        source.is_enough(about.num_rows)
        source.check_unpacked(
            sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        )
        names = _once(spec, schema.names)
        column_names, at_once = source.selection.chosen(names), source.selection.at_once

        def batches() -> Iterator[Any]:
            read = 0
            for batch in file.iter_batches(at_once or PIECE, columns=column_names):
                # A value that is stored once may stand in millions of rows.
                read += batch.nbytes
                source.check_unpacked(read)
                yield batch

        if source.size <= SMALL:
            _check_texts(source, file.schema, column_names)
        if not about.num_rows:
            tables = iter([file.read(column_names)])
        elif at_once is None:
            tables = iter([Arrow.from_batches(batches())])
        else:
            tables = (Arrow.from_batches([batch]) for batch in batches())
        for table in tables:
            table.validate(full=True)  # that texts are UTF-8, among others
            columns = {name: _Column(table[name]) for name in table.column_names}
            yield Table(spec, names, columns, _described(spec, schema), source.root)


def _count_parquet(source: TableSource) -> int:
    from pyarrow import parquet

    with decoding(f"{source.spec}: not a readable .parquet file"):
        return int(parquet.ParquetFile(source.file).metadata.num_rows)


def _check_texts(source: TableSource, columns: Any, column_names: Sequence[str]) -> None:
    """Refuse columns in which a text that is stored once occurs in too many rows."""
    from pyarrow import compute, parquet

    stored = [columns.column(i) for i in range(len(columns))]
    texts = [c.path for c in stored if c.physical_type == "BYTE_ARRAY" and c.path in column_names]
    file, size = parquet.ParquetFile(source.file, read_dictionary=texts), 0
    for batch in file.iter_batches(PIECE, columns=texts):
        for column in batch.columns:
            lengths = compute.binary_length(column.dictionary)
            size += compute.sum(lengths.take(column.indices)).as_py() or 0
        source.check_unpacked(size)


class _Column(Sequence[Any]):
    """Values of a column, converted to Python objects one by one."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: Any) -> Any:
        return self.values[i].as_py()


def _described(spec: str, schema: Any) -> dict[str, tuple[str, ...]]:
    """Return class names, if the datasets library wrote the file and its description has them."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    with decoding(f"{spec} (its description): cannot be read", "Upgrade the datasets library."):
        features = Features.from_arrow_schema(schema)
    return classes_of(spec, features)


def classes_of(spec: str, features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the class names that the datasets library has for each column of labels."""
    from datasets import ClassLabel

    label_features = {
        n: getattr(f, "feature", f) for n, f in features.items() if n in (*LABELS, *TAGS)
    }
    return {
        n: class_names(spec, f.names)
        for n, f in label_features.items()
        if isinstance(f, ClassLabel)
    }


READERS: dict[str, Callable[..., Iterator[Table]]] = {
    ".jsonl": lambda source: source.tables(_records(source)),
    ".json": _json,
    ".conll": _conll,
    ".csv": _csv,
    ".tsv": partial(_csv, separators="\t"),
    ".parquet": _parquet,
}
"""Readers of tables, by the ending of the file."""
COUNTED: dict[str, Callable[..., int]] = {
    ".jsonl": lambda source: sum(not line.isspace() for line in source.file),
    ".csv": _count_csv,
    ".tsv": partial(_count_csv, separators="\t"),
    ".parquet": _count_parquet,
}
"""Functions that count rows without keeping them, by the ending of the file."""
