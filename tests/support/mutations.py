"""Every single change of a JSON file: each value replaced by each of a list, each key taken away, renamed, doubled."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# None of them is what a field that counts, names or lists something expects; each broke something once.
VALUES: tuple[Any, ...] = (
    None,
    [],
    {},
    "",
    "x",
    "x" * 5_000,
    "\x1b[2J\x00\n",
    "../../x",
    -1,
    0,
    1,
    3,
    7,
    1_000_000_007,
    2**31,
    2**70,
    -(2**70),
    0.5,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    True,
    False,
    [0],
    [[]],
    ["a"],
    [1, 2, 3, 4, 5],
    {"a": 1},
    {"": {}},
    _deep(10),
    _deep(200),
)
Place = tuple[str | int, ...]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every place in a JSON value, the whole first; of a long list the first and the last two."""
    yield here
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*here, key))
    elif isinstance(value, list):
        for index in sorted({0, len(value) - 2, len(value) - 1} & set(range(len(value)))):
            yield from places(value[index], (*here, index))


def replaced(value: Any, place: Place, new: Any) -> Any:
    if not place:
        return new
    changed = copy.deepcopy(value)
    _at(changed, place[:-1])[place[-1]] = new
    return changed


def removed(value: Any, place: Place) -> Any:
    changed = copy.deepcopy(value)
    del _at(changed, place[:-1])[place[-1]]
    return changed


def renamed(value: Any, place: Place, name: str) -> Any:
    changed = removed(value, place)
    _at(changed, place[:-1])[name] = _at(value, place)
    return changed


def doubled(value: Any, place: Place) -> Any:
    changed = copy.deepcopy(value)
    _at(changed, place[:-1]).append(_at(value, place))
    return changed


def _at(value: Any, place: Place) -> Any:
    for step in place:
        value = value[step]
    return value


def mutations(value: Any) -> Iterator[tuple[str, Any]]:
    """(what was done, the changed value), one change at a time: all of them."""
    for place in places(value):
        name = ".".join(map(str, place)) or "the whole"
        for new in VALUES:
            yield f"{name} = {str(new)[:40]!r}", replaced(value, place, new)
        if not place:
            continue
        yield f"{name} taken away", removed(value, place)
        if isinstance(place[-1], str):
            yield f"{name} renamed", renamed(value, place, f"{place[-1]}_")
            yield f"{name} beside itself", replaced(value, (*place[:-1], "unknown"), _at(value, place))
        else:
            yield f"{name} doubled", doubled(value, place)


def texts(text: str) -> Iterator[tuple[str, str]]:
    """A text that is no longer JSON, or no longer the same."""
    yield "empty", ""
    yield "cut", text[: len(text) // 2]
    yield "twice", text + text
    yield "deep", "[" * 100_000
    yield "binary", "\x00\x01\x02"
    yield "a key twice", text.replace("{", '{"a": 1, "a": 2, ', 1)
    yield "no JSON", "name: value"


def sample(value: Any, count: int, seed: int) -> list[tuple[str, Any]]:
    """Some of the mutations, the same for the same seed."""
    every = list(mutations(value))
    return random.Random(seed).sample(every, min(count, len(every)))
