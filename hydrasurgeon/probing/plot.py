"""The heads that matter most and least, with ID and OOD samples in the plane (paper, Figure 4)."""

from __future__ import annotations

import math
from pathlib import Path

from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.heads import Head
from hydrasurgeon.probing.looking import Planes
from hydrasurgeon.probing.report import Pictured

ACROSS = 3
"""Heads in a row of each half."""
SQUARE = 1.7
"""Inches of one head's plane."""


def draw_probe(pictured: Pictured, planes: Planes, path: Path) -> None:
    """The most important heads to the left, the least to the right; the same bytes for the same numbers."""
    import matplotlib

    down = math.ceil(max(len(pictured.most), len(pictured.least), 1) / ACROSS)
    with matplotlib.rc_context({"font.size": 8}):
        drawn = figure(2 * ACROSS * SQUARE + 0.4, (down * SQUARE + 0.6) * len(planes))
        parts = drawn.subfigures(len(planes), 1, squeeze=False)[:, 0]
        for part, (name, points) in zip(parts, planes.items(), strict=True):
            halves = zip(part.subfigures(1, 2), ("most", "least"), (pictured.most, pictured.least), strict=True)
            for half, title, heads in halves:
                half.suptitle(f"{title} important heads by {pictured.method}; ID and {name}")
                grid = half.subplots(down, ACROSS, squeeze=False).ravel()
                for place in grid[len(heads) :]:
                    place.set_axis_off()
                for place, entry in zip(grid, heads, strict=False):
                    head = Head(*entry)
                    for rows, colour, marker, label in zip(points[head], ("C0", "C1"), "ox", ("ID", name), strict=True):
                        look = {"s": 5, "c": colour, "marker": marker, "alpha": 0.6, "linewidths": 0.7}
                        place.scatter(rows[:, 0], rows[:, 1], label=label, **look)
                    place.set(title=f"layer {head.layer}, head {head.number}", xticks=[], yticks=[])
                if heads:
                    grid[0].legend(fontsize=6, markerscale=2, framealpha=0.8)
        save_figure(drawn, path)
