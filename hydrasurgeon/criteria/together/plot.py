"""Quality against cost: what is best within each budget, and what could be had otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydrasurgeon.criteria.together.row import Row
from hydrasurgeon.files.plots import figure, save_figure

NAMES = {
    "macs": "multiply-adds, times the backbone's",
    "params": "parameters, times the backbone's",
    "ms": "milliseconds",
}
"""What stands at the axis of each cost."""


def draw_front(rows: Sequence[Row], front: Sequence[Row], unit: str, path: Path) -> None:
    """Accuracy and, with foreign data, AUROC; byte-identical for the same rows and the same matplotlib."""
    import matplotlib

    measures = [name for name in ("accuracy", "auroc") if name in rows[0].worth]
    with matplotlib.rc_context({"font.size": 9}):
        drawn = figure(5.5 * len(measures))
        axes = drawn.subplots(1, len(measures), squeeze=False)[0]
        for place, measure in zip(axes, measures, strict=True):
            place.plot(
                [row.cost[unit] for row in front],
                [100 * row.worth[measure] for row in front],
                marker="o",
                color="C0",
                label="best within the budget",
            )
            for at, row in enumerate(row for row in rows if unit in row.cost):
                place.scatter(
                    row.cost[unit],
                    100 * row.worth[measure],
                    marker="s^Dv<>P"[at % 7],
                    color=f"C{at + 1}",
                    label=row.name,
                    zorder=3,
                )
            place.set(xlabel=NAMES[unit], ylabel=f"{measure} (%)")
            place.grid(alpha=0.3)
        axes[0].legend(frameon=False)
        save_figure(drawn, path)
