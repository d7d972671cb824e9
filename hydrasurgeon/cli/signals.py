"""Signals end a command as a shell expects: what was half done is cleaned up, one line says how to
go on, and the code is 128 + the signal's number.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable
from types import FrameType

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that end a command."""

_RECEIVED: list[int] = []
"""Those that came, in their order."""


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
    if "hydrasurgeon.render" in sys.modules:  # the command had begun
        from hydrasurgeon import render

        again = shlex.join(["hydrasurgeon", *sys.argv[1:]])
        render.say(f"interrupted; to go on: {again}")
    return 128 + _RECEIVED[0]


def _end(number: int, frame: FrameType | None) -> None:
    _RECEIVED.append(number)
    # Others do not disturb the cleaning up; the same one again ends it at once.
    for each in ENDING:
        signal.signal(each, signal.SIG_DFL if each == number else signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
