"""Rows of answers as a file: lines of JSON, CSV or parquet, written batch by batch and read back.

A file takes its place when its last row is written; what a killed command left goes with the next.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unicodedata import category

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.atomic import replacing, staged
from hydrasurgeon.files.untrusted import decoding, open_regular, parse_json, readable

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Write = Callable[[Sequence[Row]], None]
SEPARATORS = ",;\t"
"""Characters that may separate the fields of a table."""
GROUP = 10_000
"""Rows of a parquet file that are in memory at once."""
PART = 1 << 18
"""Rows of one of several parquet files, about."""
MAX_LINE = 4 << 20
"""Most bytes of a row that is read."""
STEP = 1 << 16
"""Bytes in which the end of a file's last whole line is looked for."""
ARROW = {"text": "string", "json": "string", "number": "float64", "whole": "int64", "flag": "bool"}
"""Type of a column → arrow's name for it."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""First characters that spreadsheets take for a formula's, some of them full-width."""
LAYOUT = "\n\t"
"""Control characters that a text may hold."""


@contextlib.contextmanager
def writing(
    place: Path, columns: Mapping[str, str], spread: Callable[[Row], Row]
) -> Iterator[Write]:
    """Yield a function that appends rows to a file, which takes its place after the block.

    `columns` are text, number, whole, flag or json; a CSV file has those of the rows as they are
    `spread`, in the order of `columns`.
    """
    with replacing(place) as (part,), part.open("xb") as file:
        if place.suffix == ".parquet":
            with _parquet(file, columns) as write:
                yield write
        elif place.suffix == ".csv":
            yield _csv(file, columns, spread)
        else:
            yield lambda rows: file.writelines(f"{line(row)}\n".encode() for row in rows)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def writing_parts(place: Path, columns: Mapping[str, str]) -> Iterator[Write]:
    """Yield such a function for a folder of parquet files, `part-00000.parquet` and so on."""
    with staged(place) as folder, contextlib.ExitStack() as stack:
        rows = number = 0
        part = stack.enter_context(contextlib.ExitStack())
        append: Write | None = None

        def write(more: Sequence[Row]) -> None:
            nonlocal rows, number, append
            if append is None or rows >= PART:
                part.close()
                path = folder / f"part-{number:05}.parquet"
                append = part.enter_context(writing(path, columns, dict))
                rows, number = 0, number + 1
            append(more)
            rows += len(more)

        yield write
        if append is None:  # columns without rows
            write([])


def line(row: Row) -> str:
    r"""Return a row as a line of JSON. Characters that are not printable are written as `\u009b`:
    the same text to a parser, and nothing that a terminal obeys.
    """
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    """Return a character as JSON escapes it, in one or two units of UTF-16."""
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(rf"\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class Appended:
    """A file of lines that rows are appended to while a server works, by one process at a time.

    A disk that fills up stops that alone; half a line is cut off, for the next would be glued to it.
    """

    def __init__(self, place: Path) -> None:
        self._file = place.open("ab+", buffering=0)
        self._failed = False
        self._lock("LOCK_EX")
        self._cut()
        self._lock("LOCK_UN")

    def close(self) -> None:
        self._file.close()

    def add(self, rows: Sequence[Row]) -> int:
        """Append rows, and return how many could not be written."""
        lines = "".join(f"{line(row)}\n" for row in rows).encode()
        written = 0
        self._lock("LOCK_EX")
        try:
            self._cut()  # another process may have been killed while it wrote
            while written < len(lines):  # a disk that is nearly full takes a part
                written += self._file.write(lines[written:])
        except OSError as error:
            if not self._failed:
                logger = logging.getLogger("uvicorn.error")
                logger.error("answers are not kept: %s", error.strerror)
            self._failed = True
            with contextlib.suppress(OSError):
                self._cut()
            return len(rows) - lines[:written].count(b"\n")
        finally:
            self._lock("LOCK_UN")
        self._failed = False
        return 0

    def _lock(self, operation: str) -> None:
        """Lock or unlock the file where the system can: not on Windows, and not on every disk."""
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(self._file, getattr(fcntl, operation))

    def _cut(self) -> None:
        """Let the file end with its last whole line."""
        size = end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - STEP)
            self._file.seek(start)
            complete = self._file.read(end - start).rfind(b"\n") + 1
            if complete:
                end = start + complete
                break
            end = start
        if end < size:
            self._file.truncate(end)


def _csv(file: IO[bytes], columns: Mapping[str, str], spread: Callable[[Row], Row]) -> Write:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(map(harmless, columns))

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            cells = spread(row)
            table.writerow([_cell(cells.get(name)) for name in columns])

    return write


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return harmless(json.dumps(value, ensure_ascii=False))
    return value


def harmless(text: str) -> str:
    """Return a text that neither a spreadsheet runs nor a terminal obeys; numbers stay as they are."""
    shown = text
    if not text.isprintable():
        shown = "".join(
            c.encode("unicode_escape").decode("ascii")
            if category(c) == "Cc" and c not in LAYOUT
            else c
            for c in text
        )
    if not shown.lstrip().startswith(FORMULA):
        return shown
    try:
        float(shown)
    except ValueError:
        return f"'{shown}"
    return shown


@contextlib.contextmanager
def _parquet(file: IO[bytes], columns: Mapping[str, str]) -> Iterator[Write]:
    import pyarrow.parquet as pq

    waiting: list[Row] = []
    with pq.ParquetWriter(file, schema_of(columns)) as table:

        def write(rows: Sequence[Row], *, least: int = GROUP) -> None:
            waiting.extend(rows)
            while len(waiting) >= least:
                table.write_batch(as_batch(waiting[:GROUP], columns))
                del waiting[:GROUP]

        yield write
        write([], least=1)


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the columns of a table as an arrow schema."""
    import pyarrow as pa

    return pa.schema([(name, ARROW[kind]) for name, kind in columns.items()])


def as_batch(rows: Sequence[Row], columns: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows as an arrow batch; lists and records become JSON."""
    import pyarrow as pa

    values = {name: [_typed(row.get(name), kind) for row in rows] for name, kind in columns.items()}
    return pa.RecordBatch.from_pydict(values, schema_of(columns))


def _typed(value: Any, kind: str) -> Any:
    if value is None or kind not in ("json", "text"):
        return value
    as_json = kind == "json" or isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False) if as_json else str(value)


def separator_of(head: str, separators: str = SEPARATORS) -> str:
    """Return the separator that splits the first line of a table into most fields."""
    return max(separators, key=lambda one: len(next(csv.reader([head], delimiter=one), ())))


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield every row with its place in the file; all values of a CSV file are texts."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        with open_regular(path, error=DataError) as file, decoding(f"{path}: is not parquet"):
            batches = pq.ParquetFile(file).iter_batches(GROUP)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield f"{path}, row {number}", row
        return
    with open_regular(path, error=DataError) as file, readable(path, DataError):
        if path.suffix == ".csv":
            with decoding(f"{path}: is not CSV in UTF-8"):
                content = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
                head = content.readline(MAX_LINE)
                table = csv.DictReader(chain([head], content), delimiter=separator_of(head))
                for row in table:
                    yield f"{path}, line {table.line_num}", row
            return
        number = 0
        while text := file.readline(MAX_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            yield where, parse_json(text, where, most=MAX_LINE, error=DataError)
