"""Displays of progress: a function of the caller, or the terminal."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Function that reports progress: the task, finished steps, and all steps."""


class Display:
    """Display of progress. This one calls a function, if there is one, and shows no text."""

    is_log = False
    """True if steps are shown now and then only, each in a line that stays."""

    def __init__(self, step: Progress | None = None) -> None:
        self.step = step

    @classmethod
    def of(cls, progress: Progress | None) -> Display:
        """Return the display that a command was given, or one around a function."""
        return progress if isinstance(progress, Display) else cls(progress)

    def __call__(self, task: str, done: int, total: int) -> None:
        """Show the finished steps."""
        if self.step is not None:
            self.step(task, done, total)

    def rows(self, task: str, done: int, total: int) -> None:
        """Show the finished rows of a table; a total of 0 is unknown."""
        self(task, done, total)

    def line(self, text: str) -> None:
        """Show a line that stays."""

    def status(self, text: str) -> None:
        """Replace the line below the bar, if there is a bar."""
