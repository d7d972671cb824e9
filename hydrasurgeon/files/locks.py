"""Who may write an output: one process at a time, from the first check to the last rename.

A lock is an advisory lock on `.NAME.exclusive.lock` beside the output. The system lets go of it when its process ends,
however
that ends, so a lock file that a killed run left behind locks nobody out.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

from hydrasurgeon.errors import OutputError
from hydrasurgeon.run import is_main_process

P = ParamSpec("P")
R = TypeVar("R")

if sys.platform == "win32":
    import msvcrt

    def _take(lock: int) -> None:
        os.lseek(lock, 1 << 30, os.SEEK_SET)  # far behind the text, which others must read
        msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _take(lock: int) -> None:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


BUSY = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
"""What a lock that somebody holds answers."""

_CLAIMS: ContextVar[contextlib.ExitStack | None] = ContextVar("claims", default=None)
"""What the innermost block of `claims` holds."""
_HELD: set[int] = set()
"""Descriptors of the locks this process holds."""


@contextlib.contextmanager
def claims() -> Iterator[None]:
    """Outputs that are claimed within the block are held until it ends."""
    with contextlib.ExitStack() as stack:
        token = _CLAIMS.set(stack)
        try:
            yield
        finally:
            _CLAIMS.reset(token)


def releases_claims(stage: Callable[P, R]) -> Callable[P, R]:
    """A stage that holds the outputs it claims until it returns."""

    @functools.wraps(stage)
    def inner(*args: P.args, **kwargs: P.kwargs) -> R:
        with claims():
            return stage(*args, **kwargs)

    return inner


def hold(path: Path, *, option: str) -> None:
    """Make `path` this process's to write, until the enclosing `claims` end; refused while another holds it."""
    stack = _CLAIMS.get()
    assert stack is not None, "outputs are claimed inside `claims`"
    if is_main_process():
        stack.enter_context(_held(path, option))


@contextlib.contextmanager
def _held(path: Path, option: str) -> Iterator[None]:
    # Longer than every temporary name, so that what could not be written is refused here.
    place = path.with_name(f".{path.name}.exclusive.lock")
    try:
        lock = _opened(place, path, option)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{option} {path}: cannot be written ({reason})") from error
    _HELD.add(lock)
    try:
        yield
    finally:
        if lock in _HELD:  # a forked worker has let go of it
            with contextlib.suppress(OSError):  # on Windows an open file cannot go
                place.unlink()
            _HELD.discard(lock)
            os.close(lock)


def _opened(place: Path, path: Path, option: str) -> int:
    """The locked file's descriptor. Whoever waited for a file that was just removed begins again."""
    while True:
        lock = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _take(lock)
        except OSError as error:
            if error.errno in BUSY:
                os.lseek(lock, 0, os.SEEK_SET)
                holder = os.read(lock, 200).decode(errors="replace").strip()
                os.close(lock)
                raise _taken(path, option, holder) from error
            # A file system without locks: unique names still keep every single file whole.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), place.stat()):
                break
        os.close(lock)
    os.ftruncate(lock, 0)
    os.lseek(lock, 0, os.SEEK_SET)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _taken(path: Path, option: str, holder: str) -> OutputError:
    if holder == str(os.getpid()):
        return OutputError(f"{option} {path}: is written by this command already", hint="Give another name.")
    who = f" (process {holder})" if holder.isdigit() else ""
    return OutputError(
        f"{option} {path}: another hydrasurgeon is writing it{who}", hint="Wait for it to end, or give another name."
    )


def _let_go() -> None:
    """A forked worker must not hold what its parent claimed: it may outlive it."""
    for lock in _HELD:
        os.close(lock)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
