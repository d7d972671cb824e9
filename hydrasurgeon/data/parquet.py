"""A parquet file, a few rows at a time: some bytes of it can stand for any number of equal values."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from hydrasurgeon.data.bounds import FREE, expands
from hydrasurgeon.data.columns import COLUMNS, LABELS, Read
from hydrasurgeon.data.failures import reason
from hydrasurgeon.data.labels import class_names
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import parse_json

# Rows that any file may have; beyond that, one for each of its bytes.
FREE_ROWS = 1_000_000
# Rows that are read at once, where no single value can be large.
MOST_AT_ONCE = 1024
# Where the datasets library describes a file's columns.
HF_KEY = b"huggingface"
# Bytes of that.
MAX_DESCRIPTION = 16 << 20
BOMB = "The file is damaged or was made to fill the memory: do not use it."
"""What to do about a file that expands beyond measure."""


def read_parquet(spec: str, file: IO[bytes]) -> Read:
    from pyarrow import parquet

    stored = file.seek(0, io.SEEK_END)
    try:
        source = parquet.ParquetFile(file)
        schema = source.schema_arrow
        wanted = [field.name for field in schema if field.name in COLUMNS]
        if len(set(wanted)) != len(wanted):
            raise DataError(f"{spec}: two columns are called {max(wanted, key=wanted.count)}")
        if source.metadata.num_rows > max(FREE_ROWS, stored):
            raise DataError(f"{spec}: has {source.metadata.num_rows:,} rows in {stored:,} bytes", hint=BOMB)
        for name in wanted:
            _check_type(f"{spec}: column {name}", schema.field(name).type)
        columns = _values(spec, source, wanted, stored)
        metadata = schema.metadata or {}
    except DataError:
        raise
    except Exception as error:  # arrow raises whatever damaged bytes lead it to
        raise DataError(f"{spec}: not a readable .parquet file ({reason(error)})") from error
    return columns, _classes(spec, metadata.get(HF_KEY), wanted), tuple(schema.names)


def _check_type(where: str, kind: Any) -> None:
    """Numbers, texts and bytes, or a record of bytes and path; nothing whose parts could overlap."""
    from pyarrow import types

    plain = (
        types.is_null,
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
    )
    parts = [field.type for field in kind] if types.is_struct(kind) else [kind]
    for part in parts:
        value = part.value_type if types.is_dictionary(part) else part
        if not any(is_kind(value) for is_kind in plain):
            raise DataError(f"{where}: holds {str(kind)[:80]}, not images, texts or labels")


def _values(spec: str, source: Any, wanted: Sequence[str], stored: int) -> dict[str, list[Any]]:
    """The columns' values, as long as they do not grow beyond reason."""
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    total = 0
    for batch in source.iter_batches(_at_once(source.metadata), columns=wanted) if wanted else ():
        batch.validate(full=True)  # that texts are UTF-8, among others
        for name in wanted:
            for scalar in batch.column(name):
                value = scalar.as_py()
                total += _size(value)
                if expands(total, stored):
                    raise DataError(f"{spec}: unpacks to more than {total:,} bytes", hint=BOMB)
                columns[name].append(value)
    return columns


def _at_once(metadata: Any) -> int:
    """How many rows fit into memory even if each holds the largest value there can be: all of a group's bytes.

    Not of a column's: pyarrow ends the process where the statistics of one are damaged.
    """
    sizes = (metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return min(MOST_AT_ONCE, max(1, FREE // max(1, max(sizes, default=1))))


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size(part) for part in value.values())
    return len(value) if isinstance(value, str | bytes) else 8


class _Feature(BaseModel):
    names: list[str] | None = None


class _Info(BaseModel):
    features: dict[str, object] = {}


class _Described(BaseModel):
    """What the datasets library writes into a parquet file of its own."""

    info: _Info = _Info()


def _classes(spec: str, text: bytes | None, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The names of the classes, where the file says which."""
    if text is None:
        return {}
    where = f"{spec} (its description)"
    described = parse_json(text, where, most=MAX_DESCRIPTION, error=DataError)
    try:
        features = _Described.model_validate(described).info.features
        named = {
            name: _Feature.model_validate(features[name]).names
            for name in columns
            if name in LABELS and name in features
        }
    except ValidationError as error:
        raise DataError(f"{where}: {error.errors()[0]['msg']}") from error
    return {name: class_names(spec, names) for name, names in named.items() if names is not None}
