"""Tables in files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_lines(path: str | Path, rows: Iterable[Any]) -> str:
    """Write a line of JSON for each row; return the path as data spec."""
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def read_lines(path: str | Path) -> list[Any]:
    """Return the value of each line."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write a table in the format that the name ends in; return the path as data spec."""
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, [*rows[0]], delimiter=",\t"[path.suffix == ".tsv"])
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_lines(path, rows)
    return str(path)
