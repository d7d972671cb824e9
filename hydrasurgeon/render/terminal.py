"""The parts of rich that are used: coloured text, shown literally."""

from __future__ import annotations

from typing import NoReturn

from rich.console import Console
from rich.text import Text

from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.render.console import Part, parted


class Terminal(Console):
    """rich's console without markup, emoji or highlighting, which leaves failures of its stream to
    us.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(
            stderr=stderr,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            soft_wrap=width is None,
        )

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def styled(*parts: Part) -> Text:
    """Return one line of these parts."""
    line = Text()
    for text, style in map(parted, parts):
        line.append(visible(text), style=style)
    return line
