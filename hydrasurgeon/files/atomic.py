"""Outputs: checked and claimed before the work begins, written beside their place, and put there whole.

What is being written is called `.NAME.<random>.part`, what is set aside for a moment `.NAME.<random>.old`. Only who
holds an output's lock writes such files, so those he meets are left over from a killed run.
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
from pathlib import Path

from hydrasurgeon.errors import OutputError
from hydrasurgeon.files.locks import hold
from hydrasurgeon.files.manifest import sidecar
from hydrasurgeon.run import is_main_process

SUFFIX = ".safetensors"
"""How an output is told to be one file; all else is a directory."""
UNTOUCHED = "Nothing was left half-written."
"""The hint of a write that failed and left all as it was."""


def named(out: str | Path) -> tuple[Path, bool]:
    """`-o` as a path with its suffix, and whether it is a folder: a text that ends in a slash, or a folder that is
    there; a `Path` has no slash."""
    path, text = Path(out), str(out)
    folder = text.endswith(("/", os.sep)) or os.path.isdir(path)
    if folder and path.suffix == SUFFIX:
        raise OutputError(f"-o {text}: a directory's name may not end in {SUFFIX}", hint="Give another -o.")
    if not folder and path.suffix != SUFFIX:
        path = path.with_name(path.name + SUFFIX)
    return path, folder


def output_path(out: str | Path, *, force: bool, inputs: Iterable[object] = ()) -> Path:
    """`-o` as a path: NAME.safetensors, NAME (suffix added) or a directory; claimed, refused when it exists."""
    path, folder = named(out)
    link, path = path, real(path)
    if folder and (_within(Path(), path) or os.path.ismount(path)):
        raise OutputError(f"-o {out}: this folder cannot be replaced as a whole", hint="Name a new folder.")
    if not folder and os.path.exists(sidecar(link)) and real(sidecar(link)) != sidecar(path):
        raise OutputError(
            f"{sidecar(link)}: lies beside a link, where it would belong to other weights",
            hint=f"Delete it: the manifest lies beside {path}.",
        )
    beside = () if folder else (sidecar(path),)
    return claim(path, *beside, option="-o", force=force, inputs=inputs, folder=folder)


def output_file(path: str | Path, *, option: str, force: bool, inputs: Iterable[object] = ()) -> Path:
    """A single file that an option names; claimed, refused when it exists."""
    return claim(real(Path(path)), option=option, force=force, inputs=inputs)


def claim(
    path: Path, *beside: Path, option: str, force: bool, inputs: Iterable[object] = (), folder: bool = False
) -> Path:
    """Check that `path`, and what will lie beside it, can be written, and keep others from writing it.

    Its folder is there, it is no input of the command, and it takes nobody's place without `force`.
    """
    places = (path, *beside)
    check_folder(path)
    for place in places:
        _check_kind(place, option, folder=folder)
        _check_inputs(place, option, inputs)
    hold(path, option=option)
    sweep(*places)
    taken = [place for place in places if _is_taken(place)]
    if taken and not force:
        raise OutputError(f"{taken[0]}: already exists", hint=f"Give --force to replace it, or another {option}.")
    return path


def make_folder(path: Path) -> None:
    """A folder to keep work in, with those above it; there may be one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made ({error.strerror})") from error


def check_folder(path: Path) -> None:
    """Refuse an output whose folder is not there."""
    if not os.path.isdir(path.parent):
        raise OutputError(f"{path.parent}: no such folder", hint="Create it first.")


def real(path: Path) -> Path:
    """Where a link leads: the link stays, and the file or folder that it names is replaced."""
    leads_on = os.path.islink(path) or path.name in ("", "..")
    return Path(os.path.realpath(path)) if leads_on else path


def _check_kind(place: Path, option: str, *, folder: bool) -> None:
    """Refuse what a file or a folder cannot take the place of: pipes, devices, each other."""
    with contextlib.suppress(OSError, ValueError):
        mode = place.stat().st_mode
        if folder != stat.S_ISDIR(mode) or not (folder or stat.S_ISREG(mode)):
            what = "no folder" if folder else "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise OutputError(f"{option} {place}: is {what}", hint=f"Give another {option}.")


def _check_inputs(place: Path, option: str, inputs: Iterable[object]) -> None:
    """Refuse to replace one of the command's own inputs, whatever --force says."""
    if not os.path.exists(place):
        return
    for source in _named(inputs):
        if os.path.samefile(place, source) or _within(place, source) or _within(source, place):
            raise OutputError(f"{option} {place}: {source} is an input of this command", hint=f"Give another {option}.")


def _within(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _named(inputs: Iterable[object]) -> Iterator[Path]:
    """The files and folders that arguments name: checkpoints, and data as D, NAME=D, near:NAME=D, LIST@FOLDER."""
    for argument in inputs:
        if isinstance(argument, (list, tuple)):
            yield from _named(argument)
        elif argument is not None:
            text = str(argument)
            specs = (text, text.partition("=")[2], text.rpartition("=")[2])
            for name in {part for spec in specs for part in (spec, spec.partition("@")[0])} - {""}:
                for path in (Path(name), Path(name + SUFFIX)):
                    beside = [sidecar(path)] if path.suffix == SUFFIX else []
                    yield from (each for each in (path, *beside) if os.path.exists(each))


def _is_taken(place: Path) -> bool:
    """Whether there is something that would be replaced; an empty folder is nothing."""
    if place.is_dir():
        return any(place.iterdir())
    return os.path.lexists(place)


def sweep(first: Path, *beside: Path) -> None:
    """Remove what killed runs left of these outputs, and put back what they had set aside."""
    if not is_main_process():
        return
    with contextlib.suppress(OSError):  # what cannot be cleaned harms nobody
        for place in (first, *beside):
            for left, token in _leftovers(place, "old"):
                replaced = place != first and not _temporary(first, token, "part").exists()
                if not replaced and not os.path.lexists(place):
                    left.rename(place)
                _remove(left)
        for place in (first, *beside):
            for left, _ in _leftovers(place, "part"):
                _remove(left)


def _leftovers(place: Path, kind: str) -> list[tuple[Path, str]]:
    pattern = re.compile(rf"\.{re.escape(place.name)}\.([0-9a-f]{{8}})\.{kind}")
    matches = (pattern.fullmatch(name) for name in sorted(os.listdir(place.parent)))
    return [(place.with_name(match[0]), match[1]) for match in matches if match]


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """A small file, whole or not at all."""
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
    """Temporary names of files that take their places when the block succeeds.

    `first` must be usable alone: the files beside it are set aside before it is replaced and new ones come after
    it, so that at no moment two stand side by side that do not belong together.
    """
    token = secrets.token_hex(4)
    parts = [_temporary(place, token, "part") for place in (first, *beside)]
    aside = [(place, _temporary(place, token, "old")) for place in beside]
    left = UNTOUCHED
    try:
        yield tuple(parts)
        for place, old in aside:
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, old)
        os.replace(parts[0], first)
        left = f"{first.name} is whole and usable" + (", its sidecar is missing." if beside else ".")
        _sync(first.parent)
        for place, part in zip(beside, parts[1:], strict=True):
            os.replace(part, place)
        left = f"{first.name} is whole and usable."
        _sync(first.parent)
    except OSError as error:
        raise not_written(first, error, left) from error
    finally:
        _clear(first, parts, aside)


def _clear(first: Path, parts: list[Path], aside: list[tuple[Path, Path]]) -> None:
    """After a success or a failure: put back what was set aside for nothing, remove the rest."""
    replaced = not os.path.exists(parts[0])
    for place, old in aside:
        if replaced:
            _remove(old)
        elif os.path.exists(old):
            with contextlib.suppress(OSError):
                os.rename(old, place)
    for part in parts:
        _remove(part)


@contextlib.contextmanager
def staged(place: Path) -> Iterator[Path]:
    """A new folder that takes the place of `place`, with all that the block wrote into it."""
    folder = _temporary(place, secrets.token_hex(4), "part")
    left = UNTOUCHED
    try:
        folder.mkdir()
        yield folder
        _sync(folder)
        _swap(folder, place)
        left = f"{place.name} is whole and usable."
        _sync(place.parent)
    except OSError as error:
        raise not_written(place, error, left) from error
    finally:
        _remove(folder)


def _swap(folder: Path, place: Path) -> None:
    """Put a folder where another one may be: in one step where the system can, else by way of a name aside."""
    if not _is_taken(place):
        if sys.platform == "win32" and place.is_dir():
            place.rmdir()
        os.rename(folder, place)
    elif not _exchange(folder, place):
        aside = place.with_name(folder.name.removesuffix("part") + "old")
        os.rename(place, aside)
        try:
            os.rename(folder, place)
        except BaseException:
            os.rename(aside, place)
            raise
        _remove(aside)


def _exchange(folder: Path, place: Path) -> bool:
    """Swap two names; False where the system cannot. What was in `place` is removed by the name of `folder`."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    names = os.fsencode(folder), os.fsencode(place)
    return rename is not None and rename(here, names[0], here, names[1], exchange) == 0


def _temporary(place: Path, token: str, kind: str) -> Path:
    return place.with_name(f".{place.name}.{token}.{kind}")


def _remove(path: Path) -> None:
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
    """What the system said as a message; `left` is what is there now."""
    full = error.errno == errno.ENOSPC
    reason = "the disk is full" if full else error.strerror or str(error)
    return OutputError(f"{path}: cannot be written ({reason})", hint=left)
