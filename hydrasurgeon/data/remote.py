"""Tables behind a URL: s3://, gs://, hf://, memory:// and whatever else fsspec opens.

They are read as local ones are, but for pictures that they name by path: their author would choose
which of the reader's files are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from hydrasurgeon.data.places import TABLES, ending
from hydrasurgeon.data.tables import Columns, Table, tables_in
from hydrasurgeon.errors import DataError, MissingDependency
from hydrasurgeon.files.foreign import decoding

HINT = "What is read from elsewhere is tables (.parquet, .jsonl, .csv, …) and folders of .parquet."
"""What next, where nothing can be read."""
MAGIC = {*"*?["}
"""What is in a name that stands for several."""
AT_HEAD = 64
"""Rows in which a column of pictures shows what it holds."""


def read_remote(spec: str, url: str, columns: Columns) -> Iterator[Table]:
    """Remote tables, one file behind another."""
    system, names = _found(spec, url)
    for name in names:
        yield from _tables(spec, system, name, columns)


def _found(spec: str, url: str) -> tuple[Any, list[str]]:
    """A file system, and the tables that a URL leads to there."""
    import fsspec

    with decoding(f"{spec}: cannot be reached", hint="Are address, name and rights right?"):
        try:
            system, name = fsspec.core.url_to_fs(url)
        except ImportError as error:  # `Install s3fs to access S3`
            package = str(error).partition("nstall ")[2].split()[:1] or ["what it names"]
            what = f"{url.partition('://')[0]}:// needs {package[0]}, which is not installed"
            raise MissingDependency(what, hint=f"Run `pip install {package[0]}`.") from error
        if MAGIC & {*name}:
            names = sorted(system.glob(name))
        elif system.isdir(name):
            names = [each for each in sorted(system.find(name)) if each.endswith(".parquet")]
        else:
            names = [name] * system.exists(name)
    if not names:
        raise DataError(f"{spec}: no such data", hint=HINT)
    return system, names


def _tables(spec: str, system: Any, name: str, columns: Columns) -> Iterator[Table]:
    kind = ending(PurePosixPath(name))
    if kind not in TABLES:
        raise DataError(f"{spec}: {PurePosixPath(name).name} is no table", hint=HINT)
    with decoding(f"{spec}: cannot be read"), system.open(name, "rb") as file:
        for table in tables_in(spec, kind, file, system.size(name), columns):
            image = table.find(columns.images)
            if image is not None and any(map(_is_path, _head(table.columns[image]))):
                hint = "Let the table hold the pictures' bytes, or bring it here."
                raise DataError(f"{spec}: its column {image} holds paths", hint=hint)
            yield table


def _head(values: Sequence[Any]) -> list[Any]:
    return [values[i] for i in range(min(len(values), AT_HEAD))]


def _is_path(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("bytes") is None and value.get("path") is not None
    return isinstance(value, str)
