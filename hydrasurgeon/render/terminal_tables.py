"""Tables that never cut a number, however narrow the terminal; and heads as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hydrasurgeon.heads import Kept
from hydrasurgeon.lookup import format_number
from hydrasurgeon.render.console import Part, put, show

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Tower

SMALL = 0.001
"""Differences below it are printed as a bound."""
WIDEST = 1 << 16
"""Width that no table reaches, in characters."""
GAP = "  "
"""Gap between two columns."""

Head = str | tuple[str, str]
"""Heading of a column, optionally with the heading of its group."""


def show_table(title: str, heads: Sequence[Head], rows: Sequence[Sequence[Part]]) -> None:
    """Show a table; the first cell of a row names it, and is empty if it continues the row
    above.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    from hydrasurgeon.render.terminal import Terminal, styled

    if title:
        show((title, "bold"))
    pairs = [("", head) if isinstance(head, str) else head for head in heads]
    grid = Table(box=None, pad_edge=False, padding=(0, 0, 0, len(GAP)), header_style="bold")
    grid.show_header = any(name for _, name in pairs)
    grid.add_column("", no_wrap=True)
    above = any(group.strip() for group, _ in pairs)
    for at, (group, name) in enumerate(pairs):
        head = styled(name)
        if above:  # once for each group
            once = "" if at and pairs[at - 1][0] == group else group
            head = Text("\n").join([styled((once, "dim")), head])
        grid.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        assert len(row) == 1 + len(heads)  # else values stand below the heads of others
        grid.add_row(*map(styled, row))
    console = Terminal(width=WIDEST)
    put(grid, Measurement.get(console, console.options, grid).maximum)


def numbers_width(heads: Sequence[Head], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a terminal that the numbers of a table take, with their gaps."""
    pairs = [("", head) if isinstance(head, str) else head for head in heads]
    widths = []
    for at, (group, name) in enumerate(pairs):
        above = "" if at and pairs[at - 1][0] == group else group  # shown once for each group
        widths.append(max(len(text) for text in (above, name, *(row[at + 1] for row in rows))))
    return sum(widths) + len(GAP) * len(widths)


def picture(kept: Kept, towers: Mapping[str, Tower]) -> None:
    """Show a row for each layer: ■ kept, · removed."""
    widest = max(map(len, kept), default=0)
    for name, rows in kept.items():
        for layer, row in enumerate(rows):
            cells = "".join("■" if head in row else "·" for head in range(towers[name].heads))
            prefix = f"{name:{widest}} " if len(kept) > 1 else ""
            show(f"    {prefix}{layer:2d} {cells} {len(row)}")


def millions(count: int) -> str:
    """Return a count as 1.36 M, or in full if it is small."""
    return f"{count / 1e6:.2f} M" if count >= 5000 else f"{count:,}"


def bounded(difference: float) -> str:
    """Format a difference as 0.0044, or, if tiny, by a bound: "less than 0.00001"."""
    if difference == 0:
        return "0"
    if not 0 < difference < SMALL:
        return f"{difference:.2g}"
    places = min(math.floor(-math.log10(difference)), 12)
    return f"less than {10**-places:.{places}f}"


def size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{format_number(amount)} {unit}"
        amount /= 1000
    return f"{format_number(amount)} GB"
