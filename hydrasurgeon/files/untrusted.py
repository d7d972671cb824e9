"""Small files and JSON that someone else wrote: regular, bounded, UTF-8, strict; refused in one
sentence otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any
from unicodedata import category

from hydrasurgeon.errors import CheckpointError, DataError, HydraError, reason

# Deep enough for every config there is; whoever walks the values recurses no deeper.
MAX_DEPTH = 32
# Characters of a name.
MAX_NAME = 500
# Unicode's categories of control characters, lone surrogates (bytes that were not UTF-8) and ends
# of lines.
UNNAMEABLE = {"Cc", "Cs", "Zl", "Zp"}

QUERY = re.compile(r"\?[^#]*")
"""Query of a web address, which may hold its signature."""
SCHEME = re.compile(r"[A-Za-z][\w.+-]*:")
"""Scheme in front of a name that is no path: `hf:`, `demo:`, `timm:`."""
ENTRY = re.compile(r"(?P<name>[^/=#]*=)(?P<spec>.+)", re.DOTALL)
"""NAME=D, near:NAME=D or NAME:SEVERITY=D."""
LISTED = re.compile(r"(#without,)[^#]*(?:/|%2F)")
"""Folders of a table that a spec names behind a data set."""
Error = type[HydraError]


def must(*claims: tuple[bool, str], error: Callable[[str], Exception] = ValueError) -> None:
    """Raise an error with the words of the first claim that does not hold."""
    for holds, otherwise in claims:
        if not holds:
            raise error(otherwise)


@contextlib.contextmanager
def decoding(message: str, hint: str | None = None) -> Iterator[None]:
    """Turn any error of a library about damaged bytes into one message."""
    try:
        yield
    except HydraError:
        raise
    except Exception as failure:
        raise DataError(f"{message} ({reason(failure)})", hint=hint) from failure


@contextlib.contextmanager
def readable(path: Path, error: Error = CheckpointError) -> Iterator[None]:
    """Turn errors of the system into one message that names the file."""
    try:
        yield
    except OSError as failure:
        raise error(f"{failure.filename or path}: cannot be read ({failure.strerror})") from failure


def open_regular(path: Path, *, error: Error = CheckpointError) -> BufferedReader:
    """Open a file for reading; refuse pipes, devices and directories without waiting for them."""
    try:
        with readable(path, error):
            # Opening a pipe that nobody writes to would wait for ever.
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except ValueError as failure:  # a NUL character in the name
        raise error(f"{str(path)!r}: is not a file's name") from failure
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise error(f"{path}: is not a regular file")
    return os.fdopen(handle, "rb")


def read_bytes(path: Path, *, most: int, error: Error = CheckpointError) -> bytes:
    """Read a file completely, if it has at most `most` bytes."""
    with open_regular(path, error=error) as file, readable(path, error):
        content = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
    _check_size(content, str(path), most, error)
    return content


def read_text(path: Path, *, most: int, error: Error = CheckpointError) -> str:
    return utf8(read_bytes(path, most=most, error=error), str(path), error)


def read_json(path: Path, *, most: int, error: Error = CheckpointError) -> Any:
    return parse_json(read_bytes(path, most=most, error=error), str(path), most=most, error=error)


def parse_json(
    content: bytes | str,
    where: str,
    *,
    most: int,
    error: Error = CheckpointError,
    objects: int | None = None,
) -> Any:
    """Parse a JSON text; `where` names the source in the error.

    Stricter than the standard library: UTF-8, no key twice, no NaN or Infinity, no lone surrogates,
    and no more bytes, nesting and (where a bound is given) objects than the bounds.
    """
    _check_size(content, where, most, error)
    text = content if isinstance(content, str) else utf8(content, where, error)
    if not text.strip():
        raise error(f"{where}: is empty")
    try:
        value = _decoder(where, objects, error).decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        deep = _is_deep(value)
    except RecursionError:
        deep = True
    except ValueError as failure:
        why = "a lone surrogate" if isinstance(failure, UnicodeEncodeError) else str(failure)
        raise error(f"{where}: is not JSON ({why})") from failure
    if deep:
        raise error(f"{where}: is nested more than {MAX_DEPTH} deep")
    return value


def _check_size(content: bytes | str, where: str, most: int, error: Error) -> None:
    if len(content) > most:
        raise error(f"{where}: is too large; at most {most:,} bytes are read")


def utf8(content: bytes, where: str, error: Error) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as failure:
        raise error(f"{where}: is not UTF-8 text; save it as UTF-8") from failure


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return False
        inner = (
            v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)
        )
        level = list(chain.from_iterable(inner))
    return bool(level)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, value in pairs:
        if name in record:
            raise ValueError(f"the key {name[:80]!r} occurs twice")
        record[name] = value
    return record


def _decoder(where: str, objects: int | None, error: Error) -> json.JSONDecoder:
    """Return a strict decoder that stops as soon as it has met more than `objects`."""
    if objects is None:
        return STRICT
    met = 0

    def counted(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal met
        met += 1
        if met > objects:
            raise error(f"{where}: is too large; at most {objects:,} objects are read")
        return _unique(pairs)

    return json.JSONDecoder(object_pairs_hook=counted, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    """Return the number in a text; JSON has no NaN and no Infinity."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
"""JSON without NaN and infinity, and with each key once."""


def is_name(text: str) -> bool:
    """Return True if a name from a file is short, on one line and printable."""
    return 0 < len(text.strip()) <= len(text) <= MAX_NAME and not UNNAMEABLE & set(
        map(category, text)
    )


def portable_entry(entry: str) -> str:
    """Return D, or NAME=D as options take it, by `portable`."""
    match = ENTRY.fullmatch(entry)
    if match is None or os.path.exists(entry):
        return portable(entry)
    return match["name"] + portable(match["spec"])


def unrooted(text: str) -> str:
    """Return the name of an absolute path, a URL without its password and signature, and any other
    text as it is.
    """
    text = LISTED.sub(r"\1", text)
    return portable(text) if os.path.isabs(text) or "://" in text else text


def portable(spec: str) -> str:
    """Return a path without its folders, so that the same job writes the same bytes in any of them;
    a URL without its password and signature. Columns behind a path stay, and so do names with a
    scheme.
    """
    spec = LISTED.sub(r"\1", spec)
    if "://" in spec:
        scheme, _, rest = spec.partition("://")
        host, slash, path = rest.partition("/")
        if scheme in ("http", "https"):
            path = QUERY.sub("", path)
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
    place, mark, columns = spec.partition("#")
    if SCHEME.match(place) and not os.path.isabs(place) and not os.path.exists(place):
        return spec
    return (Path(place).name or place) + mark + columns


def visible(text: object) -> str:
    r"""Escape control characters, line breaks and bidirectional marks as `\n`, `\x1b`, `\u202e`.

    Other characters stay.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def code(text: object) -> str:
    r"""Return a Markdown code span, fit for a table; no link, tag or emphasis in it has a meaning."""
    shown = visible(text).replace("|", r"\x7c") or " "
    fence = "`"
    while fence in shown:
        fence += "`"
    # A backtick at either end would join the fence; Markdown takes one space off both ends again.
    pad = " " if "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"
