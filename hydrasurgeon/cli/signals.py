"""Signals end a command as a shell expects: what was half done is cleaned up, one line says how to
go on, and the code is 128 + the signal's number.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hydrasurgeon.options.base import Options

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that end a command."""

_RECEIVED: list[int] = []
"""Those that came, in their order."""
_GO_ON: list[Callable[[], str]] = []
"""What each command that runs would say if it were ended, the one that was typed first."""


def ended(command: Callable[[], int]) -> int:
    """The exit code of `command`, which a signal may end at any moment."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a background job of a script
            signal.signal(number, _end)
    try:
        code = command()
    except BaseException:
        if not _RECEIVED:
            raise
        code = 1  # libraries turn an interruption into errors of their own
    if not (code and _RECEIVED):
        return code
    if _GO_ON:
        from hydrasurgeon import render

        render.say(_GO_ON[0](), fold=False)
    return 128 + _RECEIVED[0]


@contextmanager
def speaking(go_on: Callable[[], str]) -> Iterator[None]:
    """A command that, ended by a signal within the block, leaves what `go_on` says as its last
    line.
    """
    _GO_ON.append(go_on)
    try:
        yield
    except BaseException:
        if not _RECEIVED:
            _GO_ON.pop()
        raise
    _GO_ON.pop()


def _end(number: int, frame: FrameType | None) -> None:
    _RECEIVED.append(number)
    # Others do not disturb the cleaning up; the same one again ends it at once.
    for each in ENDING:
        signal.signal(each, signal.SIG_DFL if each == number else signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


STATES = (".training.safetensors", ".search.json")
"""Endings of files, beside what a command writes, that it goes on from."""
RESUMED = STATES[0]
"""Of these, what is gone on from when `--resume` says so."""


def typed(words: list[str]) -> str:
    """The command line that this process was started with, to be copied."""
    return shlex.join(["hydrasurgeon", *words])


def go_on(options: Options) -> str:
    """One line on what was saved, and how to go on."""
    words = sys.argv[1:]
    state = _state(options)
    if state is None:
        return f"interrupted: nothing was saved; to start over: {typed(words)}"
    if state.name.endswith(RESUMED):
        words += [] if "--resume" in words else ["--resume"]
    elif "--force" in words and not Path(str(getattr(options, "out", None))).exists():
        words.remove("--force")  # which would start over
    return f"interrupted: {state} holds what is done; to go on: {typed(words)}"


def _state(options: Options) -> Path | None:
    """What the command has left of its work."""
    work = getattr(options, "work", None)  # of build
    if isinstance(work, Path):
        return work if work.is_dir() else None
    place = Path(str(getattr(options, "out", None) or getattr(options, "checkpoint", None) or "-"))
    stem = f"{place.name.removesuffix('.safetensors')}."
    try:
        states = [
            path
            for path in place.parent.iterdir()
            if path.name.startswith(stem) and path.name.endswith(STATES)
        ]
    except OSError:
        return None
    return max(states, key=lambda path: path.stat().st_mtime, default=None)
