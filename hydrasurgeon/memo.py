"""Values that the steps of one long command share, so that each is computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
from numpy import ndarray

Value = TypeVar("Value")

_LAST = ContextVar[dict[str, tuple[Hashable, object]] | None]("last values", default=None)
"""The last value of each name, with the key that it was computed for; None if nothing is shared."""


@contextmanager
def sharing() -> Iterator[None]:
    """Share values between all steps within."""
    token = _LAST.set({})
    try:
        yield
    finally:
        _LAST.reset(token)


def shared(name: str, make_key: Callable[[], Hashable], compute: Callable[[], Value]) -> Value:
    """Return the value of a name, computed anew if its key has changed or nothing is shared."""
    last = _LAST.get()
    if last is None:
        return compute()
    key = make_key()
    if name not in last or last[name][0] != key:
        last.pop(name, None)  # two large ones are never held at once
        last[name] = (key, compute())
    return last[name][1]  # type: ignore[return-value]


def digest_of(arrays: Iterable[ndarray]) -> str:
    """Hash arrays, for a key of `shared`."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
