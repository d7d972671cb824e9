"""Tables as Markdown: the best of a column bold, the second best underlined; the report, and the
model card's section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hydrasurgeon.files.untrusted import code, visible
from hydrasurgeon.report.columns import Cell, ReportTable
from hydrasurgeon.report.page import Material

RANKS = "Bold is the best number of a column, underlined the second best."
"""Explanation of bold and underlined numbers."""


def markdown(material: Material) -> str:
    """Write how each model compares as a list, then each table."""
    pairs = zip(material.heads, material.names, strict=True)
    listed = [f"- {head}: {code(name)}" for (_, head), name in pairs]
    listed += [f"- Note: {plain(note)}" for note in material.notes]
    parts = ["\n".join(listed)] + [RANKS] * bool(material.other_names)
    for result_table in material.tables:
        parts += [
            f"### {result_table.title}",
            results_table(result_table, map(code, result_table.names)),
        ]
        parts += [result_table.note] if result_table.note else []
    return "\n\n".join(parts) + "\n"


def results_table(results: ReportTable, names: Iterable[str]) -> str:
    """Return results as a table, with a row for each name."""
    heads = [(f"{c.group}: " if c.group.strip() else "") + c.metric.head for c in results.columns]
    rows = [[name, *map(_marked, cells)] for name, cells in zip(names, results.rows, strict=True)]
    return table(["", *map(plain, heads)], rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with words in the first column and numbers in the others."""
    lines = [heads, [":---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Escape a sentence that holds names, so that Markdown shows it literally."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#&~!$" else c for c in visible(text))


def _marked(cell: Cell) -> str:
    ends = f" [{cell.low}, {cell.high}]" if cell.low else ""
    ends += f" {cell.verdict}" if cell.verdict else ""
    # Markdown has no underline of its own; the tag is one that every reader of it knows.
    shown = {"best": f"**{cell.text}**", "second": f"<u>{cell.text}</u>", "": cell.text}
    return shown[cell.rank] + ends
