"""stdout and stderr as they may be found: closed, full, no longer read, or unable to write every character."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from hydrasurgeon.errors import OutputError


def prepare_streams() -> None:
    """Once in a process, before anything is opened or printed."""
    # A closed descriptor would be the number of the next file opened: what is printed would land in a checkpoint.
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
        # Else what is buffered fails again when Python ends, with a message and an exit code of its own.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"{stream.name.strip('<>')}: {error.strerror}") from error
