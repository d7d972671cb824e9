"""The section of docs/reference/benchmarks.md on what `build` chooses."""

from __future__ import annotations

import statistics
from typing import Any

MEASURES = ("accuracy", "nll", "near", "far", "macs")
"""Columns of each task's table."""


def build(results: dict[str, Any]) -> list[str]:
    about = results["machine"]
    lines = [
        "## What `build` chooses",
        "",
        (
            "Members are chosen by `avg` on validation data and one OOD set (of the demo: textures); all figures"
            " are of test data and other OOD sets, by msp,"
        ),
        (
            "uncalibrated: mean ± sd of the seeds. `random` is the mean of 100 triples of the same candidates within"
            f" the same budget. torch {about['torch']}, {about['cpu']}."
        ),
    ]
    for name, task in results["tasks"].items():
        lines += ["", *_task(name, task)]
    timed = results.get("choosing")
    if timed is not None:
        lines += [
            "",
            (
                "Choosing 3 of 200 candidates by answers to 10,000 samples of 100 classes:"
                f" {timed['choose_seconds']:.1f} s, and {timed['estimate_seconds']:.1f} s for what such a choice is"
                f" worth elsewhere; {timed['peak_mb'] / 1000:.2f} GB."
            ),
        ]
    return lines


def _task(name: str, task: dict[str, Any]) -> list[str]:
    seeds = [seed["rows"] for seed in task["seeds"].values()]
    names = [row for row in seeds[0] if all(rows.get(row) for rows in seeds)]
    head = ["", "accuracy ↑", "NLL ↓", "AUROC near ↑", "AUROC far ↑", "multiply-adds"]
    lines = [f"**{name}**, {len(seeds)} seeds, {task['seeds']['1']['candidates']} candidates:", ""]
    lines += [f"| {' | '.join(head)} |", "|---|" + "---:|" * len(MEASURES)]
    for row in names:
        cells = [_spread([rows[row][measure] for rows in seeds], measure) for measure in MEASURES]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return [*lines, "", *_gains(task, seeds)]


def _spread(values: list[float], measure: str) -> str:
    digits = 2 if measure == "macs" else 3
    mean = statistics.mean(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{mean:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread else "")


def _gains(task: dict[str, Any], seeds: list[dict[str, Any]]) -> list[str]:
    """In points, against what the goals name."""
    lines = []
    for budget in task["budgets"].split(","):
        built = f"built, {budget}x"
        for other in (
            f"random, {budget}x",
            "Deep Ensemble of 3",
            "best single member",
            "single model",
        ):
            pairs = [(rows[built], rows[other]) for rows in seeds if rows.get(other)]
            if not pairs:
                continue
            gains = ", ".join(
                f"{label} {100 * statistics.mean(a[m] - b[m] for a, b in pairs):+.1f}"
                for label, m in (("near", "near"), ("far", "far"), ("accuracy", "accuracy"))
            )
            lines.append(f"- built within {budget}x less {other}, in points: {gains}")
    return lines
