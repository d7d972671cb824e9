"""Outputs: claimed before the work begins, written beside their place, and put there whole.

One process at a time may write an output: it holds a lock on `.NAME.exclusive.lock` beside it,
which the system lets go of when the process ends, however that ends. What is being written is
called `.NAME.<random>.part`, a folder that is being replaced `.NAME.<random>.old`. Only who holds
the lock writes such files, so those he meets are left over from a killed run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from hydrasurgeon.errors import OutputError, UsageError
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.files.torchrun import is_main_process

SUFFIX = ".safetensors"
"""Suffix of outputs that are one file; all others are directories."""
UNTOUCHED = "Nothing was left half-written."
"""The hint of a write that failed and left all as it was."""
_CLAIMS: ContextVar[contextlib.ExitStack | None] = ContextVar("claims", default=None)
"""Locks of the innermost block of `claims`."""


@contextlib.contextmanager
def claims() -> Iterator[None]:
    """Hold outputs that are claimed within the block, or in a decorated function."""
    with contextlib.ExitStack() as stack:
        token = _CLAIMS.set(stack)
        try:
            yield
        finally:
            _CLAIMS.reset(token)


def hold(path: Path, *, option: str) -> None:
    """Make `path` this process's to write, until the enclosing `claims` end; refused while it is
    held.
    """
    stack = _CLAIMS.get()
    assert stack is not None, "outputs are claimed inside `claims`"
    if not is_main_process():
        return
    from filelock import FileLock, Timeout  # a third of what `inspect` imports

    # Longer than every temporary name, so that what could not be written is refused here.
    place = path.with_name(f".{path.name}.exclusive.lock")
    lock = FileLock(place)
    try:
        # filelock takes some refusals of the system for a lock that is held.
        os.close(os.open(place, os.O_RDWR | os.O_CREAT, 0o666))
        lock.acquire(blocking=False)
    except Timeout as error:
        raise OutputError(
            f"{option} {path}: this command or another hydrasurgeon is writing it",
            hint="Wait for it to end, or give another name.",
        ) from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{option} {path}: cannot be written ({reason})") from error
    stack.callback(lock.release)
    stack.callback(remove, place)


def named(out: str | Path) -> tuple[Path, bool]:
    """Return `-o` as a path with its suffix, and whether it is a folder.

    A folder is a text that ends in a slash, or a folder that exists.
    """
    path, text = Path(out), str(out)
    folder = text.endswith(("/", os.sep)) or os.path.isdir(path)
    if folder and path.suffix == SUFFIX:
        raise OutputError(
            f"-o {text}: a directory's name may not end in {SUFFIX}", hint="Give another -o."
        )
    if not folder and path.suffix != SUFFIX:
        path = path.with_name(path.name + SUFFIX)
    return path, folder


def output_path(out: str | Path, *, force: bool, inputs: Iterable[object] = ()) -> Path:
    """Claim `-o`, and return it as a path: NAME.safetensors, NAME (suffix added) or a directory.

    An existing output is refused without `force`.
    """
    path, folder = named(out)
    path = real(path)
    if folder and (_within(Path(), path) or os.path.ismount(path)):
        raise OutputError(
            f"-o {out}: this folder cannot be replaced as a whole", hint="Name a new folder."
        )
    beside = () if folder else (sidecar(path),)
    return claim(path, *beside, option="-o", force=force, inputs=inputs, folder=folder)


def output_file(
    path: str | Path,
    *,
    option: str,
    force: bool,
    inputs: Iterable[object] = (),
    folder: bool = False,
) -> Path:
    """Claim a file, or a folder, that an option names; refuse an existing one without `force`."""
    return claim(real(Path(path)), option=option, force=force, inputs=inputs, folder=folder)


def claim(
    path: Path,
    *beside: Path,
    option: str,
    force: bool,
    inputs: Iterable[object] = (),
    folder: bool = False,
) -> Path:
    """Keep others from writing `path` and what will lie beside it; refused where that is an input,
    or is there.
    """
    places = (path, *beside)
    if not os.path.isdir(path.parent):
        raise OutputError(f"{path.parent}: no such directory", hint="Create it first.")
    sources = [source for argument in inputs for source in _named(argument)]
    for place in places:
        wrong = _other_kind(place, folder=folder)
        if wrong is None and os.path.exists(place):
            wrong = next(
                (
                    f"{s} is an input of this command"
                    for s in sources
                    if os.path.samefile(place, s) or _within(place, s) or _within(s, place)
                ),
                None,
            )
        if wrong is not None:
            raise OutputError(f"{option} {place}: {wrong}", hint=f"Give another {option}.")
    hold(path, option=option)
    sweep(*places)
    existing = next((place for place in places if _is_taken(place)), None)
    if existing is not None and not force:
        raise OutputError(
            f"{existing}: already exists", hint=f"Give --force to replace it, or another {option}."
        )
    return path


def check_ending(path: str | Path, *endings: str, option: str, hint: str | None = None) -> None:
    """Refuse an output whose name says another format."""
    if Path(path).suffix not in endings:
        raise UsageError(f"{option} {path}: must end in {' or '.join(endings)}", hint=hint)


def make_folder(path: Path) -> None:
    """Create a folder for intermediate files, with those above it; it may exist."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made ({error.strerror})") from error


def real(path: Path) -> Path:
    """Return the target of a link, so that the link stays and its target is replaced."""
    leads_on = os.path.islink(path) or path.name in ("", "..")
    return Path(os.path.realpath(path)) if leads_on else path


def _other_kind(place: Path, *, folder: bool) -> str | None:
    """Return why a file or a folder cannot take this place; None if it can."""
    with contextlib.suppress(OSError, ValueError):
        mode = place.stat().st_mode
        if folder and not stat.S_ISDIR(mode):
            return "is not a directory"
        if not folder and not stat.S_ISREG(mode):
            return "is a directory" if stat.S_ISDIR(mode) else "is not a regular file"
    return None


def _within(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _named(argument: object) -> Iterator[Path]:
    """Yield the files and folders that an argument names.

    Checkpoints may be NAME=A+B; data may be D, NAME=D or near:NAME=D.
    """
    if isinstance(argument, (list, tuple)):
        for part in argument:
            yield from _named(part)
    elif argument is not None:
        text = str(argument)
        specs = {text, text.partition("=")[2], text.rpartition("=")[2]}
        for name in specs.union(*(spec.split("+") for spec in specs)) - {""}:
            paths = (
                Path(name),
                Path(name + SUFFIX),
                sidecar(Path(name.removesuffix(SUFFIX) + SUFFIX)),
            )
            yield from (path for path in paths if os.path.exists(path))


def _is_taken(place: Path) -> bool:
    """Return True if something would be replaced; an empty folder is nothing."""
    if place.is_dir():
        return any(place.iterdir())
    return os.path.lexists(place)


def sweep(*places: Path) -> None:
    """Remove what killed runs left of these outputs, and put back a folder that one had set aside."""
    if not is_main_process():
        return
    with contextlib.suppress(OSError):  # what cannot be cleaned harms nobody
        for place in places:
            left = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{8}}\.(part|old)")
            for path in sorted(
                place.with_name(name) for name in os.listdir(place.parent) if left.fullmatch(name)
            ):
                if path.suffix == ".old" and not os.path.lexists(place):
                    path.rename(place)
                remove(path)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file, completely or not at all."""
    with replacing(path) as (part,):
        fill(part, content)


def fill(path: Path, content: bytes) -> None:
    """Write a new file and see it onto the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(first: Path, *beside: Path) -> Iterator[tuple[Path, ...]]:
    """Yield temporary names of files that take their places if the block succeeds.

    `first` must be usable alone: the files beside it go before it is replaced and new ones come
    after it, so that at no moment two stand side by side that do not belong together.
    """
    places = (first, *beside)
    parts = tuple(_temporary(place, "part") for place in places)
    left = UNTOUCHED
    try:
        yield parts
        for place in beside:
            place.unlink(missing_ok=True)
        for place, part in zip(places, parts, strict=True):
            os.replace(part, place)
            left = f"{first.name} is whole and usable" + (
                ", its sidecar is missing." if beside else "."
            )
            _sync(first.parent)
        left = f"{first.name} is whole and usable."
    except OSError as error:
        raise not_written(first, error, left) from error
    finally:
        for part in parts:
            remove(part)


@contextlib.contextmanager
def staged(place: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of `place`, with all that the block wrote into it."""
    folder, aside = _temporary(place, "part"), _temporary(place, "old")
    left = UNTOUCHED
    try:
        folder.mkdir()
        yield folder
        _sync(folder)
        if _is_taken(place):
            os.rename(place, aside)
        os.rename(folder, place)
        left = f"{place.name} is whole and usable."
        _sync(place.parent)
    except OSError as error:
        raise not_written(place, error, left) from error
    finally:
        if aside.exists() and not place.exists():
            os.rename(aside, place)
        for path in (folder, aside):
            remove(path)


def _temporary(place: Path, kind: str) -> Path:
    return place.with_name(f".{place.name}.{secrets.token_hex(4)}.{kind}")


def remove(path: Path) -> None:
    """Remove a file or a folder, where it is there and can be."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """See a folder's names onto the disk, where the system can."""
    if sys.platform == "win32":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


def not_written(path: Path, error: OSError, left: str) -> OutputError:
    """Return an error with the system's reason; `left` describes the state on the disk."""
    full = error.errno == errno.ENOSPC
    reason = "the disk is full" if full else error.strerror or str(error)
    return OutputError(f"{path}: cannot be written ({reason})", hint=left)
