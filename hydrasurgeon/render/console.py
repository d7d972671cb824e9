"""The only access to the terminal: all output is text, shown literally and never interpreted.

Streams may be closed, full, no longer read, or unable to encode every character.
"""

from __future__ import annotations

import contextlib
import io
import json as jsonlib
import math
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.torchrun import is_main_process
from hydrasurgeon.files.untrusted import visible
from hydrasurgeon.options.column_roles import LABELS, ROLES
from hydrasurgeon.options.progress import Display

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hydrasurgeon.errors import HydraError


Part = str | tuple[str, str]
"""Piece of a line, optionally with its style."""


COLUMNS = 80
"""The width of wrapped sentences."""
MOST_SKIPPED = 20
"""Maximum number of skipped samples that are named."""
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Environment variables that make rich write a terminal's colours to any stream."""


def _print(*lines: Sequence[Part], stderr: bool = False) -> None:
    """Print lines of parts; no part can begin another one or control the terminal."""
    stream = sys.stderr if stderr else sys.stdout
    with writing(stream):
        if stream.isatty() or any(map(os.environ.get, COLOURED)):
            from hydrasurgeon.render.terminal import Terminal, styled

            console = Terminal(stderr=stderr)
            for line in lines:
                console.print(styled(*line))
            return
        for line in lines:
            stream.write("".join(visible(text) for text, _ in map(parted, line)) + "\n")
        stream.flush()


def parted(part: Part) -> tuple[str, str]:
    """Return a piece and its style."""
    return (part, "") if isinstance(part, str) else part


def show(*parts: Part) -> None:
    """Print a line of the result on stdout."""
    _print(parts)


def show_wrapped(text: str, indent: str = "  ") -> None:
    """Print a sentence of the result in lines of at most 80 columns, the first of them less indented."""
    for line in textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
    ):
        show(line)


NEXT = ContextVar("next", default=True)
"""True if commands print the command that usually follows."""


def show_next(*words: str) -> None:
    """Print the command that usually follows, on stderr as it is no result; a word in capitals stands
    for a file of the user.
    """
    if NEXT.get():
        say(f"next: {shlex.join(['hydrasurgeon', *words])}", style="dim")


def say_about_next(text: str) -> None:
    """Print what a word in capitals of the next command stands for."""
    if NEXT.get():
        say(f"      {text}", style="dim")


def put(renderable: RenderableType, cells: int) -> None:
    """Print a table of this width on stdout, however wide that is."""
    from hydrasurgeon.render.terminal import Terminal

    with writing(sys.stdout):
        Terminal(width=cells).print(renderable)


_SAID = set[str]()
"""Lines about the work that this command has printed."""


def say(text: str, *, style: str = "") -> None:
    """Print a line about the work on stderr."""
    _SAID.add(text)
    _print([(text, style)], stderr=True)


def say_skipped(reasons: Sequence[str]) -> None:
    """Print on stderr how many samples were skipped, and the reasons of the first."""
    if reasons:
        say(f"skipped: {len(reasons):,} sample{'s' * (len(reasons) > 1)}")
    for reason in reasons[:MOST_SKIPPED]:
        say(f"  {reason}")
    if len(reasons) > MOST_SKIPPED:
        say(f"  … and {len(reasons) - MOST_SKIPPED:,} more")


COLUMN_ROLE = re.compile(rf"'\S*?#[^'\s]*'|#(?:{'|'.join((*ROLES, LABELS))}),[\w%+~-]+")
"""A quoted data set, which may be part of a command to type, or the name of one column behind a data set."""


def without_columns(text: str) -> str:
    """Return `val.csv` for `val.csv#text,one#label,two`; parts of tables and quoted specs stay."""
    return COLUMN_ROLE.sub(lambda match: match[0] if match[0].startswith("'") else "", text)


def failed(error: HydraError) -> None:
    """Print a user's mistake: the problem and its place, one line for each detail, then what to do
    next.
    """
    more = [*map(without_columns, error.details), *([error.hint] if error.hint else [])]
    head = (("error:", "bold red"), f" {without_columns(error.message)}")
    _print(head, *((" " * len("error: ") + line,) for line in more), stderr=True)


def as_json(value: Any) -> None:
    """Print strict JSON in ASCII, which no terminal, encoding or parser can misread."""
    # json escapes everything else that is not printable.
    raw(
        jsonlib.dumps(_strict(value), indent=1, allow_nan=False, default=str).replace(
            "\x7f", r"\u007f"
        )
    )


def _strict(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON cannot express, by null."""
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def raw(text: str) -> None:
    """Print our own text on stdout, byte by byte."""
    with writing(sys.stdout):
        sys.stdout.write(text if text.endswith("\n") else text + "\n")


MOST_NOTES = 3
"""Maximum number of notes that are printed."""


def notes(texts: Iterable[str], most: int = MOST_NOTES) -> None:
    """Print the first notes that were not printed while the command worked; --json has all."""
    every_line = dict.fromkeys(without_columns(f"note: {text}") for text in texts)
    lines = [line for line in every_line if line not in _SAID]
    room = max(0, most - len(every_line) + len(lines))
    for line in lines[:room]:
        say(line)
    if len(lines) > room:
        more = len(lines) - room
        say(f"{more} more note{'s' * (more > 1)}: --json lists all")


def view(
    record: Callable[[Any], Any], *, measures: bool = False
) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Make a function that shows a result one that takes `json` and `quiet`.

    `record` returns what JSON holds of it. The result of a command that `measures` is what it
    prints, so `quiet` leaves out its notes alone.
    """

    def decorate(shown: Callable[[Any], None]) -> Callable[..., None]:
        def view_of(result: Any, *, json: bool, quiet: bool = False) -> None:
            if not is_main_process():
                return
            if json:
                as_json(record(result))
                return
            if not quiet:
                notes(getattr(result, "notes", ()))
            if measures or not quiet:
                shown(result)

        return view_of

    return decorate


def fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that makes a record of a result's path and these fields."""
    return lambda result: {name: getattr(result, name) for name in ("path", *names)}


def prepare_streams() -> None:
    """Prepare the streams, once per process, before anything is opened or printed."""
    # A closed descriptor would be the number of the next file opened: what is printed would land in
    # a checkpoint.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout, sys.stderr = sys.stdout or _writer(1), sys.stderr or _writer(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _writer(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def finish_streams() -> None:
    """Write out what is buffered, while a failure can still be reported."""
    for stream in (sys.stdout, sys.stderr):
        with writing(stream):
            stream.flush()


@contextlib.contextmanager
def writing(stream: TextIO) -> Iterator[None]:
    """Ignore that a reader has gone, and discard the rest of the output; raise OutputError for a
    full device.
    """
    try:
        yield
    except OSError as error:
        # Else what is buffered fails again when Python ends, with a message and an exit code of its
        # own.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"{stream.name.strip('<>')}: {error.strerror}") from error


PLAIN_EVERY_SECONDS = 5.0
"""Seconds between two lines of progress without a terminal."""
PACE_SECONDS = 600.0
"""Seconds over which the pace is averaged to estimate the remaining time: a step of a large model
can take minutes.
"""
BAR_AND_TIME = 19
"""Columns for the bar and the time; the name gets what remains beside these and the counts."""


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Display | None]:
    """Show a bar with an ETA on a terminal, a plain line now and then elsewhere, nothing when
    quiet.
    """
    _SAID.clear()
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as display:
            yield display
    else:
        yield _Log()


@contextlib.contextmanager
def _bar() -> Iterator[Display]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from hydrasurgeon.render.terminal import Terminal, styled

    class Bar(Progress):
        """Progress bar with a line below it."""

        status = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield from super().get_renderables()
            if self.status:
                yield styled(self.status[: console.width - 1])

    console = Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    with Bar(*columns, console=console, transient=True, speed_estimate_period=PACE_SECONDS) as bar:
        task = bar.add_task("", total=None, visible=False, counts="")

        class BarDisplay(_Counts):
            """The bar, lines above it, and the status below it."""

            def show_counts(self, task_name: str, done: int, total: int, counts: str) -> None:
                if (total or None) != bar.tasks[0].total or done < bar.tasks[0].completed:
                    bar.reset(task)  # other work
                text = visible(without_columns(task_name))
                room = max(console.width - BAR_AND_TIME - len(counts), 1)
                # The end of a name that is too long says more than its beginning.
                name = text if len(text) <= room else f"…{text[1 - room :]}"
                bar.update(
                    task,
                    description=name,
                    visible=True,
                    total=total or None,
                    completed=done,
                    counts=counts,
                )

            def line(self, text: str) -> None:
                text = without_columns(text)
                _SAID.add(text)
                console.print(styled(text))

            def status(self, text: str) -> None:
                bar.status = text

        yield BarDisplay()


class _Counts(Display):
    """Display of steps and of rows as a text."""

    def __call__(self, task_name: str, done: int, total: int) -> None:
        self.show_counts(task_name, done, total, f"{done}/{total}")

    def rows(self, task_name: str, done: int, total: int) -> None:
        counts = f"{done:,} of {total:,} rows" if total else f"{done:,} rows"
        self.show_counts(task_name, done, total, counts)

    def show_counts(self, task_name: str, done: int, total: int, counts: str) -> None:
        """Show how far a task is; `counts` says it in words."""
        raise NotImplementedError


class _Log(_Counts):
    """A line now and then on stderr."""

    is_log = True

    def __init__(self) -> None:
        super().__init__()
        self.last = self.start = time.monotonic()
        self.first, self.before, self.last_line = 0, (0, 0), ""

    def show_counts(self, task_name: str, done: int, total: int, counts: str) -> None:
        now = time.monotonic()
        if total != self.before[1] or done < self.before[0]:  # other work has a pace of its own
            self.start, self.first = now, done
        self.before = (done, total)
        if now - self.last >= PLAIN_EVERY_SECONDS:
            self.last = now
            left = 0
            if total and done > self.first:
                left = round((total - done) * (now - self.start) / (done - self.first))
            line = f"{without_columns(task_name)}: {counts}" + (
                f", {timedelta(seconds=left)} left" if left else ""
            )
            if line != self.last_line:
                self.line(line)
            self.last_line = line

    def line(self, text: str) -> None:
        say(without_columns(text))
