"""Small charts as SVG: axes, lines, bars and marks, coloured by the page's style sheet and told in
words to who cannot see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.report.columns import short

WIDTH, HEIGHT = 360, 264
"""Size of a chart, in CSS pixels where a phone shows it."""
LEFT, RIGHT, TOP, BOTTOM = 54, 10, 12, 42
"""Room around the plot for ticks and labels."""
LABEL, DIGIT = 22, 6.6
"""Room that a vertical label takes, and that each character of a tick does."""
RADIUS = 9
"""Radius of a dot with a number in it."""
DOT = 5
"""Radius of a dot with a number beside it."""
BESIDE = (
    (0, -13),
    (0, 13),
    (13, 0),
    (-13, 0),
    (11, -11),
    (-11, -11),
    (11, 11),
    (-11, 11),
    (0, -25),
    (0, 25),
    (25, 0),
    (-25, 0),
)
"""Where that number goes, in turn, where another one is."""
COLOURS = 8
"""Distinct colours of the style sheet; further rows repeat them in other dashes."""


def text_of(value: object) -> str:
    """Text from anywhere as HTML that shows it and nothing else."""
    return escape(visible(value), quote=True)


def number(value: float) -> str:
    """A coordinate: short, and the same on every machine."""
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two, about `count` of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    size = 10 ** math.floor(math.log10(span / count))
    step = min(
        (size * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda s: abs(span / s - count)
    )
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [at * step for at in range(first, last + 1)]


def colour(at: int) -> str:
    """The classes of row `at`: its colour, and dashes from the ninth row on."""
    return f"c{at % COLOURS}" + (f" d{min(at // COLOURS, 2)}" if at >= COLOURS else "")


def mark(shape: str, tip: str, *, kind: str = "mark") -> str:
    """Anything that says more when it is pointed at or reached by the arrow keys."""
    name, _, rest = shape.partition(" ")
    said = "&#10;".join(map(text_of, tip.split("\n")))
    return f'<{name} class="{kind}" data-tip="{said}" {rest}'


@dataclass
class Chart:
    """One plot with two axes; pieces are added from back to front."""

    title: str
    says: str
    """What it shows, for who cannot see it."""
    x: Scale
    y: Scale
    pieces: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, title: str, says: str, *, x: tuple[float, float], y: tuple[float, float]) -> Chart:
        """A chart of the common size."""
        across = Scale(*x, LEFT, WIDTH - RIGHT)
        return cls(title, says, across, Scale(*y, HEIGHT - BOTTOM, TOP))

    def axes(self, x_label: str, y_label: str, percent: str = "") -> None:
        """Grid, ticks and what the axes are; `percent` names those of shares, "x", "y" or "xy"."""
        steps = ticks_of(self.y, percent="y" in percent)
        # Many digits move the plot to the right, lest they lie upon the label.
        left = max(LEFT, LABEL + round(DIGIT * max(len(text) for _, text in steps)))
        self.x = replace(self.x, start=left)
        for value, text in steps:
            at = number(self.y(value))
            self.pieces.append(
                f'<line class="grid" x1="{left}" x2="{number(self.x.end)}" y1="{at}" y2="{at}"/>'
            )
            self.pieces.append(
                f'<text class="tick" x="{left - 6}" y="{at}" dy=".32em" text-anchor="end">{text}</text>'
            )
        for value, text in ticks_of(self.x, percent="x" in percent):
            at = number(self.x(value))
            self.pieces.append(
                f'<line class="grid" y1="{TOP}" y2="{number(self.y.start)}" x1="{at}" x2="{at}"/>'
            )
            y = number(self.y.start + 15)
            self.pieces.append(
                f'<text class="tick" x="{at}" y="{y}" text-anchor="middle">{text}</text>'
            )
        middle, across = (number((axis.start + axis.end) / 2) for axis in (self.x, self.y))
        for place, label in (
            (f'x="{middle}" y="{HEIGHT - 8}"', x_label),
            (f'transform="rotate(-90 11 {across})" x="11" y="{across}"', y_label),
        ):
            self.pieces.append(
                f'<text class="axis" {place} text-anchor="middle">{text_of(label)}</text>'
            )

    def line(self, points: Sequence[tuple[float, float]], at: int, tip: str) -> None:
        """A curve of row `at`, with a broad invisible one around it that is easy to point at."""
        if len(points) == 1:
            self.point(*points[0], at, tip)
            return
        path = "M" + "L".join(f"{number(self.x(a))} {number(self.y(b))}" for a, b in points)
        self.pieces.append(f'<path class="line {colour(at)}" d="{path}"/>')
        self.pieces.append(mark(f'path d="{path}"/>', tip, kind="mark wide"))

    def point(self, a: float, b: float, at: int, tip: str) -> None:
        """A small dot of row `at`."""
        shape = f'circle cx="{number(self.x(a))}" cy="{number(self.y(b))}" r="3.5"/>'
        self.pieces.append(mark(shape, tip, kind=f"mark dot {colour(at)}"))

    def numbered(self, points: Sequence[tuple[float, float, int, str]]) -> None:
        """Dots exactly where they are; the numbers of their rows stand beside them, where there is
        room.
        """
        places = [(self.x(a), self.y(b)) for a, b, _, _ in points]
        # Where dots lie upon each other, any of them says what all of them do.
        tips = [
            "\n".join(
                tip
                for place, (*_, tip) in zip(places, points, strict=True)
                if math.dist(place, mine) < DOT
            )
            for mine in places
        ]
        for (x, y), (_, _, at, _), tip in zip(places, points, tips, strict=True):
            shape = f'circle cx="{number(x)}" cy="{number(y)}" r="{DOT}"/>'
            self.pieces.append(mark(shape, tip, kind=f"mark dot see {colour(at)}"))
        taken = list(places)
        for (x, y), (_, _, at, _) in zip(places, points, strict=True):
            beside = [(x + dx, y + dy) for dx, dy in BESIDE]
            free = [
                spot
                for spot in beside
                if all(math.dist(spot, other) >= 2 * DOT + 2 for other in taken)
            ]
            taken.append((free or beside)[0])
            place = "x={} y={}".format(*(f'"{number(at)}"' for at in taken[-1]))
            self.pieces.append(
                f'<text class="beside {colour(at)}" {place} dy=".34em" text-anchor="middle">{at + 1}</text>'
            )

    def rule(self, a: float, kind: str, tip: str) -> None:
        """A line from the bottom to the top."""
        path = f"M{number(self.x(a))} {number(self.y.start)}V{number(self.y.end)}"
        self.pieces.append(f'<path class="rule {kind}" d="{path}"/>')
        self.pieces.append(mark(f'path d="{path}"/>', tip, kind="mark wide"))

    def bar(self, low: float, high: float, top: float, kind: str, tip: str) -> None:
        """From the bottom to `top`."""
        x, y = self.x(low), self.y(top)
        shape = (
            f'rect x="{number(x + 0.5)}" y="{number(y)}" width="{number(max(self.x(high) - x - 1, 0.5))}"'
            f' height="{number(max(self.y.start - y, 0))}"/>'
        )
        self.pieces.append(mark(shape, tip, kind=f"mark {kind}"))

    def ideal(self) -> None:
        """The dashed diagonal."""
        x, y = self.x, self.y
        path = f"M{number(x(0))} {number(y(0))}L{number(x(1))} {number(y(1))}"
        self.pieces.append(f'<path class="ideal" d="{path}"/>')

    def rect(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        """A rectangle that says nothing of its own, in pixels."""
        self.pieces.append(
            f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"/>'
        )

    def svg(self) -> str:
        return drawing(self.title, self.says, WIDTH, HEIGHT, "".join(self.pieces))


def drawing(title: str, says: str, width: int, height: int, content: str, *, kind: str = "") -> str:
    """An SVG that has a name and a description, and is one stop of the Tab key."""
    return (
        f'<svg class="marks {kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' tabindex="0" aria-label="{text_of(title)}.'
        f' {text_of(says)}"><title>{text_of(title)}</title><desc>{text_of(says)}</desc>{content}</svg>'
    )


def figure(caption: str, content: str, *, note: str = "") -> str:
    more = f'<span class="note">{note}</span>' if note else ""
    return f"<figure><figcaption>{text_of(short(caption))}{more}</figcaption>{content}</figure>"


def ticks_of(scale: Scale, *, percent: bool) -> list[tuple[float, str]]:
    """Ticks with as many digits as tell one from the next."""
    values = ticks(scale.low, scale.high)
    factor = 100 if percent else 1
    step = abs(values[1] - values[0]) * factor if len(values) > 1 else 1.0
    most = max(abs(value) for value in values) * factor
    if not 1e-4 <= step < 1e6 or most >= 1e6:
        return [
            (value, f"{factor * value:.4g}".replace("e+0", "e").replace("e-0", "e-"))
            for value in values
        ]
    digits = next(d for d in range(8) if abs(round(step, d) - step) < 1e-6 * step or d == 7)
    return [(value, f"{factor * value + 0.0:.{digits}f}") for value in values]
