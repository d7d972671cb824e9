"""Tables of samples, .parquet, .jsonl and .csv: only the columns that samples are made of are held."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from hydrasurgeon.data.arrays import check_unpacked
from hydrasurgeon.data.labels import class_names, labels_of
from hydrasurgeon.data.samples import Rows
from hydrasurgeon.errors import DataError, reason
from hydrasurgeon.files.foreign import open_regular, parse_json

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
FIRST_TEXTS = ("sentence1", "premise", "query", "question", "question1")
"""Columns that hold the first of two texts, which models read together."""
SECOND_TEXTS = ("text_pair", "text_b", "text2", "sentence2", "sentence_b", "hypothesis", "passage", "question2")
"""Columns that hold the second."""
# Bytes of one line of .jsonl, and characters of one field of .csv.
MAX_LINE = 16 << 20
# Rows of a .parquet file that are read at once.
AT_ONCE = 1024


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

    def listed(self) -> str:
        """The columns, for a message."""
        shown = ", ".join(name[:40] for name in self.names[:20])
        return f"{shown}, …" if len(self.names) > 20 else shown or "none"


def read_table(spec: str, path: Path, carried: Collection[str] = ()) -> Table:
    """The columns that samples are made of, and those that are `carried` along where they are there."""
    with open_regular(path, error=DataError) as raw, io.BufferedReader(raw) as file:
        return READERS[path.suffix](spec, file, path.parent, COLUMNS | {*carried})


def rows(table: Table, carried: Collection[str] = ()) -> Rows:
    """Images or texts, with labels where there is a column of them."""
    if not table.names:
        raise DataError(f"{table.spec}: holds no samples")
    kind: Literal["image", "text"] = "image" if table.find(IMAGES) else "text"
    column = table.find(IMAGES if kind == "image" else TEXTS)
    texts = [name for name in table.names if name in (*FIRST_TEXTS, *SECOND_TEXTS, "context", "document", column)]
    if kind == "text" and len(texts) > 1:
        raise DataError(
            f"{table.spec}: columns {', '.join(texts)} hold more than one text for each row; pairs are not read",
            hint="Join them into one column text, or remove what the model does not read.",
        )
    if column is None:
        raise DataError(f"{table.spec}: needs a column image or text (found: {table.listed()})")
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
    usual = csv.field_size_limit(MAX_LINE)  # one for all who use the module
    try:
        lines = csv.reader(_text(spec, file), strict=True)
        names = _once(spec, next(lines, ()))
        kept = [i for i, name in enumerate(names) if name in wanted]
        values = []
        for line in lines:
            if len(line) not in (0, len(names)):
                raise DataError(f"{spec}, line {lines.line_num}: has {len(line)} fields, the first line {len(names)}")
            if line:
                values.append([line[i] for i in kept])
    except csv.Error as error:
        raise DataError(f"{spec}: not a readable .csv file ({error})") from error
    finally:
        csv.field_size_limit(usual)
    return Table(spec, names, {names[i]: [row[at] for row in values] for at, i in enumerate(kept)}, root=root)


def _text(spec: str, file: IO[bytes]) -> Iterator[str]:
    """The lines of a UTF-8 file, without a byte order mark."""
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{spec}, line {number}: is not UTF-8 text") from error


def _once(spec: str, names: Iterable[str]) -> tuple[str, ...]:
    names = tuple(names)
    if len(set(names)) != len(names):
        raise DataError(f"{spec}: two columns have one name ({', '.join(names)[:200]})")
    return names


def _parquet(spec: str, file: IO[bytes], root: Path, wanted: Collection[str]) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    stored = file.seek(0, io.SEEK_END)
    try:
        source = parquet.ParquetFile(file)
        schema = source.schema_arrow
        read = [name for name in _once(spec, schema.names) if name in wanted]
        check_unpacked(spec, source.metadata.num_rows, stored)
        batches, unpacked = [], 0
        for batch in source.iter_batches(AT_ONCE, columns=read) if read else ():
            batch.validate(full=True)  # that texts are UTF-8, among others
            unpacked += batch.nbytes
            check_unpacked(spec, unpacked, stored)
            batches.append(batch)
        table = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in read]))
        columns = {name: _Column(spec, table[name], sampled=name in COLUMNS - {*LABELS}) for name in read}
    except DataError:
        raise
    except Exception as error:  # arrow raises whatever damaged bytes lead it to
        raise DataError(f"{spec}: not a readable .parquet file ({reason(error)})") from error
    return Table(spec, tuple(schema.names), columns, _described(spec, schema), root)


class _Column(Sequence[Any]):
    """The values of a column, made Python's own one by one."""

    def __init__(self, spec: str, values: Any, *, sampled: bool) -> None:
        from pyarrow import types

        self.values = values
        kind = values.type.value_type if types.is_dictionary(values.type) else values.type
        plain = (types.is_null, types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        if sampled and not any(is_kind(kind) for is_kind in (*plain, types.is_struct)):
            raise DataError(f"{spec}: holds {str(kind)[:80]}, not images or texts")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: Any) -> Any:
        return self.values[i].as_py()


def _described(spec: str, schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of the classes, where the datasets library wrote the file and says which."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import ClassLabel, Features

    try:
        features = Features.from_arrow_schema(schema)
        return {n: class_names(spec, f.names) for n, f in features.items() if n in LABELS and isinstance(f, ClassLabel)}
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{spec} (its description): cannot be read ({reason(error)})", hint="Upgrade the datasets library."
        ) from error


READERS = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
"""Suffix of a file → its reader."""
