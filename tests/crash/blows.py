"""A blow that strikes a process at its n-th call that changes the disk.

The interpreter's audit hook tells of every file that is opened for writing and of every name that is made, changed or
removed, before it happens; fsync has no such event and is wrapped.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NAMES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
HOWS = {
    "kill": "SIGKILL",
    "power": "SIGKILL, and of files that were not synced only half is left",
    "EIO": "the call fails",
    "ENOSPC": "the call and all that follow and need space fail",
}


@dataclass
class Blow:
    """Counts the calls within `folder`; the one with the number `at` is struck, none if that is negative."""

    folder: Path
    how: str
    at: int
    log: int
    """A descriptor that is told which call was struck."""
    count: int = 0
    over: bool = False
    unsynced: set[str] = field(default_factory=set)

    def install(self) -> None:
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._call("fsync", path)
            sync(descriptor)
            self.unsynced.discard(path)

        os.fsync = fsync
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.over or not (event == "open" or event in NAMES) or isinstance(args[0], int):
            return
        path = self._path(args[0])
        if event == "open":
            if args[2] & WRITES:
                self._call("open", path)
                if self._within(path):
                    self.unsynced.add(path)
        else:
            self._call(event.removeprefix("os."), path)
            if event == "os.rename" and path in self.unsynced:
                self.unsynced ^= {path, self._path(args[1])}

    def _path(self, name: Any) -> str:
        return os.path.join(os.getcwd(), os.fsdecode(name))

    def _within(self, path: str) -> bool:
        return path.startswith(f"{self.folder}{os.sep}") or path == str(self.folder)

    def _call(self, what: str, path: str) -> None:
        if self.over or not self._within(path):
            return
        self.count += 1
        if self.count - 1 != self.at and not (self.how == "ENOSPC" and 0 <= self.at < self.count):
            return
        if self.count - 1 == self.at:
            os.write(self.log, f"{what} {os.path.relpath(path, self.folder)}\n".encode())
        if self.how in ("kill", "power"):
            self.over = True
            for lost in self.unsynced if self.how == "power" else ():
                if os.path.isfile(lost):
                    os.truncate(lost, os.path.getsize(lost) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "EIO" or what in ("open", "mkdir", "fsync"):
            number = getattr(errno, self.how)
            raise OSError(number, os.strerror(number), path)
