"""Tables as Markdown: the best of a column bold, the second best underlined; the report, and the
model card's section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydrasurgeon.files.foreign import code, visible
from hydrasurgeon.report.columns import Cell, Table
from hydrasurgeon.report.page import Material

RANKS = "Bold is the best number of a column, underlined the second best."
"""What bold and underlined mean, wherever they are."""


def markdown(material: Material) -> str:
    """Write how each model compares as a list, then each table."""
    pairs = zip(material.heads, material.names, strict=True)
    listed = [f"- {head}: {code(name)}" for (_, head), name in pairs]
    listed += [f"- Note: {plain(note)}" for note in material.notes]
    parts = ["\n".join(listed)] + [RANKS] * bool(material.others)
    for each in material.tables:
        parts += [f"### {each.title}", results_table(each, map(code, each.names))]
        parts += [each.note] if each.note else []
    return "\n\n".join(parts) + "\n"


def results_table(results: Table, names: Iterable[str]) -> str:
    """A row for each result, under these names."""
    heads = [(f"{c.group}: " if c.group.strip() else "") + c.metric.head for c in results.columns]
    rows = [[name, *map(_marked, cells)] for name, cells in zip(names, results.rows, strict=True)]
    return table(["", *map(plain, heads)], rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Words in the first column, figures in the others."""
    lines = [heads, [":---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """A sentence that holds names, as Markdown that means nothing but itself."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#&~!$" else c for c in visible(text))


def _marked(cell: Cell) -> str:
    ends = f" [{cell.low}, {cell.high}]" if cell.low else ""
    ends += f" {cell.verdict}" if cell.verdict else ""
    # Markdown has no underline of its own; the tag is one that every reader of it knows.
    shown = {"best": f"**{cell.text}**", "second": f"<u>{cell.text}</u>", "": cell.text}
    return shown[cell.rank] + ends
