"""What every price is worth without training: the passage of docs/reference/methods.md, from
benchmarks/results/front.json."""

from __future__ import annotations

import statistics
from typing import Any

FRONT = ("<!-- front: written by tools/render_docs.py from benchmarks/results/front.json -->", "<!-- end of front -->")
"""Marks around the passage."""
COLUMNS = {
    "price": "multiply-adds",
    "accuracy": "accuracy ↑",
    "nll": "NLL ↓",
    "ece": "ECE ↓",
    "near": "AUROC near ↑",
    "far": "far ↑",
    "disagreement": "pairs that disagree",
}
"""Field of a row → what the table calls it."""


def front(results: dict[str, Any]) -> str:
    """A table for each task."""
    tables = []
    for name, task in results.items():
        seeds = task["seeds"]
        count = f"{len(seeds)} seeds, ± standard error" if len(seeds) > 1 else "one seed"
        lines = [
            f"{name} ({count}; torch {task['torch']}, {task['cpu']}):",
            "",
            f"| | {' | '.join(COLUMNS.values())} |",
            f"|---|{'---:|' * len(COLUMNS)}",
        ]
        lines += [f"| {row} | {' | '.join(_cell(seeds, row, key) for key in COLUMNS)} |" for row in seeds[0]]
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def _cell(seeds: list[dict[str, dict[str, float]]], row: str, key: str) -> str:
    values = [seed[row][key] for seed in seeds if key in seed[row]]
    if not values:
        return "–"
    mean, digits = statistics.fmean(values), 2 if key == "price" else 3
    if len(values) == 1 or key == "price":
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {statistics.stdev(values) / len(values) ** 0.5:.{digits}f}"
