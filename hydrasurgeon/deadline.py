"""A time limit that long loops check between two steps. The caller that sets it needs no argument in
any function between itself and the loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar


class TimeIsUp(KeyboardInterrupt):
    """Raised between two steps once the time limit has passed: ends the work, as Ctrl-C does."""


_CHECK: ContextVar[Callable[[], None]] = ContextVar("check", default=lambda: None)
"""Function that raises once the work must end."""


def check_deadline() -> None:
    """Raise what ends the work, such as TimeIsUp, if the time limit has passed."""
    _CHECK.get()()


@contextlib.contextmanager
def deadline(check: Callable[[], None]) -> Iterator[None]:
    """Let loops call `check` between two steps within the block."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)
