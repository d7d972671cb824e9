"""Tables of samples: only the columns that samples are made of, or carry along, are held."""

from __future__ import annotations

import csv
import gzip
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, cast

from hydrasurgeon.data.labels import class_names, labels_of
from hydrasurgeon.data.places import ending
from hydrasurgeon.data.samples import Rows, Samples, TextPairs
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, open_regular, parse_json, utf8
from hydrasurgeon.lookup import did_you_mean

TAB = "\t"
"""What stands between the fields of a .tsv file."""
IMAGES = ("image", "img")
"""Columns that may hold images, the first that is there."""
TEXTS = ("text", "sentence")
"""Columns that may hold texts."""
CAPTIONS = ("caption", "text")
"""Columns that may hold the captions of images."""
LABELS = ("label", "labels", "fine_label")
"""Columns that may hold labels."""
GROUPS = ("group",)
"""Columns that may say which query a row belongs to."""
SECOND = "text_pair"
"""The column that holds the second text of each pair; the first is one of TEXTS."""
COLUMNS = frozenset((*IMAGES, *TEXTS, *CAPTIONS, *LABELS, *GROUPS, SECOND))
"""The columns that samples are made of."""
PAIRS = {
    *(
        "sentence1",
        "sentence2",
        "sentence_b",
        "question",
        "question1",
        "question2",
        "text_b",
        "text2",
    ),
    *("premise", "hypothesis", "query", "passage", "context", "document"),
}
"""Columns that hold one of two texts under names of their own."""
# Bytes of one line of .jsonl, and characters of one field of .csv.
MAX_LINE = 16 << 20
# Bytes of a whole .json, and of what a packed table unpacks to: a few of them can become a million
# times as many.
MAX_WHOLE = 4 << 30


@dataclass(frozen=True)
class Columns:
    """Which columns are wanted: those that were named, and those that go along where they are
    there.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    """Role → name."""
    carried: Collection[str] = ()

    @property
    def wanted(self) -> set[str]:
        """All that are read, where they are there."""
        return {*COLUMNS, *self.carried, *self.named.values()}

    @property
    def images(self) -> tuple[str, ...]:
        """Columns that may hold images, or paths of them."""
        return (self.named["image"],) if "image" in self.named else IMAGES


@dataclass(frozen=True)
class Table:
    """Columns by name, their values as the file holds them: whoever makes samples of them says what
    they must be.
    """

    spec: str
    names: tuple[str, ...]
    """All columns there are."""
    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the classes, for columns of class numbers that have them."""
    root: Path | None = None
    """Where paths in it start."""

    def find(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.columns), None)

    def needs(self, what: str) -> DataError:
        hint = (
            "Name the columns: --text-column NAME, --label-column NAME, or --columns ROLE=NAME,…."
        )
        return DataError(f"{self.spec}: needs {what} ({listed(self.names)})", hint=hint)

    def column(self, role: str, columns: Columns, usual: Sequence[str]) -> str | None:
        """The column that the user named for this role, else the first usual one that is there."""
        name = columns.named.get(role)
        if name is None:
            return self.find(usual)
        if name not in self.columns:
            option = (
                f"--{role}-column {name}"
                if role in ("text", "label")
                else f"--columns {role}={name}"
            )
            near = did_you_mean(name, self.names)
            raise DataError(
                f"{option}: {self.spec} has no such column{near} ({listed(self.names)})"
            )
        return name


def listed(names: Sequence[str]) -> str:
    """The columns that a table has."""
    shown = ", ".join(name[:40] for name in names[:20]) or "none"
    return f"found: {shown}{', …' if len(names) > 20 else ''}"


def read_table(spec: str, path: Path, columns: Columns) -> Table:
    """The wanted columns of one file."""
    kind = ending(path)
    with open_regular(path, error=DataError) as file:
        if not kind.endswith(".gz"):
            return READERS[kind](spec, file, path.parent, columns.wanted)
        with (
            decoding(f"{spec}: {path.name} is not a readable .gz file"),
            gzip.open(file) as unpacked,
        ):
            return READERS[kind.removesuffix(".gz")](
                spec, cast(IO[bytes], unpacked), path.parent, columns.wanted
            )


def joined(spec: str, tables: Sequence[Table], wanted: Columns) -> Table:
    """The rows of tables of the same columns, one file behind another."""
    first = tables[0]
    if len(tables) == 1:
        return first
    for other in tables[1:]:
        if {*other.names} != {*first.names} or other.classes != first.classes:
            raise DataError(
                f"{spec}: its files have other columns ({listed(first.names)}; "
                f"{listed(other.names)})"
            )
    columns = {
        name: [value for t in tables for value in _rooted(t, name, wanted)]
        for name in first.columns
    }
    return Table(spec, first.names, columns, first.classes)


def _rooted(table: Table, name: str, wanted: Columns) -> Sequence[Any]:
    """A column; paths in it as they are seen from here."""
    values = table.columns[name]
    if name not in wanted.images or table.root is None:
        return values
    return [
        str(table.root / value) if isinstance(value, str) and value else value for value in values
    ]


def rows(table: Table, columns: Columns) -> Samples:
    """Images, texts or pairs of texts, with labels and groups where there are columns of them."""
    if not table.names:
        raise DataError(f"{table.spec}: holds no samples")
    image = (
        None
        if {"text", "text_pair"} & columns.named.keys()
        else table.column("image", columns, IMAGES)
    )
    first, second = (image, None) if image is not None else _texts(table, columns)
    kind: Literal["image", "text"] = "text" if image is None else "image"
    made: Samples = Rows(table.spec, table.columns[first], kind, root=table.root)
    if second is not None:
        made = TextPairs(made, Rows(table.spec, table.columns[second], "text"), second)
    labels = table.column("label", columns, LABELS)
    group = table.column("group", columns, GROUPS)
    made.found = table.names
    made.used = tuple(name for name in (first, second, group) if name is not None)
    if labels is not None:
        column = labels_of(table.spec, table.columns[labels])
        if column is not None and labels in table.classes:
            column = column.named(table.classes[labels])
        made.labelled(column)
    made.grouping = None if group is None else table.columns[group]
    made.columns = {name: table.columns[name] for name in columns.carried if name in table.columns}
    return made


def _texts(table: Table, columns: Columns) -> tuple[str, str | None]:
    """The column of texts, and the one of second texts where they come in pairs."""
    first = table.column("text", columns, TEXTS)
    # A column of texts that was named stands alone, unless the other one was named too.
    second = table.column(SECOND, columns, () if "text" in columns.named else (SECOND,))
    several = [name for name in table.names if name in PAIRS or name == first]
    if second is None and "text" not in columns.named and len(several) > 1:
        raise DataError(
            f"{table.spec}: columns {', '.join(several)} hold more than one text for each row",
            hint=f"Name both, --columns text={several[0]},text_pair={several[1]}, or the one that "
            "is read, "
            "--text-column NAME.",
        )
    if first is None:
        raise table.needs(
            "a column image or text" if second is None else f"a column text beside {second}"
        )
    return first, second


def _jsonl(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    records, names = [], dict[str, None]()
    for number, line in enumerate(_text(spec, file), 1):
        if not line.strip():
            continue
        record = parse_json(line, f"{spec}, line {number}", most=MAX_LINE, error=DataError)
        if not isinstance(record, dict):
            raise DataError(
                f"{spec}, line {number}: is no record",
                hint='Each line is one, {"text": …, "label": …}.',
            )
        names |= dict.fromkeys(record)
        records.append({name: value for name, value in record.items() if name in wanted})
    return _of_records(spec, records, names, root, wanted)


def _json(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    """A list of records, or a record of columns."""
    content = parse_json(file.read(MAX_WHOLE + 1), spec, most=MAX_WHOLE, error=DataError)
    if (
        isinstance(content, dict)
        and content
        and all(isinstance(values, list) for values in content.values())
    ):
        if len({len(values) for values in content.values()}) > 1:
            raise DataError(f"{spec}: its columns are not equally long")
        columns = {name: values for name, values in content.items() if name in wanted}
        return Table(spec, tuple(content), columns, root=root)
    if not isinstance(content, list) or not all(isinstance(record, dict) for record in content):
        hint = 'Such as [{"text": …, "label": …}, …] or {"text": […], "label": […]}.'
        raise DataError(f"{spec}: is no list of records, and no record of columns", hint=hint)
    names = dict.fromkeys(name for record in content for name in record)
    return _of_records(spec, content, names, root, wanted)


def _of_records(
    spec: str,
    records: Sequence[dict[str, Any]],
    names: Iterable[str],
    root: Path,
    wanted: Collection[str],
) -> Table:
    columns = {name: [record.get(name) for record in records] for name in names if name in wanted}
    return Table(spec, tuple(names), columns, root=root)


def _csv(
    spec: str, file: IO[bytes], root: Path, wanted: Collection[str], *, between: str = ","
) -> Table:
    csv.field_size_limit(MAX_LINE)
    lines = csv.reader(_text(spec, file), delimiter=between, strict=True)
    with decoding(f"{spec}: not a readable .{'tsv' if between == TAB else 'csv'} file"):
        names = _once(spec, next(lines, []))
        columns: dict[str, list[str]] = {name: [] for name in names if name in wanted}
        for line in filter(None, lines):
            if len(line) != len(names):
                raise DataError(
                    f"{spec}, line {lines.line_num}: has {len(line)} fields, the first line "
                    f"{len(names)}"
                )
            for name, value in zip(names, line, strict=True):
                if name in columns:
                    columns[name].append(value)
    return Table(spec, names, columns, root=root)


def _text(spec: str, file: IO[bytes]) -> Iterator[str]:
    """The lines of a UTF-8 file, without a byte order mark; bounded, for a packed file says little
    of its size.
    """
    left = MAX_WHOLE if isinstance(file, gzip.GzipFile) else None
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
        left = None if left is None else left - len(line)
        if len(line) > MAX_LINE or (left is not None and left < 0):
            raise DataError(
                f"{spec}, line {number}: is too long, or unpacks to more than {MAX_WHOLE:,} bytes"
            )
        yield utf8(
            line.removeprefix(BOM_UTF8) if number == 1 else line,
            f"{spec}, line {number}",
            DataError,
        )


def _once(spec: str, names: Sequence[str]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise DataError(f"{spec}: two columns have one name ({', '.join(names)[:200]})")
    return tuple(names)


def _parquet(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    from pyarrow import parquet

    with decoding(f"{spec}: not a readable .parquet file"):
        source = parquet.ParquetFile(file)
        schema = source.schema_arrow
        table = source.read([name for name in _once(spec, schema.names) if name in wanted])
        table.validate(full=True)  # that texts are UTF-8, among others
    columns = {name: _Column(table[name]) for name in table.column_names}
    return Table(spec, tuple(schema.names), columns, _described(spec, schema), root)


class _Column(Sequence[Any]):
    """The values of a column, made Python's own one by one."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: Any) -> Any:
        return self.values[i].as_py()


def _described(spec: str, schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes, where the datasets library wrote the file and says which."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    with decoding(f"{spec} (its description): cannot be read", "Upgrade the datasets library."):
        features = Features.from_arrow_schema(schema)
    return classes_of(spec, features)


def classes_of(spec: str, features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The names of the classes that the datasets library knows, for each column of labels."""
    from datasets import ClassLabel

    return {
        n: class_names(spec, f.names)
        for n, f in features.items()
        if n in LABELS and isinstance(f, ClassLabel)
    }


READERS: dict[str, Callable[..., Table]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, between=TAB),
    ".parquet": _parquet,
}
"""Ending of a file, unpacked → its reader."""
