"""Long columns of texts as one run of bytes: a Python object for each text takes twice as much
memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any


class Packed(Sequence[Any]):
    """Texts stored one after another; other values are kept as they are."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.ends = array("q", [0])
        self.other_values: dict[int, Any] = {}
        """Values that are not texts, by position."""

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, str):
                self.content += value.encode(errors="surrogatepass")
            else:
                self.other_values[len(self)] = value
            self.ends.append(len(self.content))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: Any) -> Any:
        i = range(len(self))[i]
        if i in self.other_values:
            return self.other_values[i]
        return self.content[self.ends[i] : self.ends[i + 1]].decode(errors="surrogatepass")


def growing(values: Sequence[Any]) -> Packed | list[Any]:
    """Return an empty container for a column that begins with these values."""
    first = next((value for value in values if value is not None), None)
    return Packed() if isinstance(first, str) else []
