"""Numbers of heads as heat maps by layer and head, towers side by side, kept heads marked (paper, Figure 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.files.plots import figure, save_figure
from hydrasurgeon.heads import Kept

CELL = 0.3
"""Inches of one head."""
AROUND = 1.1
"""Inches of what stands around a map: numbers, names, its scale."""
MOST_INCHES = 24.0
"""A picture of a hundred layers is drawn smaller."""
MOST_ABREAST = 18.0
"""Inches of maps that stand beside each other; what is wider goes below."""
SLIM = 30
"""How many times as high as it is wide the scale of a map may be: as high as maps are, mostly."""
LEGIBLE = 0.18
"""Inches: numbers of heads and layers are all written where cells are no smaller."""


@dataclass(frozen=True)
class HeadMap:
    """One number for each head, and which heads are marked."""

    title: str
    values: Mapping[str, Sequence[Sequence[float | None]]]
    """tower → [layer][head]; None: there is no such number."""
    kept: Kept | None = None
    """Marked by a dot; None: nothing is."""
    centred: bool = False
    """Whether zero is a colour of its own, between those of lower and higher numbers."""


def draw_head_maps(maps: Sequence[HeadMap], path: Path) -> None:
    """One row for each map; byte-identical for the same maps and the same matplotlib."""
    import matplotlib

    with matplotlib.rc_context({"font.size": 8}):
        drawn = figure(*map_inches(maps))
        put_head_maps(drawn, maps)
        save_figure(drawn, path)


def map_inches(maps: Sequence[HeadMap]) -> tuple[float, float]:
    """How wide and how high a picture of them is."""
    widths, heights = _inches(maps)
    return sum(widths), sum(heights)


def put_head_maps(drawn: Any, maps: Sequence[HeadMap]) -> None:
    """The same into a part of a larger figure."""
    towers = list(dict.fromkeys(tower for each in maps for tower in each.values))
    widths, heights = _inches(maps)
    grid = drawn.subplots(
        len(maps), len(towers), squeeze=False, gridspec_kw={"width_ratios": widths, "height_ratios": heights}
    )
    for row, each in zip(grid, maps, strict=True):
        scale, last, deepest = _scale(each), None, max(map(len, each.values.values()))
        for place, tower in zip(row, towers, strict=True):
            if tower not in each.values:
                place.set_axis_off()
                continue
            last = _one(place, each, tower, scale, deepest)
        if last is not None:
            # Towers share their scale: how far they lie apart is what the picture shows.
            drawn.colorbar(last, ax=list(row), fraction=0.04, pad=0.01, aspect=SLIM)


def in_rows(maps: Sequence[HeadMap]) -> list[list[HeadMap]]:
    """Maps of different towers, as many beside each other as there is room for, in rows of about one width."""
    fewest = len(_filled(maps, MOST_ABREAST))
    spans = [maps[start:end] for start in range(len(maps)) for end in range(start + 1, len(maps) + 1)]
    widths = sorted(row_inches(span)[0] for span in spans)
    return next(rows for most in widths if len(rows := _filled(maps, most)) <= fewest)


def _filled(maps: Sequence[HeadMap], most: float) -> list[list[HeadMap]]:
    """Rows that are no wider than so many inches, where one map alone is not."""
    rows: list[list[HeadMap]] = []
    for each in maps:
        if rows and row_inches([*rows[-1], each])[0] <= most:
            rows[-1].append(each)
        else:
            rows.append([each])
    return rows


def row_inches(row: Sequence[HeadMap]) -> tuple[float, float]:
    """How wide and how high maps beside each other are."""
    sizes = [map_inches([each]) for each in row]
    return sum(width for width, _ in sizes), max(height for _, height in sizes)


def put_row(drawn: Any, row: Sequence[HeadMap]) -> None:
    """Maps beside each other, each with its towers and its scale."""
    parts = drawn.subfigures(1, len(row), width_ratios=[map_inches([each])[0] for each in row], squeeze=False)[0]
    for part, each in zip(parts, row, strict=True):
        put_head_maps(part, [each])


def _one(place: Any, each: HeadMap, tower: str, scale: tuple[float, float], deepest: int) -> Any:
    rows = each.values[tower]
    heads = max(map(len, rows), default=0)
    cells = [[math.nan if v is None else v for v in row] + [math.nan] * (heads - len(row)) for row in rows]
    low, high = scale
    place.set_facecolor("0.85")
    shown = place.imshow(
        cells, aspect="auto", vmin=low, vmax=high, cmap="RdBu_r" if each.centred else "viridis", interpolation="nearest"
    )
    dots = [(h, layer) for layer, row in enumerate((each.kept or {}).get(tower, ())) for h in row]
    if dots:
        place.scatter(*zip(*dots, strict=True), s=14, facecolors="white", edgecolors="black", linewidths=0.6)
    place.set(title=f"{each.title}: {tower}", xlabel="head (○ kept)" if dots else "head", ylabel="layer")
    place.set_xticks(range(0, heads, _step(heads)))
    place.set_yticks(range(0, len(rows), _step(len(rows))))
    if len(rows) < deepest:
        # Cells are as high in every tower; what lies below the last layer is paper, and heads are numbered above.
        place.axhspan(len(rows) - 0.5, deepest - 0.5, facecolor="white", edgecolor="none")
        place.set_ylim(deepest - 0.5, -0.5)
        place.spines[:].set_visible(False)
        place.xaxis.tick_top()
        place.xaxis.set_label_position("top")
        place.set_ylabel("layer", loc="top")
    return shown


def _step(count: int) -> int:
    """Every number is written, or every so many."""
    return 1 if count * LEGIBLE <= MOST_INCHES / 2 else math.ceil(count * LEGIBLE / (MOST_INCHES / 2))


def _scale(each: HeadMap) -> tuple[float, float]:
    numbers = [v for rows in each.values.values() for row in rows for v in row if v is not None]
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    if each.centred:
        far = max(abs(low), abs(high)) or 1.0
        return -far, far
    # One number alone stands in the middle of a scale of its own size.
    around = abs(low) / 10 or 1.0
    return (low, high) if high > low else (low - around, low + around)


def _inches(maps: Sequence[HeadMap]) -> tuple[list[float], list[float]]:
    """Of each column and row."""
    towers = list(dict.fromkeys(tower for each in maps for tower in each.values))
    heads = [max((len(row) for each in maps for row in each.values.get(tower, ())), default=0) for tower in towers]
    layers = [max(len(rows) for rows in each.values.values()) for each in maps]
    # The name of a map needs room, however few heads there are.
    widths = [max(CELL * count, 2.2) + AROUND for count in heads]
    heights = [max(CELL * count, 0.9) + AROUND for count in layers]
    shrink = min(1.0, MOST_INCHES / sum(widths), MOST_INCHES / sum(heights))
    return [shrink * width for width in widths], [shrink * height for height in heights]
