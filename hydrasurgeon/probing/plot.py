"""The heads that matter most and least, with ID and OOD samples in the plane (paper, Figure 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.heads import Head
from hydrasurgeon.probing.looking import Points, Probed

ACROSS = 3
"""Heads in a row of each half."""
SQUARE = 1.7
"""Inches of one head's plane."""


def draw_probe(probed: Probed, path: Path) -> None:
    """Byte-identical for the same numbers and the same matplotlib."""
    import matplotlib

    tall = _rows(probed) * SQUARE + 0.6
    with matplotlib.rc_context({"font.size": 8}):
        drawn = figure(2 * ACROSS * SQUARE + 0.4, tall * len(probed.points))
        parts = drawn.subfigures(len(probed.points), 1, squeeze=False)[:, 0]
        for part, (name, points) in zip(parts, probed.points.items(), strict=True):
            _planes(part, name, probed, points)
        save_figure(drawn, path)


def _rows(probed: Probed) -> int:
    """Rows of heads in each half."""
    pictured = probed.report.pictured
    return 1 if pictured is None else math.ceil(max(len(pictured.most), len(pictured.least), 1) / ACROSS)


def _planes(part: Any, name: str, probed: Probed, points: Mapping[Head, Points]) -> None:
    """The most important heads to the left, the least to the right."""
    pictured = probed.report.pictured
    assert pictured is not None, "there are points"
    halves = part.subfigures(1, 2)
    for half, title, heads in zip(halves, ("most", "least"), (pictured.most, pictured.least), strict=True):
        half.suptitle(f"{title} important heads by {pictured.method}; ID and {name}")
        grid = half.subplots(_rows(probed), ACROSS, squeeze=False).ravel()
        for place in grid[len(heads) :]:
            place.set_axis_off()
        for place, entry in zip(grid, heads, strict=False):
            head = Head(*entry)
            for rows, colour, marker, label in zip(points[head], ("C0", "C1"), "ox", ("ID", name), strict=True):
                place.scatter(
                    rows[:, 0], rows[:, 1], s=5, c=colour, marker=marker, alpha=0.6, linewidths=0.7, label=label
                )
            place.set(title=f"layer {head.layer}, head {head.number}", xticks=[], yticks=[])
        if heads:
            grid[0].legend(fontsize=6, markerscale=2, framealpha=0.8)
