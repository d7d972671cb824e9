"""A file of lines that grows while a command works, and that a repeated command goes on with after
a kill.

Lines lie in `NAME.partial`, below one that says what they belong to; the finished file takes its
place whole.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hydrasurgeon.files.atomic import not_written, replacing, write_text
from hydrasurgeon.files.foreign import parse_json
from hydrasurgeon.files.resumable import Resumable, there

# Rows of a parquet file's group: what is in memory at once.
GROUP = 10_000
# Bytes of what a file of lines says of itself.
MAX_HEAD = 64 << 20


class Growing:
    """Lines that are kept as they come; `done` says how many were there already."""

    def __init__(self, place: Path, identity: Mapping[str, Any], *, step: int, force: bool) -> None:
        """`identity` must be the same for lines that are gone on with; they come in steps of so
        many.
        """
        self.place = place
        self.partial = place.with_name(f"{place.name}.partial")
        self._state = Resumable(self.partial, identity, ("prediction", "hydrasurgeon.rows/1"))
        self.done = 0
        with self._writing():
            if there(self.partial) and not force:
                self.done = self._resumed(step)
            else:
                write_text(self.partial, json.dumps(self._state.texts({})) + "\n")
            self._file = self.partial.open("ab")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            left = f"Lines so far stay in {self.partial.name}: repeat the command."
            raise not_written(self.partial, error, left) from error

    def _resumed(self, step: int) -> int:
        """Whole steps of lines that an interrupted command left; what is behind them is cut off."""
        with self.partial.open("r+b") as file:
            with self._state.judged():
                head = parse_json(file.readline(MAX_HEAD), str(self.partial), most=MAX_HEAD)
                self._state.position(head, most=MAX_HEAD)
            count, whole = 0, file.tell()
            ends = whole
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                ends += len(line)
                if number % step == 0:
                    count, whole = number, ends
            file.truncate(whole)
        return count

    def add(self, lines: Sequence[str]) -> None:
        with self._writing():
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.flush()

    def lines(self) -> Iterator[str]:
        """All that were added, without the head."""
        self._file.flush()
        with self.partial.open(encoding="utf-8", newline="\n") as file:
            next(file)
            for line in file:
                yield line.rstrip("\n")

    def finish(self, write: Callable[[IO[bytes], Iterator[str]], None]) -> None:
        """The finished file in its place, and the partial one gone."""
        with replacing(self.place) as (part,), part.open("xb") as file:
            write(file, self.lines())
            file.flush()
            os.fsync(file.fileno())
        self.close()
        self._state.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of lines that could not be written, which was said
            self._file.close()


def write_lines(file: IO[bytes], lines: Iterator[str]) -> None:
    for line in lines:
        file.write(f"{line}\n".encode())


def write_csv(
    columns: Sequence[str], spread: Callable[[dict[str, Any]], dict[str, Any]]
) -> Callable[[IO[bytes], Iterator[str]], None]:
    """JSON lines as CSV with a header, each `spread` over the columns; what is not there as
    nothing.
    """

    def write(file: IO[bytes], lines: Iterator[str]) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        for line in lines:
            table.writerow({name: _cell(value) for name, value in spread(json.loads(line)).items()})
        text.flush()
        text.detach()

    return write


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


KINDS = {"text": "string", "json": "string", "number": "float64", "whole": "int64", "flag": "bool"}
"""What a column may hold → arrow's name for it."""


def write_parquet(columns: Mapping[str, str]) -> Callable[[IO[bytes], Iterator[str]], None]:
    """JSON lines as parquet, group by group; `columns` → text, number, whole, flag or json (as
    text).
    """

    def write(file: IO[bytes], lines: Iterator[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, KINDS[kind]) for name, kind in columns.items()])
        with pq.ParquetWriter(file, schema) as table:
            while rows := [json.loads(line) for line in islice(lines, GROUP)]:
                group = [
                    {name: _typed(row.get(name), kind) for name, kind in columns.items()}
                    for row in rows
                ]
                table.write_table(pa.Table.from_pylist(group, schema))

    return write


def _typed(value: Any, kind: str) -> Any:
    if value is None or kind not in ("json", "text"):
        return value
    as_json = kind == "json" or isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False) if as_json else str(value)
