"""Values that the steps of one long command share, so that each is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

Value = TypeVar("Value")


class Memo:
    """The last value of each name, with the key that it was computed for."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Hashable, object]] = {}

    def value(self, name: str, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a name, computed anew if its key has changed."""
        if name not in self._last or self._last[name][0] != key:
            self._last.pop(name, None)  # two large ones are never held at once
            self._last[name] = (key, compute())
        return self._last[name][1]  # type: ignore[return-value]
