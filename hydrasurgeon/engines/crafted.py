"""What a graph of others may not hold: data outside its file, and graphs within it, which may run
for ever. Known before onnxruntime sees the file: it runs what is constant when it reads it.

A file is read as what protobuf writes, field by field (onnx.proto); nothing is decoded but what may
hold such a part. Large tensors stay in it, for onnxruntime to map: it would copy them twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hydrasurgeon.errors import CheckpointError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""How protobuf writes a field."""
MAX_VARINT = 10
"""Bytes of the longest number."""

MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE = range(6)
"""Messages of onnx.proto that are looked into."""
INSIDE = {
    MODEL: {7: GRAPH},
    GRAPH: {1: NODE, 5: TENSOR, 15: SPARSE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 10: TENSOR, 22: SPARSE, 23: SPARSE},
    SPARSE: {1: TENSOR, 2: TENSOR},
}
"""Which of their fields hold which."""
FORBIDDEN = {
    (MODEL, 20): "training steps",
    (MODEL, 25): "functions of its own",
    (ATTRIBUTE, 6): "a graph within a graph (If, Loop, Scan)",
    (ATTRIBUTE, 11): "a graph within a graph (If, Loop, Scan)",
    (TENSOR, 13): "data in another file",
    (TENSOR, 14): "data in another file",
}
"""Fields that no graph which `export` writes has."""
LARGE = {(MODEL, 7): GRAPH, (GRAPH, 5): TENSOR}
"""Where large tensors are."""
NUMBERS = (TENSOR, 9)
"""The field of a tensor that holds its numbers, as bytes."""
MAPPED = 4096
"""Bytes from which on a tensor stays in its file."""
OPERATOR, SAID, INPUT, OUTPUT = (NODE, 4), (MODEL, 14), (GRAPH, 11), (GRAPH, 12)
"""What a node does, an entry of the metadata, and what goes in and comes out."""
PRODUCT = "MatMulIntegerToFloat"
"""onnxruntime's product of bytes."""


@dataclass
class Contents:
    """What a graph says of itself."""

    metadata: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)

    @property
    def engine(self) -> str:
        """The engine that it is for."""
        return "int8" if PRODUCT in self.operators else "onnx"


def read_plain(content: Any, where: str) -> Contents:
    """What a graph says of itself; one that holds what we never write is refused."""
    waiting, found = [(MODEL, memoryview(content))], Contents()
    try:
        while waiting:
            kind, message = waiting.pop()
            for number, value in _fields(message):
                if (kind, number) in FORBIDDEN:
                    what = f"{where}: holds {FORBIDDEN[kind, number]}"
                    raise CheckpointError(what, hint="`export` writes no such graph.")
                if value is None:
                    continue
                inside = INSIDE.get(kind, {}).get(number)
                if inside is not None:
                    waiting.append((inside, value))
                elif (kind, number) == OPERATOR:
                    found.operators.add(_text(value))
                elif (kind, number) == SAID:
                    said = dict(_fields(value))
                    found.metadata.setdefault(_text(said.get(1)), _text(said.get(2)))
                elif (kind, number) == INPUT:
                    found.inputs.append(_text(dict(_fields(value)).get(1)))
                elif (kind, number) == OUTPUT:
                    found.outputs.append(_text(dict(_fields(value)).get(1)))
    except (IndexError, ValueError) as error:
        hint = "The file is damaged: copy it again."
        raise CheckpointError(f"{where}: is no graph", hint=hint) from error
    return found


def _text(value: memoryview | None) -> str:
    return "" if value is None else bytes(value).decode()


def without_weights(content: Any, name: str) -> bytes:
    """A plain graph whose large tensors lie in the file `name`, which it was read from."""
    return _light(MODEL, memoryview(content), 0, name.encode(errors="surrogateescape"))


def _light(kind: int, message: memoryview, begin: int, name: bytes) -> bytes:
    """The same of a message that begins there in the file."""
    parts: list[Any] = []
    for number, value, start, end in _parts(message):
        inside = LARGE.get((kind, number))
        first = begin + end - (0 if value is None else len(value))
        if value is not None and inside is not None:
            parts.append(written(number, _light(inside, value, first, name)))
        elif value is not None and (kind, number) == NUMBERS and len(value) >= MAPPED:
            place = {b"location": name, b"offset": b"%d" % first, b"length": b"%d" % len(value)}
            parts += [written(13, pair(*entry)) for entry in place.items()]
            parts.append(b"\x70\x01")  # field 14: outside
        elif (kind, number) != SAID:
            parts.append(message[start:end])
    return b"".join(parts)


def pair(key: bytes, value: bytes) -> bytes:
    """An entry of a table of texts."""
    return written(1, key) + written(2, value)


def written(number: int, content: bytes) -> bytes:
    """A field that holds bytes; lengths have seven bits a byte, the last below 128."""
    count, length = len(content), []
    while count >= 0x80:
        length.append(count & 0x7F | 0x80)
        count >>= 7
    return bytes([number << 3 | BYTES, *length, count]) + content


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Numbers of the fields of a message, with the bytes of those that hold bytes."""
    for number, value, _, _ in _parts(message):
        yield number, value


def _parts(message: memoryview) -> Iterator[tuple[int, memoryview | None, int, int]]:
    """The same, and where in the message each field begins and ends."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        value, kind = None, key & 7
        if kind == VARINT:
            _, at = _varint(message, at)
        elif kind == BYTES:
            size, at = _varint(message, at)
            value = message[at : at + size]
            at += size
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        else:
            raise ValueError("groups are not used")
        if at > len(message):
            raise ValueError("ends within a field")
        yield key >> 3, value, start, at


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = message[at]
    if number < 0x80:
        return number, at + 1
    number = 0
    for place in range(MAX_VARINT):
        byte = message[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("no end of a number")
