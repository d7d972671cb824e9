"""The one door to the terminal: whatever comes through it is text, shown as it is and never obeyed.

Streams are taken as they are: closed, full, no longer read, or unable to write every character.
"""

from __future__ import annotations

import contextlib
import io
import json as jsonlib
import math
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.foreign import visible
from hydrasurgeon.files.processes import is_main_process

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hydrasurgeon.errors import HydraError
    from hydrasurgeon.options.shared import Progress as Tick


Part = str | tuple[str, str]
"""A piece of a line, or a piece and its style."""


COLUMNS = 80
"""The width of wrapped sentences."""
MOST_SKIPPED = 20
"""Samples that were left out which are named."""
COLOURED = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""What in the environment asks rich for a terminal's colours wherever a stream leads."""


def _print(*lines: Sequence[Part], stderr: bool = False) -> None:
    """Lines of parts: nothing in a part starts another, or means anything to the terminal."""
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
    """A piece and its style."""
    return (part, "") if isinstance(part, str) else part


def show(*parts: Part) -> None:
    """A line of the result, on stdout."""
    _print(parts)


def show_wrapped(text: str, indent: str = "  ") -> None:
    """A sentence of the result in lines of at most 80 columns, the first of them less indented."""
    for line in textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
    ):
        show(line)


NEXT = ContextVar("next", default=True)
"""Whether commands print which one usually follows."""


def show_next(*words: str) -> None:
    """Print the command that usually follows, on stderr as it is no result; a word in capitals stands
    for a file of the user.
    """
    if NEXT.get():
        say(f"next: {shlex.join(['hydrasurgeon', *words])}", style="dim")


def put(renderable: RenderableType, cells: int) -> None:
    """A table of so many columns on stdout, however wide that is."""
    from hydrasurgeon.render.terminal import Terminal

    with writing(sys.stdout):
        Terminal(width=cells).print(renderable)


_SAID = set[str]()
"""Lines about the work that this command has printed."""


def say(text: str, *, style: str = "") -> None:
    """A line about the work, on stderr."""
    _SAID.add(text)
    _print([(text, style)], stderr=True)


def say_skipped(reasons: Sequence[str]) -> None:
    """How many samples were left out, and why the first of them, on stderr."""
    if reasons:
        say(f"skipped: {len(reasons):,} sample{'s' * (len(reasons) > 1)}")
    for reason in reasons[:MOST_SKIPPED]:
        say(f"  {reason}")
    if len(reasons) > MOST_SKIPPED:
        say(f"  … and {len(reasons) - MOST_SKIPPED:,} more")


def failed(error: HydraError) -> None:
    """A user's mistake: what and where, one line for each detail, then what to do next."""
    more = [*error.details, *([error.hint] if error.hint else [])]
    head = (("error:", "bold red"), f" {error.message}")
    _print(head, *((" " * len("error: ") + line,) for line in more), stderr=True)


def as_json(value: Any) -> None:
    """Strict JSON in ASCII: no terminal, encoding or parser finds anything in it but JSON."""
    # json escapes everything else that is not printable.
    raw(
        jsonlib.dumps(_strict(value), indent=1, allow_nan=False, default=str).replace(
            "\x7f", r"\u007f"
        )
    )


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


def notes(texts: Iterable[str]) -> None:
    """Print notes that were not printed while the command worked."""
    for line in (f"note: {text}" for text in texts):
        if line not in _SAID:
            say(line)


def view(
    record: Callable[[Any], Any], *, measures: bool = False
) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Make a function that shows a result one that takes `json` and `quiet`.

    `record` returns what JSON holds of it. The result of a command that `measures` is what it
    prints, so `quiet` leaves out its notes alone.
    """

    def made(shown: Callable[[Any], None]) -> Callable[..., None]:
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

    return made


def fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    """A record of a result's path and of these fields."""
    return lambda result: {name: getattr(result, name) for name in ("path", *names)}


def prepare_streams() -> None:
    """Once in a process, before anything is opened or printed."""
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
    """What is still buffered goes out now, where its failure can be reported."""
    for stream in (sys.stdout, sys.stderr):
        with writing(stream):
            stream.flush()


@contextlib.contextmanager
def writing(stream: TextIO) -> Iterator[None]:
    """A reader who has gone is no error: the rest goes nowhere. A full device is one."""
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
"""Between two lines, where there is no terminal."""
PACE_SECONDS = 600.0
"""The time that is left is estimated from so long before: a step of a large model can take minutes.
"""
BAR_AND_TIME = 19
"""Columns that the bar and the time take; beside these and the counts the name gives way."""


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Tick | None]:
    """A bar with an ETA on a terminal, a plain line now and then elsewhere, nothing when quiet."""
    _SAID.clear()
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as tick:
            yield tick
    else:
        yield _plain()


@contextlib.contextmanager
def _bar() -> Iterator[Tick]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from hydrasurgeon.render.terminal import Terminal, styled

    console = Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=PACE_SECONDS
    ) as bar:
        task = bar.add_task("", total=None, visible=False, counts="")

        def show_counts(what: str, done: int, total: int, counts: str) -> None:
            if (total or None) != bar.tasks[0].total or done < bar.tasks[0].completed:  # other work
                bar.reset(task)
            text, room = visible(what), max(console.width - BAR_AND_TIME - len(counts), 1)
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

        def line(text: str) -> None:
            _SAID.add(text)
            console.print(styled(text))

        tick = _ticking(show_counts)
        tick.line = line  # type: ignore[attr-defined]
        yield tick


def _ticking(show_counts: Callable[[str, int, int, str], None]) -> Tick:
    """Return what reports steps; its `rows` reports rows of a table, 0 in all where that is not
    known.
    """

    def tick(what: str, done: int, total: int) -> None:
        show_counts(what, done, total, f"{done}/{total}")

    def rows(what: str, done: int, total: int) -> None:
        counts = f"{done:,} of {total:,} rows" if total else f"{done:,} rows"
        show_counts(what, done, total, counts)

    tick.rows = rows  # type: ignore[attr-defined]
    return tick


def _plain() -> Tick:
    last = start = time.monotonic()
    first, before, said = 0, (0, 0), ""

    def show_counts(what: str, done: int, total: int, counts: str) -> None:
        nonlocal last, start, first, before, said
        now = time.monotonic()
        if total != before[1] or done < before[0]:  # other work has a pace of its own
            start, first = now, done
        before = (done, total)
        if now - last >= PLAIN_EVERY_SECONDS:
            last = now
            left = 0
            if total and done > first:
                left = round((total - done) * (now - start) / (done - first))
            line = f"{what}: {counts}" + (f", {timedelta(seconds=left)} left" if left else "")
            if line != said:
                say(line)
            said = line

    tick = _ticking(show_counts)
    tick.line = say  # type: ignore[attr-defined]
    return tick
