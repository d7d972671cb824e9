"""The tables of a report as Markdown and as LaTeX: the best bold, the second best underlined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from hydrasurgeon.measuring.page.document import Material
from hydrasurgeon.measuring.page.grids import Cell, Column, Grid, grids
from hydrasurgeon.measuring.page.svg import short
from hydrasurgeon.visible import code, visible

MARKDOWN = {"higher": " ↑", "lower": " ↓", "": ""}
"""What stands behind a column's name in Markdown."""
LATEX = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "": ""}
"""The same in LaTeX."""
ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": r"\textendash{}",
    "−": "$-$",
    "·": r"$\cdot$",
    "<": r"\textless{}",
    "|": r"\textbar{}",
    ">": r"\textgreater{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    '"': r"\textquotedbl{}",
    "…": r"\ldots{}",
}
"""Characters that mean something to LaTeX, and how they are printed; a bracket or a star at the head of a row would be
an option of the line above."""
LIGATURES = re.compile(r"(?<=-)(?=-)|(?<=,)(?=,)")
"""Where two characters would be drawn as one other."""
LATIN = 0x17F
"""The last character that every LaTeX prints; of later ones pdfLaTeX, which would stop, prints the number."""
PREAMBLE = r"""% Needs \usepackage{booktabs} and \usepackage[T1]{fontenc}.
\providecommand{\hsunicode}[2]{\ifdefined\Umathchar#2\else{\tiny#1}\fi}
"""
"""What stands before the tables."""
LINE, ROWS, NAME = 74, 54, 30
"""Characters in \\footnotesize that a line of a page holds, rows that the page does, and characters of a model's
name."""


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


def latex(material: Material) -> str:
    """Tables for the package booktabs, as wide as a page: what is wider goes on below."""
    return PREAMBLE + "\n".join(map(_latex, grids(material.report)))


def _latex(grid: Grid) -> str:
    few = [short(name, NAME) for name in grid.names]
    names = few if len(set(few)) == len(set(grid.names)) else list(grid.names)
    caption = rf"\caption{{{_tex(grid.title)}. {_tex(grid.note)}}}".replace(". }", ".}")
    parts = [_tabular(grid, names, columns) for columns in _folds(grid, LINE - max(map(_printed, names)))]
    # As many as a page holds, each with its rules and heads; the others are a table of their own.
    most = max(1, ROWS // (len(names) + 4))
    floats = []
    for at in range(0, len(parts), most):
        head = caption if at == 0 else rf"\caption{{{_tex(grid.title)}, continued.}}"
        between = "\n\\par\\medskip\n"
        floats.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
                    head,
                    between.join(parts[at : at + most]),
                    r"\end{table}",
                    "",
                ]
            )
        )
    return "\n".join(floats)


def _folds(grid: Grid, room: int) -> list[range]:
    """Which columns stand side by side; a group of columns is parted only where it is too wide by itself."""
    widths = [
        max(len(column.name) + 2, *(_width(row[at]) for row in grid.rows)) + 1 for at, column in enumerate(grid.columns)
    ]
    starts = [0]
    at = 0
    for _, count in _spans(grid.columns):
        for piece in (
            [range(at, at + count)]
            if sum(widths[at : at + count]) <= room
            else [range(k, k + 1) for k in range(at, at + count)]
        ):
            if piece.start > starts[-1] and sum(widths[starts[-1] : piece.stop]) > room:
                starts.append(piece.start)
        at += count
    return [range(a, b) for a, b in pairwise([*starts, len(grid.columns)])]


def _printed(name: str) -> int:
    # A number in place of a character takes as much as four.
    return sum(1 if ord(c) <= LATIN else 4 for c in name)


def _width(cell: Cell) -> int:
    # Of an interval's size three characters take as much as two others.
    return len(cell.text) + (2 * len(f" [{cell.low}, {cell.high}]") // 3 if cell.low else 0)


def _tabular(grid: Grid, names: Sequence[str], columns: range) -> str:
    of = grid.columns[columns.start : columns.stop]
    lines = [rf"\begin{{tabular}}{{l{'r' * len(of)}}}", r"\toprule"]
    if any(column.group for column in of):
        lines.append(
            _row(["", *(rf"\multicolumn{{{count}}}{{c}}{{{_tex(short(name, NAME))}}}" for name, count in _spans(of))])
        )
    lines.append(_row(["Model", *(_tex(c.name) + LATEX[c.better] for c in of)]))
    lines.append(r"\midrule")
    lines += [
        _row([_tex(name), *map(_cell, cells[columns.start : columns.stop])])
        for name, cells in zip(names, grid.rows, strict=True)
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _spans(columns: Iterable[Column]) -> list[tuple[str, int]]:
    """The groups of neighbours, and how many columns each has."""
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


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
    """Text as LaTeX that prints it and does nothing else."""
    return "{}".join("".join(map(_character, part)) for part in LIGATURES.split(visible(text)))


def _character(c: str) -> str:
    if c in ESCAPES:
        return ESCAPES[c]
    return c if ord(c) <= LATIN else rf"\hsunicode{{{ord(c):04X}}}{{{c}}}"
