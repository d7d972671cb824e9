"""A display of progress that keeps the lines."""

from __future__ import annotations

from hydrasurgeon.options.progress import Display


class Lines(Display):
    """A log of which a list holds the lines that stay."""

    is_log = True

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def line(self, text: str) -> None:
        self.lines.append(text)
