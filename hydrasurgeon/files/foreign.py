"""Small files and JSON that someone else wrote: regular, bounded, UTF-8, strict; refused in one sentence otherwise."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from io import FileIO
from math import isfinite
from pathlib import Path
from typing import Any

from hydrasurgeon.errors import CheckpointError, HydraError

# Deep enough for every config there is; parsers and whoever walks the values recurse no deeper.
MAX_DEPTH = 32
# Commas and brackets in one text: a value costs up to 70 bytes of memory for as little as two in the file.
MAX_VALUES = 1_000_000
# Quotation marks, those inside texts too: a header may carry a tokenizer of a quarter of a million words.
MAX_QUOTES = 20_000_000
# Integers as numpy and torch know them: int64, and seeds of 64 bits.
SMALLEST, LARGEST = -(2**63), 2**64 - 1

Error = type[HydraError]

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string, also one that does not end: matched in one go, never back."""
BRACKETS = bytes.maketrans(b"{}", b"[]")
"""Objects nest as lists do, so both are counted as one."""
NO_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
"""Bytes that neither nest nor part values."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character of two: only a text with one is looked at again."""


def open_regular(path: Path, *, error: Error = CheckpointError) -> FileIO:
    """The file open for reading, unbuffered; pipes, devices and directories are refused without waiting for them."""
    try:
        # Opening a pipe that nobody writes to would wait for ever.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as failure:
        raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    except ValueError as failure:  # a NUL character in the name
        raise error(f"{str(path)!r}: is not a file's name") from failure
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise error(f"{path}: is not a regular file")
    return FileIO(handle)


def read_bytes(path: Path, *, most: int, error: Error = CheckpointError) -> bytes:
    """The whole file, if it has at most `most` bytes."""
    with open_regular(path, error=error) as file:
        try:
            # One more than allowed: what the file says of its size may be out of date.
            content = bytearray()
            while chunk := file.read(min(1 << 20, most + 1 - len(content))):
                content += chunk
        except OSError as failure:
            raise error(f"{path}: cannot be read ({failure.strerror})") from failure
    if len(content) > most:
        raise error(f"{path}: is too large; at most {most:,} bytes are read")
    return bytes(content)


def read_text(path: Path, *, most: int, error: Error = CheckpointError) -> str:
    return _utf8(read_bytes(path, most=most, error=error), str(path), error)


def read_json(path: Path, *, most: int, error: Error = CheckpointError) -> Any:
    return parse_json(read_bytes(path, most=most, error=error), str(path), most=most, error=error)


def parse_json(
    content: bytes | str, where: str, *, most: int, values: int = MAX_VALUES, error: Error = CheckpointError
) -> Any:
    """The value behind a JSON text; `where` names the source in the error.

    Stricter than the standard library: UTF-8, no key twice, no NaN or Infinity, no lone surrogates, integers of
    at most 64 bits (longer ones become floats), and no more bytes, values and nesting than the bounds, which are
    checked first.
    """
    try:
        content = content.encode() if isinstance(content, str) else content
    except UnicodeEncodeError as failure:
        raise error(f"{where}: is not Unicode text") from failure
    if len(content) > most:
        raise error(f"{where}: is too large; at most {most:,} bytes are read")
    text = _utf8(content, where, error)
    if not text.strip():
        raise error(f"{where}: is empty")
    check_structure(content, where, values=values, error=error)
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_not_finite, parse_float=_finite, parse_int=_bounded
        )
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as failure:
        why = "a lone surrogate" if isinstance(failure, UnicodeEncodeError) else str(failure)
        raise error(f"{where}: is not JSON ({why})") from failure
    return value


def _utf8(content: bytes, where: str, error: Error) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as failure:
        raise error(f"{where}: is not UTF-8 text") from failure


def check_structure(content: bytes, where: str, *, values: int, error: Error) -> None:
    """Refuse JSON of too many values, or nested too deep, without parsing it.

    Commas and brackets outside strings are counted and brackets paired off from the inside: all in C, nothing
    recursive.
    """
    if content.count(b'"') > MAX_QUOTES:
        raise error(f"{where}: holds more than {MAX_QUOTES:,} quotation marks")
    structure = STRING.sub(b"", content).translate(BRACKETS, NO_STRUCTURE)
    if len(structure) > values:
        raise error(f"{where}: holds more than {values:,} values")
    brackets = structure.replace(b",", b"")
    for _ in range(MAX_DEPTH):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    # What is left is unbalanced, which the parser names, or deeper than the rounds.
    if b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH:
        raise error(f"{where}: is nested more than {MAX_DEPTH} deep")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return record


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON knows")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text[:40]} is beyond float64")
    return number


def _bounded(text: str) -> int | float:
    if len(text) <= 20 and SMALLEST <= (number := int(text)) <= LARGEST:
        return number
    # transformers writes 10^30 where a tokenizer has no limit: a number, but none that could count anything.
    return _finite(text)
