"""front.svg: cost against loss of everything that build has measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape

from hydrasurgeon.building.budgets import Unit
from hydrasurgeon.building.table import Entry
from hydrasurgeon.files.untrusted import visible

NAME = "front.svg"
"""File name of the picture."""
BEGIN = '<svg xmlns="http://www.w3.org/2000/svg" data-from="hydrasurgeon build"'
"""First characters, by which an earlier picture is recognised."""
WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 44, 60
"""Margins of the plot, in pixels."""
LINE = 15
"""Height of a line of text."""
TICKS = 5
"""Intervals of an axis, about."""
LONGEST = 44
"""Characters of a label."""
LOSSES = {"nll": "NLL (nats)", "rmse": "RMSE (units of the label)"}
"""Metrics that the picture may show, the first that there is."""
COSTS = {
    "time": "time per row, relative to the unpruned model",
    "macs": "multiply-adds, relative to the unpruned model",
    "params": "parameters, relative to the unpruned model",
}


def draw(
    tried: Iterable[Entry], chosen: Sequence[Entry], unit: Unit, name_of: Callable[[Entry], str]
) -> str | None:
    """Return the picture; None if no entry has a loss. The chosen entries are marked, and they and the
    baselines are named.
    """
    entries = [*dict.fromkeys([*measured(tried), *chosen])]
    loss = next((name for name in LOSSES if all(name in entry.worth for entry in entries)), None)
    if loss is None or not entries:
        return None
    points = [(entry, entry.cost[unit], entry.worth[loss]) for entry in entries]
    points.sort(key=lambda point: (point[0] in chosen, *point[1:], name_of(point[0])))
    across, up = ticks([0, *(cost for _, cost, _ in points)]), ticks([y for *_, y in points])

    def x_of(cost: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (cost - across[0]) / (across[-1] - across[0])

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - up[0]) / (up[-1] - up[0])

    lines = [
        f'{BEGIN} viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 24, "Everything that build has tried; blue: chosen", size=14),
    ]
    low, high = HEIGHT - BOTTOM, TOP
    for tick in across:
        lines.append(_line(x_of(tick), low, x_of(tick), high))
        lines.append(_text(x_of(tick), low + 18, f"{tick:g}", anchor="middle"))
    for tick in up:
        lines.append(_line(LEFT, y_of(tick), WIDTH - RIGHT, y_of(tick)))
        lines.append(_text(LEFT - 8, y_of(tick) + 4, f"{tick:g}", anchor="end"))
    middle = (low + high) / 2
    lines.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, COSTS[unit], anchor="middle"))
    turned = f'transform="rotate(-90 20 {middle:.1f})"'
    lines.append(_text(20, middle, LOSSES[loss], anchor="middle", more=turned))
    used: list[tuple[float, float]] = []
    for entry, cost, value in points:
        is_chosen, name = entry in chosen, name_of(entry)
        look = 'r="4" fill="#9aa1ad"'
        if is_chosen:
            look = 'r="7" fill="#1f5fbf"'
        elif entry.is_plain:
            look = 'r="5" fill="#fff" stroke="#3b4252" stroke-width="2"'
        title = escape(visible(f"{name}: {unit} {cost:.3f}, {loss} {value:.4f}"))
        at = f'cx="{x_of(cost):.1f}" cy="{y_of(value):.1f}"'
        lines.append(f"<circle {at} {look}><title>{title}</title></circle>")
    for entry, cost, value in reversed(points):  # the chosen ones get the best places
        if entry not in chosen and not entry.is_plain:
            continue
        right = x_of(cost) < (LEFT + WIDTH - RIGHT) / 2
        x, y = x_of(cost) + (11 if right else -11), y_of(value) + 4
        while any(abs(y - other) < LINE and abs(x - place) < WIDTH / 2 for place, other in used):
            y += LINE
        used.append((x, y))
        name = name_of(entry)
        short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
        lines.append(_text(x, y, short, anchor="start" if right else "end"))
    return "\n".join([*lines, "</svg>", ""])


def measured(tried: Iterable[Entry]) -> list[Entry]:
    """Omit entries with assumed figures that were measured later."""
    entries = [*tried]
    choices = {entry.choice for entry in entries}
    return [
        entry
        for entry in entries
        if not entry.choice.assumed or replace(entry.choice, assumed=False) not in choices
    ]


def ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers, equally far from each other, that enclose the values."""
    low, high = min(values), max(values)
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / TICKS)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="#e2e5ea"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {more}'.strip()
    return f'<text {place} fill="#3b4252">{escape(visible(text))}</text>'
