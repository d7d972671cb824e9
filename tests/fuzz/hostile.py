"""What an attacker writes: values that break assumptions, and JSON documents with a few things changed.

A document is changed where it has structure: a field replaced, deleted, doubled, renamed or moved. Flipped
bytes mostly end in the JSON parser, which is not ours to test.

What Python's writer of JSON refuses to write stands in a document as a string between @ signs, and becomes text
in `to_json`: `@deep:[:500@` is 500 open brackets, `@digits:5000@` a number of so many digits, and a key `@again:x@`
is the key x a second time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from random import Random
from typing import Any


def words(text: str) -> tuple[str, ...]:
    """Several texts without spaces."""
    return tuple(text.split())


NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 5, 7, 64, 255, 2**31 - 1, 2**31, 2**63, 2**70, -(2**63), 10**9, 10**4000),
    *(
        1e308,
        -1e308,
        5e-324,
        3.4e38,
        -3.5e38,
        1e18,
        1e-45,
        0.5,
        1.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        True,
        False,
        None,
        "@digits:5000@",
    ),
)
PATHS = (
    *words(
        "../outside.json ../outside.safetensors /etc/hostname .. . / C:\\x a/b a\\b //host/share tokenizer.json/"
    ),
    *words(
        "./config.json config.json heads.json README.md modeling_hydrasurgeon.py CON Tokenizer.json ~/x $HOME"
    ),
    *(
        "",
        "x" * 300,
        "tokenizer.json\x00.txt",
        "file:///etc/hostname",
        "\uff0e\uff0e/x",
        "/dev/zero",
        "/dev/stdin",
    ),
)
TEXTS = (
    *words(
        "[red] [/red] {label} {0} %s NaN None __class__ __metadata__ owner/kernel flash_attention_2 model vision"
    ),
    *(
        "text",
        "",
        " ",
        "\x00",
        "\x1b[2J\x1b]52;c;aGk=\x07",
        "\u202egnp.exe",
        "\ud800",
        "é" * 100,
        "x" * 5000,
        "0" * 64,
    ),
    *(
        "f" * 64,
        'A"\nimport os\nB="',
        "a\nb",
        "a\r",
        "\U0001f40d",
        "\u200b",
        "1e400",
        "١٢",
        "²",
        "-1",
    ),
)
WRITTEN = re.compile(r'"@(deep|digits|again):((?:[^"\\@]|\\.)*?)(?::(\d+))?(:closed)?@"')


def text(random: Random) -> str:
    return random.choice(PATHS if random.random() < 0.4 else TEXTS)


def scalar(random: Random) -> Any:
    return random.choice(NUMBERS) if random.random() < 0.6 else text(random)


def value(random: Random) -> Any:
    """Anything that JSON can say, and a few things that it cannot."""
    kind = random.randrange(14)
    if kind < 9:
        return scalar(random)
    if kind == 9:
        return [scalar(random) for _ in range(random.choice((0, 1, 2, 3, 30)))]
    if kind == 10:
        return {text(random): scalar(random) for _ in range(random.choice((0, 1, 2)))}
    if kind == 11:
        return [random.choice((0, 1, 0.5, "a", None))] * random.choice((100, 1000, 1000, 20_000))
    depth = random.choice((5, 60, 500, 500, 5000, 100_000))
    return f"@deep:{random.choice('[{')}:{depth}{random.choice((':closed', ':closed', ''))}@"


def mutated(document: Any, random: Random, *, most: int = 3) -> Any:
    """A copy of a JSON document with one to `most` things changed."""
    changed = json.loads(json.dumps(document))
    for _ in range(random.randint(1, most)):
        root = [changed]
        _change(root, random)
        if len(root) != 1:
            return value(random)
        changed = root[0]
    return changed


def _change(holder: Any, random: Random) -> None:
    """Walk down and change what is met, so that every level has its chance, however many leaves are below."""
    key: Any = 0
    while isinstance(holder[key], dict | list) and len(holder[key]) and random.random() < 0.85:
        holder = holder[key]
        key = (
            random.choice(list(holder))
            if isinstance(holder, dict)
            else random.randrange(len(holder))
        )
    random.choice(CHANGES)(holder, key, random)


def _replace(holder: Any, key: Any, random: Random) -> None:
    holder[key] = value(random)


def _near(holder: Any, key: Any, random: Random) -> None:
    """The same type, but not the same."""
    here = holder[key]
    if isinstance(here, bool) or here is None:
        holder[key] = random.choice((True, False, None, 0, 1, "true"))
    elif isinstance(here, int):
        small = abs(here) < 2**70
        holder[key] = random.choice(
            (
                here + 1,
                here - 1,
                -here,
                here * 2,
                here // 2,
                *((float(here), str(here), here + 0.5) if small else ()),
            )
        )
    elif isinstance(here, float):
        holder[key] = random.choice(
            (-here, here * 1e300, math.nan, int(here) if math.isfinite(here) else 0, str(here))
        )
    elif isinstance(here, str):
        holder[key] = random.choice(
            (
                here.upper(),
                here[::-1],
                here + "x",
                here[:-1],
                here * 2,
                " " + here,
                here + "\x00",
                "../" + here,
            )
        )
    else:
        holder[key] = value(random)


def _delete(holder: Any, key: Any, random: Random) -> None:
    del holder[key]


def _double(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, list):
        holder.insert(random.randint(0, len(holder)), holder[key])
    else:
        holder[f"@again:{key}@"] = value(random)


def _rename(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, dict):
        holder[random.choice((text(random), str(key).upper(), str(key) + " ", str(key)[:-1]))] = (
            holder.pop(key)
        )
    else:
        holder[key] = [holder[key]]


def _add(holder: Any, key: Any, random: Random) -> None:
    here = holder[key]
    if isinstance(here, dict):
        here[text(random)] = value(random)
    elif isinstance(here, list):
        here.append(value(random))
    else:
        holder[key] = [here]


def _swap(holder: Any, key: Any, random: Random) -> None:
    other = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


CHANGES: tuple[Callable[[Any, Any, Random], None], ...] = (
    *(_replace, _replace, _replace, _near, _near, _near, _delete, _double, _rename, _add, _swap),
)


def to_json(document: Any) -> str:
    """A document as its hostile writer has it."""
    plain = json.dumps(document)
    return WRITTEN.sub(_written, plain) if '"@' in plain else plain


def _written(found: re.Match[str]) -> str:
    what, which, number, closed = found.groups()
    if what == "again":
        return f'"{which}"'
    if what == "digits":
        return "1" * int(which)
    opening, closing = ("[", "]") if which == "[" else ('{"a":', "}")
    return opening * int(number) + ("1" + closing * int(number) if closed else "")


def damaged(content: bytes, random: Random) -> bytes:
    """Bytes cut, flipped, doubled, or in another encoding."""
    kind = random.randrange(9)
    at = random.randrange(len(content) + 1)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content + random.randbytes(random.choice((1, 8, 100)))
    if kind == 2:
        return b"\xef\xbb\xbf" + content
    if kind == 3:
        return content.decode("utf-8", "replace").encode(
            random.choice(("utf-16", "utf-32", "latin-1")), "replace"
        )
    if kind == 4:
        return content[:at] + content[at // 2 :]
    if kind == 5:
        return b""
    if kind == 6:
        return random.randbytes(random.choice((1, 7, 8, 100)))
    flipped = bytearray(content)
    for _ in range(random.choice((1, 2, 20)) if flipped else 0):
        flipped[random.randrange(len(flipped))] = random.randrange(256)
    return bytes(flipped)
