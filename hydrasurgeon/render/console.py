"""The one door to the terminal: whatever comes through it is text, shown as it is and never obeyed."""

from __future__ import annotations

import json as jsonlib
import math
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.render.streams import writing

if TYPE_CHECKING:
    from hydrasurgeon.errors import HydraError

Part = str | tuple[str, str]
"""A piece of a line, or a piece and its style."""


class Terminal(Console):
    """rich's console without markup, emoji or highlighting, which leaves failures of its stream to us."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(
            stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=width is None
        )

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def out() -> Terminal:
    return Terminal()


def err() -> Terminal:
    return Terminal(stderr=True)


def _print(console: Terminal, *texts: Text) -> None:
    with writing(sys.stderr if console.stderr else sys.stdout):
        for text in texts:
            console.print(text)


def width(*, stderr: bool = False) -> int | None:
    """Columns of the terminal that a stream is; a file or a pipe has no end of line to keep within."""
    console, stream = (err(), sys.stderr) if stderr else (out(), sys.stdout)
    return console.width if stream.isatty() else None


def styled(*parts: Part) -> Text:
    """One line: nothing in a part starts another, or means anything to rich or the terminal."""
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        line.append(visible(text), style=style)
    return line


def show(*parts: Part, hang: int | None = None) -> None:
    """A line of the result, on stdout; on a terminal it breaks between words and goes on `hang` columns from the
    left."""
    lines(folded(styled(*parts), width(), hang))


def folded(line: Text, width: int | None, hang: int | None = None) -> list[Text]:
    """The line in as many as it needs, all but the first indented: by `hang`, or two more than the first.

    A word or a `command` that is too long stays whole, so that it can be copied; the terminal breaks it.
    """
    plain = line.plain
    if width is None or line.cell_len <= width:
        return [line]
    indent = " " * (hang or len(plain) - len(plain.lstrip()) + 2)
    pieces, start, end, room = [], 0, 0, width
    for word in WORD.finditer(plain):
        if end > start and cell_len(plain[start : word.end()]) > room:
            pieces.append(line[start:end])
            start, room = word.start(), width - len(indent)
        end = word.end()
    first, *more = [*pieces, line[start:end]]
    return [first, *(Text(indent).append_text(text) for text in more)]


WORD = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
"""What a line is not broken within: a word, or what stands between backticks."""


def lines(texts: Iterable[Text]) -> None:
    """Several of them, each made by `styled`."""
    _print(out(), *texts)


def put(renderable: RenderableType, cells: int) -> None:
    """A table of so many columns on stdout, however wide that is."""
    with writing(sys.stdout):
        Terminal(width=cells).print(renderable)


def say(text: str, *, style: str = "", fold: bool = True) -> None:
    """A line about the work, on stderr; one to be copied is not folded."""
    _print(err(), *folded(styled((text, style)), width(stderr=True) if fold else None))


def failed(error: HydraError) -> None:
    """A user's mistake: what and where, one line for each detail, then what to do next."""
    more = [*error.details, *([error.hint] if error.hint else [])]
    head = styled(("error:", "bold red"), f" {error.message}")
    columns, hang = width(stderr=True), len("error: ")
    texts = [head, *(styled(" " * hang + line) for line in more)]
    _print(err(), *(piece for text in texts for piece in folded(text, columns, hang)))


def as_json(value: Any) -> None:
    """Strict JSON in ASCII: no terminal, encoding or parser finds anything in it but JSON."""
    # json escapes everything else that is not printable.
    raw(jsonlib.dumps(_strict(value), indent=1, allow_nan=False).replace("\x7f", r"\u007f"))


def _strict(value: Any) -> Any:
    """JSON has no word for a number that is not finite: null."""
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def raw(text: str) -> None:
    """Our own text on stdout, byte by byte."""
    with writing(sys.stdout):
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
