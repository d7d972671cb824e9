"""Tables of samples, .parquet, .jsonl and .csv: only the columns that samples are made of, or carry along, are held."""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from hydrasurgeon.data.labels import class_names, labels_of
from hydrasurgeon.data.samples import Rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, open_regular, parse_json, utf8

IMAGES = ("image", "img")
"""Columns that may hold images, the first that is there."""
TEXTS = ("text", "sentence")
"""Columns that may hold texts."""
CAPTIONS = ("caption", "text")
"""Columns that may hold the captions of images."""
LABELS = ("label", "labels", "fine_label")
"""Columns that may hold labels."""
COLUMNS = frozenset(IMAGES + TEXTS + CAPTIONS + LABELS)
"""The columns that samples are made of."""
PAIRS = {
    *("sentence1", "sentence2", "sentence_b", "question", "question1", "question2", "text_pair", "text_b", "text2"),
    *("premise", "hypothesis", "query", "passage", "context", "document"),
}
"""Columns that hold one of two texts, which models read together."""
# Bytes of one line of .jsonl, and characters of one field of .csv.
MAX_LINE = 16 << 20


@dataclass(frozen=True)
class Table:
    """Columns by name, their values as the file holds them: whoever makes samples of them says what they must be."""

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
        shown = ", ".join(name[:40] for name in self.names[:20]) or "none"
        return DataError(f"{self.spec}: needs {what} (found: {shown}{', …' if len(self.names) > 20 else ''})")


def read_table(spec: str, path: Path, carried: Collection[str] = ()) -> Table:
    """The columns that samples are made of, and those that are `carried` along where they are there."""
    with open_regular(path, error=DataError) as file:
        return READERS[path.suffix](spec, file, path.parent, COLUMNS | {*carried})


def rows(table: Table, carried: Collection[str] = ()) -> Rows:
    """Images or texts, with labels where there is a column of them."""
    if not table.names:
        raise DataError(f"{table.spec}: holds no samples")
    kind: Literal["image", "text"] = "image" if table.find(IMAGES) else "text"
    column = table.find(IMAGES if kind == "image" else TEXTS)
    texts = [name for name in table.names if name in PAIRS or name == column]
    if kind == "text" and len(texts) > 1:
        raise DataError(
            f"{table.spec}: columns {', '.join(texts)} hold more than one text for each row; pairs are not read",
            hint="Join them into one column text, or remove what the model does not read.",
        )
    if column is None:
        raise table.needs("a column image or text")
    labels = table.find(LABELS)
    numbers, classes = (None, None) if labels is None else labels_of(table.spec, table.columns[labels])
    if numbers is not None and classes is None and labels is not None:
        classes = table.classes.get(labels)
    made = Rows(table.spec, table.columns[column], kind, numbers, classes, table.root)
    made.columns = {name: table.columns[name] for name in carried if name in table.columns}
    return made


def _jsonl(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    records, names = [], dict[str, None]()
    for number, line in enumerate(_text(spec, file), 1):
        if not line.strip():
            continue
        record = parse_json(line, f"{spec}, line {number}", most=MAX_LINE, error=DataError)
        if not isinstance(record, dict):
            raise DataError(f"{spec}, line {number}: is no record", hint='Each line is one, {"text": …, "label": …}.')
        names |= dict.fromkeys(record)
        records.append({name: value for name, value in record.items() if name in wanted})
    columns = {name: [record.get(name) for record in records] for name in names if name in wanted}
    return Table(spec, tuple(names), columns, root=root)


def _csv(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    csv.field_size_limit(MAX_LINE)
    lines = csv.reader(_text(spec, file), strict=True)
    with decoding(f"{spec}: not a readable .csv file"):
        names = _once(spec, next(lines, []))
        columns: dict[str, list[str]] = {name: [] for name in names if name in wanted}
        for line in filter(None, lines):
            if len(line) != len(names):
                raise DataError(f"{spec}, line {lines.line_num}: has {len(line)} fields, the first line {len(names)}")
            for name, value in zip(names, line, strict=True):
                if name in columns:
                    columns[name].append(value)
    return Table(spec, names, columns, root=root)


def _text(spec: str, file: IO[bytes]) -> Iterator[str]:
    """The lines of a UTF-8 file, without a byte order mark."""
    for number, line in enumerate(file, 1):
        yield utf8(line.removeprefix(BOM_UTF8) if number == 1 else line, f"{spec}, line {number}", DataError)


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

    return {n: class_names(spec, f.names) for n, f in features.items() if n in LABELS and isinstance(f, ClassLabel)}


READERS = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
"""Suffix of a file → its reader."""
