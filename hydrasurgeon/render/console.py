"""Where things are printed: errors, notes, progress, JSON, and the pieces that several tables share."""

from __future__ import annotations

import contextlib
import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from hydrasurgeon.heads import Kept

if TYPE_CHECKING:
    from hydrasurgeon.errors import HydraError
    from hydrasurgeon.files.manifest import Tower


__all__ = ["as_json", "err", "failed", "out", "picture", "progress", "raw", "say", "size"]

PLAIN_EVERY_SECONDS = 10.0


def out() -> Console:
    """A terminal has its own width; a file or a pipe must not cut lines."""
    return (
        Console(highlight=False, emoji=False)
        if sys.stdout.isatty()
        else Console(highlight=False, emoji=False, width=200)
    )


def err() -> Console:
    return Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def failed(error: HydraError) -> None:
    """A user's mistake: what and where, then what to do next."""
    console = err()
    console.print(f"[bold red]error:[/] {escape(error.message)}")
    if error.hint:
        console.print(f"       {escape(error.hint)}")


def raw(text: str) -> None:
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def say(text: str, *, style: str = "") -> None:
    err().print(escape(text), style=style)


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar with an ETA on a terminal, a plain line now and then elsewhere, nothing when quiet."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err(), transient=True) as bar:
            task = bar.add_task("", total=None)
            yield lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            )
    else:
        yield _plain_progress()


def _plain_progress() -> Callable[[str, int, int], None]:
    last: float | None = None

    def tick(what: str, done: int, total: int) -> None:
        nonlocal last
        if last is None:
            last = time.monotonic()
        if time.monotonic() - last >= PLAIN_EVERY_SECONDS:
            last = time.monotonic()
            say(f"{what}: {done}/{total}")

    return tick


def picture(console: Console, kept: Kept, towers: Mapping[str, Tower]) -> None:
    """A row for each layer: ■ kept, · removed."""
    for name, rows in kept.items():
        for layer, row in enumerate(rows):
            cells = "".join("■" if head in row else "·" for head in range(towers[name].heads))
            prefix = f"{name} " if len(kept) > 1 else ""
            console.print(f"    {prefix}{layer:2d} {cells} {len(row)}")


def size(nbytes: int) -> str:
    amount = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def as_json(value: Any) -> None:
    raw(jsonlib.dumps(value, indent=1))
