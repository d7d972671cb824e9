"""Tables of samples, .parquet, .jsonl and .csv: only the columns that samples are made of are held."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from hydrasurgeon.data.columns import COLUMNS, IMAGES, LABELS, PAIRS, TEXTS, Read
from hydrasurgeon.data.labels import labels_of
from hydrasurgeon.data.parquet import read_parquet
from hydrasurgeon.data.samples import Rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import open_regular, parse_json

# Bytes of one line of .jsonl or .csv.
MAX_LINE = 16 << 20


@dataclass(frozen=True)
class Table:
    """Columns by name, their values as the file holds them: whoever makes samples of them says what they must be."""

    spec: str
    names: tuple[str, ...]
    """Of all columns there are."""
    columns: Mapping[str, Sequence[Any]]
    classes: Mapping[str, tuple[str, ...]]
    """The names of the classes, for columns of class numbers that have them."""
    root: Path | None = None
    """Where paths in it start."""

    def find(self, names: Sequence[str]) -> str | None:
        return next((name for name in names if name in self.columns), None)

    def listed(self) -> str:
        """The columns, for a message."""
        shown = ", ".join(name[:40] for name in self.names[:20])
        return f"{shown}, …" if len(self.names) > 20 else shown or "none"


def read_table(spec: str, path: Path) -> Table:
    with open_regular(path, error=DataError) as raw, io.BufferedReader(raw) as file:
        columns, classes, names = READERS[path.suffix](spec, file)
    return Table(spec, names, columns, classes, path.parent)


def rows(table: Table) -> Rows:
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
        raise DataError(f"{table.spec}: needs a column image or text (found: {table.listed()})")
    labels = table.find(LABELS)
    numbers, names = (None, None) if labels is None else labels_of(table.spec, table.columns[labels])
    if numbers is not None and names is None and labels is not None:
        names = table.classes.get(labels)
    return Rows(table.spec, table.columns[column], kind, numbers, names, table.root)


def _jsonl(spec: str, file: IO[bytes]) -> Read:
    records = []
    names: dict[str, None] = {}
    for number, line in enumerate(_lines(spec, file), 1):
        if not line.strip():
            continue
        where = f"{spec}, line {number}"
        record = parse_json(line, where, most=MAX_LINE, error=DataError)
        if not isinstance(record, dict):
            raise DataError(f"{where}: is no record", hint='Each line is one, {"text": …, "label": …}.')
        names |= dict.fromkeys(record)
        records.append({name: value for name, value in record.items() if name in COLUMNS})
    columns = {n: [record.get(n) for record in records] for n in names if n in COLUMNS}
    return columns, {}, tuple(names)


def _csv(spec: str, file: IO[bytes]) -> Read:
    # The module's own bound is 131,072 characters, and one for all who use it.
    usual = csv.field_size_limit(MAX_LINE)
    try:
        table = csv.reader(_texts(spec, file), strict=True)
        names = tuple(next(table, ()))
        if len(set(names)) != len(names):
            raise DataError(f"{spec}: two columns have one name ({', '.join(names)[:200]})")
        columns: dict[str, list[Any]] = {name: [] for name in names if name in COLUMNS}
        where = [names.index(name) for name in columns]
        for values in table:
            if len(values) != len(names) and values:
                raise DataError(f"{spec}, line {table.line_num}: has {len(values)} fields, the first line {len(names)}")
            for column, i in zip(columns.values(), where, strict=True) if values else ():
                column.append(values[i])
    except csv.Error as error:
        raise DataError(f"{spec}: not a readable .csv file ({error})") from error
    finally:
        csv.field_size_limit(usual)
    return columns, {}, names


def _lines(spec: str, file: IO[bytes]) -> Iterator[bytes]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataError(f"{spec}, line {number}: is longer than {MAX_LINE:,} bytes")
        yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _texts(spec: str, file: IO[bytes]) -> Iterator[str]:
    for number, line in enumerate(_lines(spec, file), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{spec}, line {number}: is not UTF-8 text") from error


READERS = {".jsonl": _jsonl, ".csv": _csv, ".parquet": read_parquet}
"""Suffix of a file → its reader."""
