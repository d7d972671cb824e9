"""How far the work is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.cells import cell_len

from hydrasurgeon.options.shared import Progress as Tick
from hydrasurgeon.render.console import err, say
from hydrasurgeon.visible import visible

PLAIN_EVERY_SECONDS = 10.0
"""Between two lines, where there is no terminal."""
PACE_SECONDS = 600.0
"""The time that is left is estimated from so long before: a step of a large model can take minutes."""


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
    bar_cells = 20 if console.width >= 60 else 8
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=bar_cells),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=PACE_SECONDS) as bar:
        task = bar.add_task("", total=None)
        pace = _Pace()

        def tick(what: str, done: int, total: int) -> None:
            if pace.is_other_work(done, total):
                bar.reset(task)
            # The name gives way, never the numbers: of both counts, the slash, the time and the gaps.
            room = console.width - bar_cells - 2 * len(str(total)) - len("/") - TIME_CELLS - GAPS
            bar.update(task, description=_tail(visible(what), room), completed=done, total=total)

        yield tick


TIME_CELLS = len("1:23:45")
"""Columns that the time takes."""
GAPS = 4
"""Columns between the bar's parts."""


def _tail(text: str, room: int) -> str:
    """The end of a name that is too long tells more than its beginning."""
    room = max(room, 1)
    if cell_len(text) <= room:
        return text
    end = text[len(text) - room :]
    while cell_len(end) > room - 1:
        end = end[1:]
    return f"…{end}"


class _Pace:
    """How fast one kind of work is; counting that starts over is other work."""

    def __init__(self) -> None:
        self.start, self.first, self.done, self.total = time.monotonic(), 0, 0, -1

    def is_other_work(self, done: int, total: int) -> bool:
        other = total != self.total or done < self.done
        if other:
            self.start, self.first = time.monotonic(), done
        self.done, self.total = done, total
        return other

    def left(self) -> float | None:
        """Seconds that the rest takes at this pace; None before anything was done."""
        did = self.done - self.first
        return (self.total - self.done) * (time.monotonic() - self.start) / did if did else None


def _plain() -> Callable[[str, int, int], None]:
    last: float | None = None
    pace = _Pace()

    def tick(what: str, done: int, total: int) -> None:
        nonlocal last
        pace.is_other_work(done, total)
        if last is None:
            last = time.monotonic()
        if time.monotonic() - last >= PLAIN_EVERY_SECONDS:
            last = time.monotonic()
            left = pace.left()
            say(f"{what}: {done}/{total}" + (f", {duration(left)} left" if left else ""))

    return tick


def duration(seconds: float) -> str:
    """0:07, 12:34, 5:06:07."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
