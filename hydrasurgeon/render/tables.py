"""Tables that never cut a number: folded by columns on a narrow terminal, one block for each row on a very narrow
one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from hydrasurgeon.render.console import Part, folded, styled
from hydrasurgeon.visible import visible

GAP = "  "
"""Between two columns."""
# Fewer columns than this side by side compare less than a block for each row does.
FEWEST = 3


@dataclass(frozen=True)
class Column:
    name: str
    group: str = ""
    """What stands above this column and its neighbours of the same group; may be blank."""
    left: bool = False
    repeat: bool = False
    """Stands in each part of its group again where the group is parted."""


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

    def keys(self) -> int:
        return max((_cells(row.key) for row in self.rows), default=0)

    def size(self, at: int) -> int:
        """Terminal cells that column `at` takes, with the gap before it."""
        texts = (self.columns[at].name, *(_text(row.cells[at]) for row in self.rows))
        return len(GAP) + max(_cells(text) for text in texts)

    def groups(self, columns: Iterable[int]) -> list[tuple[str, list[int]]]:
        return [(name, list(at)) for name, at in groupby(columns, key=lambda at: self.columns[at].group)]


def table_lines(table: Table, width: int | None) -> list[Text]:
    """The table on a terminal of so many columns; None: as wide as it is."""
    every = range(len(table.columns))
    sizes = [table.size(at) for at in every]
    title = folded(styled((table.title, "bold")), width) if table.title else []
    room = None if width is None else width - table.keys()
    if room is None or sum(sizes) <= room:
        return [*title, *_grid(table, every)]
    if room < sum(sorted(sizes)[-FEWEST:]):
        assert width is not None
        return [*title, *_blocks(table, width)]
    return [*title, *(line for columns in _folds(table, room) for line in _grid(table, columns))]


def _folds(table: Table, room: int) -> list[list[int]]:
    """Which columns stand side by side; a group is parted only where it is too wide by itself."""

    def fits(columns: Sequence[int]) -> bool:
        return sum(table.size(at) for at in columns) <= room

    folds: list[list[int]] = [[]]
    for _, group in table.groups(range(len(table.columns))):
        again = [at for at in group if table.columns[at].repeat]
        for piece in [group] if fits(group) else [[at] for at in group]:
            if folds[-1] and not fits([*folds[-1], *piece]):
                folds.append([] if piece[0] in again or len(piece) > 1 else [*again])
            folds[-1] += piece
    return folds


def _grid(table: Table, columns: Sequence[int]) -> Iterator[Text]:
    margin = " " * table.keys()
    groups = table.groups(columns)
    if any(name.strip() for name, _ in groups):
        above = "".join(GAP + name.center(sum(map(table.size, at)) - len(GAP)) for name, at in groups)
        yield styled((margin + above.rstrip(), "dim"))
    if any(table.columns[at].name for at in columns):
        yield styled(margin, *(_cell(table, at, table.columns[at].name, "bold") for at in columns))
    for row in table.rows:
        if any(_text(row.cells[at]) for at in columns):
            key = visible(row.key) + " " * (table.keys() - _cells(row.key))
            cells = [_cell(table, at, row.cells[at], row.style) for at in columns]
            yield styled((key, row.style), *cells)


def _blocks(table: Table, width: int) -> Iterator[Text]:
    """A row's name, then its numbers, each after what it is."""
    for row in table.rows:
        if row.key:
            yield styled((row.key, "bold"))
        for name, columns in table.groups(range(len(table.columns))):
            parts: list[Part] = [f"{GAP}{name}:"] if name.strip() else []
            for at in columns:
                if _text(row.cells[at]):
                    label = f"{GAP}{table.columns[at].name} "
                    if parts and _length(parts) + _cells(label + _text(row.cells[at])) > width:
                        yield styled(*parts)
                        parts = [GAP] if name.strip() else []
                    parts += [label, row.cells[at]]
            if len(parts) > 1:
                yield styled(*parts)


def _cell(table: Table, at: int, part: Part, style: str) -> Part:
    text = visible(_text(part))
    blank = " " * (table.size(at) - len(GAP) - cell_len(text))
    padded = text + blank if table.columns[at].left else blank + text
    return GAP + padded, style if isinstance(part, str) else part[1]


def _length(parts: Sequence[Part]) -> int:
    return sum(_cells(_text(part)) for part in parts)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


def _cells(text: str) -> int:
    return cell_len(visible(text))
