"""The tables of a report as Markdown: the best bold, the second best underlined."""

from __future__ import annotations

from hydrasurgeon.measuring.page.document import Material
from hydrasurgeon.measuring.page.grids import Cell, Column, Grid, grids
from hydrasurgeon.visible import code, visible

MARKDOWN = {"higher": " ↑", "lower": " ↓", "": ""}
"""What stands behind a column's name in Markdown."""


def markdown(material: Material) -> str:
    """The verdicts as a list, then each table."""
    verdicts = [f"- **{v.head}**: {code(v.name)}. {_plain(v.sentence)} {v.cost}".rstrip() for v in material.verdicts()]
    notes = [f"- Note: {_plain(note)}" for note in material.notes]
    listed = "\n".join([*verdicts, *notes])
    return "\n\n".join([*([listed] if listed else []), *map(_markdown, grids(material.report))]) + "\n"


def _plain(text: str) -> str:
    """A sentence that holds names, as Markdown that means nothing but itself."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#&~!$" else c for c in visible(text))


def _markdown(grid: Grid) -> str:
    heads = ["", *(_plain(_head(column)) + MARKDOWN[column.better] for column in grid.columns)]
    lines = [heads, [":---", *["---:"] * len(grid.columns)]]
    lines += [[code(name), *map(_marked, cells)] for name, cells in zip(grid.names, grid.rows, strict=True)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    note = f"\n\n{grid.note}" if grid.note else ""
    return f"### {grid.title}\n\n{table}{note}"


def _head(column: Column) -> str:
    return f"{column.group}: {column.name}" if column.group else column.name


def _marked(cell: Cell) -> str:
    ends = f" [{cell.low}, {cell.high}]" if cell.low else ""
    # Markdown has no underline of its own; the tag is one that every reader of it knows.
    shown = {"best": f"**{cell.text}**", "second": f"<u>{cell.text}</u>", "": cell.text}
    return shown[cell.rank] + ends
