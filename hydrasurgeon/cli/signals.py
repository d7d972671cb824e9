"""Signals end a command as a shell expects: what was half done is cleaned up, one line names the
command that goes on or starts again, and the code is 128 + the signal's number.
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

AGAIN = {"demo": ("--force",)}
"""Options with which commands start again that leave finished files behind."""

_RECEIVED: list[int] = []
"""Signals that came, in their order."""


def ended(command: Callable[[], int]) -> int:
    """Return the exit code of `command`, which a signal may end at any moment."""
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
    if "hydrasurgeon.render" in sys.modules and sys.argv[1:2] != ["serve"]:  # which says it itself
        from hydrasurgeon import render
        from hydrasurgeon.files.torchrun import is_main_process

        if is_main_process():
            render.say(_to_repeat())
    return 128 + _RECEIVED[0]


def _to_repeat() -> str:
    """Return the line that says which command goes on, or starts the work again."""
    from hydrasurgeon.files.resumable import CONTINUED_BY

    name = next(iter(sys.argv[1:]), "")
    options = CONTINUED_BY.get(name, AGAIN.get(name, ()))
    missing = [option for option in options if option not in sys.argv]
    purpose = "go on" if name in CONTINUED_BY else "start again"
    return f"interrupted; to {purpose}: {shlex.join(['hydrasurgeon', *sys.argv[1:], *missing])}"


def _end(number: int, frame: FrameType | None) -> None:
    _RECEIVED.append(number)
    # Others do not disturb the cleaning up; the same one again ends it at once.
    for signal_number in ENDING:
        signal.signal(signal_number, signal.SIG_DFL if signal_number == number else signal.SIG_IGN)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
