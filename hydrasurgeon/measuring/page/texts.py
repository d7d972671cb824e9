"""The tables of a report as Markdown and as LaTeX: the best bold, the second best underlined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hydrasurgeon.measuring.page.document import Material
from hydrasurgeon.measuring.page.grids import Cell, Column, Grid, grids
from hydrasurgeon.visible import code, visible

__all__ = ["latex", "markdown"]

MARKDOWN = {"higher": " ↑", "lower": " ↓", "": ""}
"""What stands behind a column's name in Markdown."""
LATEX = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
"""The same in LaTeX."""
ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "*": "{*}", "·": r"$\cdot$", "<": r"\textless{}", "|": r"\textbar{}", ">": r"\textgreater{}",
}  # fmt: skip
"""Characters that mean something to LaTeX, and how they are printed; a bracket or a star at the head of a row would be an option of the line above."""
LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=')(?=')")
"""Where two characters would be drawn as one other."""


def markdown(material: Material) -> str:
    """The verdicts as a list, then each table."""
    verdicts = [
        f"- **{v.head}**: {code(v.name)}. {_plain(v.sentence)} {v.cost}".rstrip()
        for v in material.verdicts()
    ]
    notes = [f"- Note: {_plain(note)}" for note in material.notes]
    listed = "\n".join([*verdicts, *notes])
    return "\n\n".join([*([listed] if listed else []), *map(_markdown, grids(material.report))]) + "\n"  # fmt: skip


def _plain(text: str) -> str:
    """A sentence that holds names, as Markdown that means nothing but itself."""
    return "".join(f"\\{c}" if c in r"\`*_[]<>|#&~!$" else c for c in visible(text))


def _markdown(grid: Grid) -> str:
    heads = ["", *(_plain(_head(column)) + MARKDOWN[column.better] for column in grid.columns)]
    lines = [heads, [":---", *["---:"] * len(grid.columns)]]
    lines += [[code(name), *map(_marked, cells)] for name, cells in zip(grid.names, grid.rows, strict=True)]  # fmt: skip
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


def latex(material: Material) -> str:
    """Tables for the package booktabs."""
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(_latex, grids(material.report)))


def _latex(grid: Grid) -> str:
    grouped = any(column.group for column in grid.columns)
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(grid.title)}. {_tex(grid.note)}}}".replace(". }", ".}"), rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}", r"\toprule"]  # fmt: skip
    if grouped:
        lines.append(_row(["", *_groups(grid.columns)]))
    lines.append(_row(["Model", *(_tex(c.name) + LATEX[c.better] for c in grid.columns)]))  # fmt: skip
    lines.append(r"\midrule")
    lines += [_row([_tex(name), *map(_cell, cells)]) for name, cells in zip(grid.names, grid.rows, strict=True)]  # fmt: skip
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _groups(columns: Iterable[Column]) -> list[str]:
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return [rf"\multicolumn{{{count}}}{{c}}{{{_tex(name)}}}" for name, count in spans]


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    marks: dict[str, Callable[[str], str]] = {
        "best": lambda text: rf"\textbf{{{text}}}",
        "second": lambda text: rf"\underline{{{text}}}",
        "": str,
    }
    ends = rf" {{\scriptsize [{cell.low}, {cell.high}]}}" if cell.low else ""
    return marks[cell.rank](_tex(cell.text)) + ends


def _tex(text: str) -> str:
    return "{}".join("".join(ESCAPES.get(c, c) for c in part) for part in LIGATURES.split(visible(text)))  # fmt: skip
