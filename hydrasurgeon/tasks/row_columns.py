"""Columns of a row of answers, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hydrasurgeon.lookup import format_number
from hydrasurgeon.tasks import TASKS
from hydrasurgeon.tasks.base import Task

NUMBERS = {
    name for task in TASKS.values() for name in task.columns if task.columns[name] == "number"
}
"""Columns of numbers."""


CUT = "cut"
"""Column that is True if a text was longer than the model's input; rows of JSON have it only
then.
"""


def columns_of(
    task: Task,
    *,
    kept: Iterable[str] = (),
    top: int | None = None,
    errors: bool = False,
    cut: bool = False,
) -> dict[str, str]:
    """Return the columns of a table with the kinds of their values.

    With `top` there are two columns for each of so many labels. `cut` adds the column for models
    that read the beginning of long texts.
    """
    columns: dict[str, str] = {"id": "text", **dict.fromkeys(kept, "text")}
    for name, kind in task.columns.items():
        if name == "error" and not errors:
            continue
        if name == "top" and top is not None:
            for number in range(1, top + 1):
                columns |= {f"top{number}": "text", f"p{number}": "number"}
        else:
            columns[name] = kind
    return {**columns, CUT: "flag"} if cut else columns


def with_cut(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a table, with a `cut` cell for every text that was read."""
    return {**row, CUT: None if "error" in row else row.get(CUT, False)}


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for a spreadsheet: no lists, and numbers with six digits."""
    cells = {
        key: format_number(value, 6) if key in NUMBERS and value is not None else value
        for key, value in row.items()
    }
    for number, (label, p) in enumerate(cells.pop("top", ()), 1):
        cells |= {f"top{number}": label, f"p{number}": format_number(p, 6)}
    if cells.get("labels") is not None:
        cells["labels"] = "|".join(f"{pair[0]}:{pair[1]:.6g}" for pair in cells["labels"])
    for name in ("set", "answer"):
        if isinstance(cells.get(name), list):
            cells[name] = "|".join(map(str, cells[name]))
    return cells


def without_state(name: str) -> str:
    """Return a note on a checkpoint that was not calibrated."""
    return (
        f"{name} has no decision state: probabilities are not calibrated, and nothing is set "
        "aside; run calibrate"
    )
