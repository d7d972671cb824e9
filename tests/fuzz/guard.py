"""What a hostile input may do: be read, or be refused by a HydraError. Everything else is noticed here.

The audit hook of the interpreter tells of every file that Python opens and every name it makes, of processes,
sockets and pickles; a folder is compared before and after. What an input may touch is its own sandbox.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydrasurgeon
from hydrasurgeon.errors import HydraError, HydraWarning

OS = (
    "rename",
    "remove",
    "mkdir",
    "rmdir",
    "symlink",
    "link",
    "truncate",
    "chmod",
    "chown",
    "utime",
)
MADE = {*(f"os.{name}" for name in OS), "shutil.rmtree", "shutil.copyfile", "shutil.move"}
NEVER = {
    *(
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.fork",
        "os.forkpty",
        "subprocess.Popen",
    ),
    *(
        "socket.connect",
        "socket.getaddrinfo",
        "socket.bind",
        "socket.sendto",
        "urllib.Request",
        "http.client.connect",
    ),
    *("pickle.find_class", "webbrowser.open"),
}
# Where an interpreter and its libraries read from, whatever the input; and what may be opened to see that it is no
# file.
READABLE = (
    *("/proc", "/sys", "/usr", "/lib", "/dev/zero", "/dev/null", "/dev/urandom"),
    *("/etc/mime.types", "/etc/localtime", "/etc/ssl", "/etc/nsswitch.conf"),
)
MEMORY = 2 << 30
"""More than this, besides what the libraries take, is too much."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Link(str):
    """In an attempt's files: a symbolic link to this."""


class Fifo:
    """In an attempt's files: a pipe that nobody writes to."""


@dataclass(frozen=True)
class Attempt:
    """One hostile input: its files, and what reads them."""

    files: Mapping[str, bytes | Link | Fifo | Path]
    """By relative path; a Path is copied, b"" with a name that ends in / is a folder."""
    call: Callable[[Path, Path], object]
    """(folder of the files, folder for outputs) → anything, or a HydraError."""
    command: tuple[str, ...]
    """The same through the command; {} stands for the folder of the files, {out} for that of outputs."""
    reads: bool = False
    """Whether its files may name others anywhere, as lists of images do: to be read, and nothing else."""
    writes: bool = False
    """Whether the command writes beside its files, as one that goes on from a state does."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: an exit code, or what should not have happened."""

    code: int
    problem: str | None = None
    where: str = ""


@dataclass
class _Watch:
    """What the audit hook knows; there is one hook in a process, and it stays."""

    roots: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    links: bool = True
    """Whether the sandbox holds links, so that a name inside may lead out."""
    reads: bool = False
    """Whether files elsewhere may be read."""
    on: bool = False
    noticed: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            self._opened(*arguments)
        elif event in NEVER:
            self.noticed.append(f"{event} {str(arguments)[:200]}")
        elif event in MADE:
            for path in arguments[: 2 if event in ("os.rename", "os.link", "shutil.move") else 1]:
                if isinstance(path, str | bytes | os.PathLike) and not self._inside(path):
                    self.noticed.append(f"{event} {os.fsdecode(path)[:200]}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        writes = (
            bool(flags & WRITES) if isinstance(flags, int) else bool(set(mode or "r") & set("wax+"))
        )
        if self._inside(path):
            return
        name = os.path.realpath(os.fsdecode(path))
        if name == os.devnull or (not writes and (self.reads or name.startswith(self.readable))):
            return
        self.noticed.append(f"{'written' if writes else 'read'}: {name[:200]}")

    def _inside(self, path: Any) -> bool:
        name = os.fsdecode(path)
        if "\0" in name:
            return True  # no file can be called so
        return ((os.path.realpath if self.links else os.path.abspath)(name) + os.sep).startswith(
            self.roots
        )


_watch = _Watch()
_hooked = False


class Sandbox:
    """A folder in which one attempt after the other is laid out and watched."""

    def __init__(self, root: Path, *, readable: tuple[Path, ...] = ()) -> None:
        global _hooked
        self.inside, self.out, self.tmp = root / "in", root / "out", root / "tmp"
        for folder in (self.inside, self.out, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        self.roots = tuple(
            os.path.realpath(folder) + os.sep for folder in (self.inside, self.out, self.tmp)
        )
        # Decoys: what an input may name with ../ is there to be read.
        (root / "outside.json").write_text("{}")
        (root / "outside.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
        package = Path(hydrasurgeon.__file__).resolve().parents[1]
        library = {
            sys.prefix,
            sys.base_prefix,
            sys.exec_prefix,
            *(p for p in sys.path if "site-packages" in p),
        }
        self.readable = (*READABLE, *library, str(package), *map(str, readable))
        if not _hooked:
            sys.addaudithook(_watch)
            _hooked = True

    def lay_out(self, attempt: Attempt) -> None:
        for name, content in attempt.files.items():
            path = self.inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            elif isinstance(content, Link):
                path.symlink_to(content)
            elif isinstance(content, Fifo):
                os.mkfifo(path)
            elif isinstance(content, Path):
                os.link(content, path)
            else:
                path.write_bytes(content)

    def run(self, attempt: Attempt) -> Outcome:
        """In process, as a library call."""
        return self._judged(attempt, lambda: attempt.call(self.inside, self.out))

    def run_command(self, attempt: Attempt) -> Outcome:
        """In process, through the command's parser and its rendering."""
        from fuzz.command import run_here

        arguments = self.arguments(attempt)
        return self._judged(attempt, lambda: run_here(arguments), writes=attempt.writes)

    def arguments(self, attempt: Attempt) -> list[str]:
        return [
            part.replace("{}", str(self.inside)).replace("{out}", str(self.out))
            for part in attempt.command
        ]

    def _judged(
        self, attempt: Attempt, call: Callable[[], object], *, writes: bool = False
    ) -> Outcome:
        self.lay_out(attempt)
        before = None if writes else self._seen()
        try:
            _watch.reads = attempt.reads
            _watch.links = any(isinstance(content, Link) for content in attempt.files.values())
            with self._watched() as said:
                outcome = _outcome(call)
            if outcome.problem is None:
                problem = self._unwanted(before, said)
                outcome = outcome if problem is None else Outcome(outcome.code, problem)
            return outcome
        finally:
            self.clear()

    def _unwanted(self, before: set[Any] | None, said: list[str]) -> str | None:
        if _watch.noticed:
            return f"touched what is not its own: {'; '.join(_watch.noticed[:3])}"
        if said:
            return f"printed: {said[0][:300]}"
        if before is not None and self._seen() != before:
            return "changed its input's folder"
        # torch makes a folder of this name when a part of it is first imported.
        names = [entry.name for entry in os.scandir(self.tmp)]
        left = [name for name in names if not name.startswith("torchinductor_")]
        return f"left a temporary file: {left[0]}" if left else None

    def _seen(self) -> set[Any]:
        seen = set()
        folders = [os.fspath(self.inside)]
        while folders:
            for entry in os.scandir(folders.pop()):
                about = entry.stat(follow_symlinks=False)
                seen.add((entry.path, about.st_size, about.st_mtime_ns))
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
        return seen

    def clear(self) -> None:
        for folder in (self.inside, self.out, self.tmp):
            for entry in os.scandir(folder):
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(
                    entry.path
                )

    @contextlib.contextmanager
    def _watched(self) -> Iterator[list[str]]:
        said: list[str] = []

        def shown(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            if not issubclass(category, HydraWarning):  # a command's own notes
                said.append(f"{category.__name__}: {message} ({filename}:{lineno})")

        _watch.roots, _watch.readable, _watch.noticed = self.roots, self.readable, []
        here, saved = os.getcwd(), os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(self.tmp)
        import tempfile

        tempfile.tempdir = str(self.tmp)
        os.chdir(self.inside)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = shown
            _watch.on = True
            try:
                yield said
            finally:
                _watch.on = False
                os.chdir(here)
                tempfile.tempdir = None
                if saved is None:
                    del os.environ["TMPDIR"]
                else:
                    os.environ["TMPDIR"] = saved


def _outcome(call: Callable[[], object]) -> Outcome:
    try:
        result = call()
    except HydraError as error:
        return Outcome(error.exit_code, _badly_said(error))
    except (Exception, SystemExit) as error:  # whatever it is, it is what we look for
        return Outcome(-1, f"{type(error).__name__}: {str(error)[:300]}", place(error))
    return result if isinstance(result, Outcome) else Outcome(0)


def _badly_said(error: HydraError) -> str | None:
    """A message must be printable, short, and say where."""
    said = f"{error.message} {error.hint or ''}"
    if len(said) > 4000:
        return f"a message of {len(said)} characters: {said[:100]}"
    return None


def place(error: BaseException) -> str:
    """The innermost line of ours, and of anyone."""
    ours = last = ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        last = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
        if f"{os.sep}hydrasurgeon{os.sep}" in code.co_filename:
            ours = f"{code.co_filename.rpartition('/hydrasurgeon/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return ours if ours.endswith(last) else f"{ours} → {last}"


def memory_limit() -> int | None:
    """Address space for what libraries have taken already, and MEMORY more; None where the system does not tell."""
    table = Path("/proc/self/statm")
    if not table.exists():
        return None
    return int(table.read_text().split()[0]) * resource.getpagesize() + MEMORY
