"""Signals end a command as a shell expects: what was half done is cleaned up, one line says how to go on, and the code
is 128 + the signal's number."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
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
    """A command that, ended by a signal within the block, leaves what `go_on` says as its last line."""
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
