"""How far the work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from hydrasurgeon.files.foreign import visible
from hydrasurgeon.options.shared import Progress as Tick
from hydrasurgeon.render.console import err, say

PLAIN_EVERY_SECONDS = 10.0
"""Between two lines, where there is no terminal."""
PACE_SECONDS = 600.0
"""The time that is left is estimated from so long before: a step of a large model can take minutes."""
NUMBERS = 34
"""Columns that the bar, the counts and the time take; the name gives way, never these."""


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Tick | None]:
    """A bar with an ETA on a terminal, a plain line now and then elsewhere, nothing when quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as tick:
            yield tick
    else:
        yield _plain()


@contextlib.contextmanager
def _bar() -> Iterator[Tick]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = err()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=8),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=PACE_SECONDS) as bar:
        task = bar.add_task("", total=None)

        def tick(what: str, done: int, total: int) -> None:
            if total != bar.tasks[0].total or done < bar.tasks[0].completed:  # other work
                bar.reset(task)
            text, room = visible(what), max(console.width - NUMBERS, 1)
            # The end of a name that is too long says more than its beginning.
            name = text if len(text) <= room else f"…{text[1 - room :]}"
            bar.update(task, description=name, completed=done, total=total)

        yield tick


def _plain() -> Callable[[str, int, int], None]:
    last = start = time.monotonic()
    first, before = 0, (0, 0)

    def tick(what: str, done: int, total: int) -> None:
        nonlocal last, start, first, before
        now = time.monotonic()
        if total != before[1] or done < before[0]:  # other work has a pace of its own
            start, first = now, done
        before = (done, total)
        if now - last >= PLAIN_EVERY_SECONDS:
            last = now
            left = round((total - done) * (now - start) / (done - first)) if done > first else 0
            say(f"{what}: {done}/{total}" + (f", {timedelta(seconds=left)} left" if left else ""))

    return tick
