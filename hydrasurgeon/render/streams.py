"""stdout and stderr as they may be found: closed, full, no longer read, or unable to write every character."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from hydrasurgeon.errors import OutputError
from hydrasurgeon.visible import escaped

# What our own tables and sentences are drawn with, where a stream knows ASCII only.
ASCII = {
    "■": "#",
    "·": ".",
    "–": "-",
    "—": "-",
    "×": "x",
    "→": "->",
    "←": "<-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "↑": "^",
    "↓": "v",
}
ERRORS = "hydrasurgeon.visible"
"""Our way to write what a stream cannot encode, by its name in `codecs`."""


def prepare_streams() -> None:
    """Once in a process, before anything is opened or printed."""
    _fill_closed()
    codecs.register_error(ERRORS, _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


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
    except BrokenPipeError:
        _drop(stream)
    except OSError as error:
        _drop(stream)
        raise OutputError(f"{stream.name.strip('<>')}: {error.strerror}") from error


def _drop(stream: TextIO) -> None:
    """Else what is buffered fails again when Python ends, with a message and an exit code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _fill_closed() -> None:
    """A closed descriptor would be the number of the next file opened, and what is printed would land in a
    checkpoint."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout = sys.stdout or _writer(1)
    sys.stderr = sys.stderr or _writer(2)


def _writer(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", closefd=False)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    """What to write instead of characters that a stream's encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(ASCII.get(c) or escaped(c) for c in unknown), error.end
