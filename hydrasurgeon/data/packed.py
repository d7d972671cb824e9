"""Long columns of texts as one run of bytes: an object for each text takes twice as much."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any


class Packed(Sequence[Any]):
    """Texts one behind another; what else is among them stays as it is."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.ends = array("q", [0])
        self.others: dict[int, Any] = {}
        """Values that are no texts, by their places."""

    def extend(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, str):
                self.content += value.encode(errors="surrogatepass")
            else:
                self.others[len(self)] = value
            self.ends.append(len(self.content))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, i: Any) -> Any:
        i = range(len(self))[i]
        if i in self.others:
            return self.others[i]
        return self.content[self.ends[i] : self.ends[i + 1]].decode(errors="surrogatepass")


def growing(values: Sequence[Any]) -> Packed | list[Any]:
    """What a column that begins with these values is gathered in, still empty."""
    first = next((value for value in values if value is not None), None)
    return Packed() if isinstance(first, str) else []
