"""Tables that never cut a number: on a terminal that is too narrow, a block for each row. And heads as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from hydrasurgeon.heads import Kept
from hydrasurgeon.render.console import Part, Terminal, lines, put, show, styled, width

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Tower

WIDEST = 1 << 16
"""Columns that no table takes."""
GAP = "  "
"""Between two columns."""


@dataclass(frozen=True)
class Column:
    name: str
    group: str = ""
    left: bool = False


@dataclass(frozen=True)
class Row:
    key: str
    """What the row is about; empty where it goes on with the row above."""
    cells: tuple[Part, ...]
    style: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def show_table(table: Table) -> None:
    if table.title:
        show((table.title, "bold"))
    grid = _grid(table)
    console, room = Terminal(width=WIDEST), width()
    cells = Measurement.get(console, console.options, grid).maximum
    if room is None or cells <= room:
        put(grid, cells)
    else:
        lines(_blocks(table, room))


def _grid(table: Table) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 0, 0, len(GAP)), header_style="bold")
    grid.show_header = any(column.name for column in table.columns)
    grid.add_column("", no_wrap=True)
    above = any(column.group.strip() for column in table.columns)
    for before, column in zip((None, *table.columns), table.columns, strict=False):
        head = styled(column.name)
        if above:  # once for each group
            group = "" if before is not None and before.group == column.group else column.group
            head = Text("\n").join([styled((group, "dim")), head])
        grid.add_column(head, justify="left" if column.left else "right", no_wrap=True)
    for row in table.rows:
        grid.add_row(styled(row.key), *map(styled, row.cells), style=row.style)
    return grid


def _blocks(table: Table, room: int) -> Iterator[Text]:
    """A row's name, then its numbers, each behind what it is."""
    for row in table.rows:
        if row.key:
            yield styled((row.key, "bold"))
        line = Text()
        for column, cell in zip(table.columns, row.cells, strict=True):
            label = f"{GAP}{f'{column.group} '.lstrip()}{column.name} "
            entry = Text.assemble(styled(label), styled(cell))
            if not styled(cell).plain:
                continue
            if line and line.cell_len + cell_len(entry.plain) > room:
                yield line
                line = Text()
            line.append_text(entry)
        if line:
            yield line


def picture(kept: Kept, towers: Mapping[str, Tower]) -> None:
    """A row for each layer: ■ kept, · removed."""
    widest = max(map(len, kept), default=0)
    for name, rows in kept.items():
        for layer, row in enumerate(rows):
            cells = "".join("■" if head in row else "·" for head in range(towers[name].heads))
            prefix = f"{name:{widest}} " if len(kept) > 1 else ""
            show(f"    {prefix}{layer:2d} {cells} {len(row)}")


def millions(count: int) -> str:
    """1.36 M; of what would be 0.00 M, the number."""
    return f"{count / 1e6:.2f} M" if count >= 5000 else f"{count:,}"


def size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
