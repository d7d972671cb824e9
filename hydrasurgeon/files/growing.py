"""A file of lines that grows while a command works, and that a repeated command goes on with after a kill.

Lines lie in `NAME.partial`, below one that says what they belong to; the finished file takes its place whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.atomic import not_written, replacing

# Rows of a parquet file's group: what is in memory at once.
GROUP = 10_000


class Growing:
    """Lines that are kept as they come; `done` says how many were there already."""

    def __init__(self, place: Path, identity: Mapping[str, Any], *, step: int, force: bool) -> None:
        """`identity` must be the same for lines that are gone on with; they come in steps of so many."""
        self.place = place
        self.partial = place.with_name(f"{place.name}.partial")
        self._head = json.dumps(identity, sort_keys=True).encode() + b"\n"
        with self._writing():
            self.done = self._resumed(step, force)
            if not self.done:
                self.partial.write_bytes(self._head)
            self._file = self.partial.open("ab")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            left = f"Lines so far stay in {self.partial.name}: repeat the command."
            raise not_written(self.partial, error, left) from error

    def _resumed(self, step: int, force: bool) -> int:
        """Whole steps of lines that an interrupted command left."""
        if force or not self.partial.exists():
            return 0
        with self.partial.open("r+b") as file:
            head = file.readline()
            if head != self._head and self._head.startswith(head):
                return 0  # ended before it had begun
            if head != self._head:
                raise OutputError(
                    f"{self.partial}: was left by a run with other arguments, or on another checkpoint",
                    hint="Repeat that run, or delete the file, or give --force.",
                )
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
        with self._writing():
            self.partial.unlink()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of lines that could not be written, which was said
            self._file.close()


def write_lines(file: IO[bytes], lines: Iterator[str]) -> None:
    for line in lines:
        file.write(f"{line}\n".encode())


def write_csv(columns: Sequence[str]) -> Callable[[IO[bytes], Iterator[str]], None]:
    """JSON lines as CSV with a header; lists as JSON, what is not there as nothing."""

    def write(file: IO[bytes], lines: Iterator[str]) -> None:
        import csv
        import io

        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        table = csv.writer(text, lineterminator="\n")
        table.writerow(columns)
        for line in lines:
            row = json.loads(line)
            table.writerow([_cell(row.get(column)) for column in columns])
        text.flush()
        text.detach()

    return write


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def write_parquet(columns: Mapping[str, str]) -> Callable[[IO[bytes], Iterator[str]], None]:
    """JSON lines as parquet, group by group; `columns` → text, number, whole, flag or json (as text)."""

    def write(file: IO[bytes], lines: Iterator[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {
            "text": pa.string(),
            "json": pa.string(),
            "number": pa.float64(),
            "whole": pa.int64(),
            "flag": pa.bool_(),
        }
        schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
        with pq.ParquetWriter(file, schema) as table:
            group: list[dict[str, Any]] = []
            for line in lines:
                row = json.loads(line)
                group.append({name: _typed(row.get(name), kind) for name, kind in columns.items()})
                if len(group) == GROUP:
                    table.write_table(pa.Table.from_pylist(group, schema))
                    group = []
            if group:
                table.write_table(pa.Table.from_pylist(group, schema))

    return write


def _typed(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return str(value) if kind == "text" else value
