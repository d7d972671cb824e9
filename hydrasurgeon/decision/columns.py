"""What a row of answers holds, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

KINDS = {
    **dict.fromkeys(("id", "label"), "text"),
    **dict.fromkeys(("probability", "logit"), "number"),
    "rank": "whole",
    **dict.fromkeys(("labels", "top", "set"), "json"),
    **dict.fromkeys(("total", "aleatoric", "epistemic", "ood_score"), "number"),
    "unfamiliar": "flag",
    "members_run": "whole",
    **dict.fromkeys(("answer", "error"), "text"),
}
"""All that an answer may hold, and what kind of value it is."""
OTHERS = {
    "single_label": ("logit", "labels", "rank"),
    "one_logit": ("label", "labels", "top", "set"),
    "multi_label": ("label", "probability", "logit", "rank"),
}
"""Kind of problem → what its answers do not hold."""


def kinds_of(problem: str) -> dict[str, str]:
    """What an answer to such a problem may hold, and what kind of value it is."""
    return {name: kind for name, kind in KINDS.items() if name not in OTHERS[problem]}


def columns_of(
    problem: str, *, kept: Iterable[str] = (), top: int | None = None, errors: bool = False
) -> dict[str, str]:
    """The columns of a table; with `top` there are two for each of so many labels."""
    columns: dict[str, str] = {"id": "text", **dict.fromkeys(kept, "text")}
    for name, kind in kinds_of(problem).items():
        if name == "error" and not errors:
            continue
        if name == "top" and top is not None:
            for number in range(1, top + 1):
                columns |= {f"top{number}": "text", f"p{number}": "number"}
        else:
            columns[name] = kind
    return columns


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as a spreadsheet reads it: no lists, and numbers with six digits."""
    cells = {
        key: f"{row[key]:.6g}" if KINDS.get(key) == "number" and row[key] is not None else row[key]
        for key in row
    }
    for number, (label, p) in enumerate(cells.pop("top", ()), 1):
        cells |= {f"top{number}": label, f"p{number}": f"{p:.6g}"}
    if cells.get("labels") is not None:
        cells["labels"] = "|".join(f"{pair[0]}:{pair[1]:.6g}" for pair in cells["labels"])
    for name in ("set", "answer"):
        if isinstance(cells.get(name), list):
            cells[name] = "|".join(map(str, cells[name]))
    return cells


def without_state(name: str) -> str:
    """A note on a checkpoint that was not calibrated."""
    return (
        f"{name} has no decision state: probabilities are not calibrated, and nothing is set "
        "aside; run calibrate"
    )
