"""What a graph of others may not hold: data outside its file, and graphs within it, which may run
for ever. Known before onnxruntime sees the file: it runs what is constant when it reads it.

A file is read as what protobuf writes, field by field (onnx.proto); nothing is decoded but what may
hold such a part.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def check_plain(content: bytes, where: str) -> None:
    """Refuse a graph that holds what we never write."""
    waiting = [(MODEL, memoryview(content))]
    while waiting:
        kind, message = waiting.pop()
        try:
            for number, value in _fields(message):
                if (kind, number) in FORBIDDEN:
                    what = f"{where}: holds {FORBIDDEN[kind, number]}"
                    raise CheckpointError(what, hint="`export` writes no such graph.")
                inside = INSIDE.get(kind, {}).get(number)
                if inside is not None and value is not None:
                    waiting.append((inside, value))
        except (IndexError, ValueError) as error:
            hint = "The file is damaged: copy it again."
            raise CheckpointError(f"{where}: is no graph", hint=hint) from error


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """Numbers of the fields of a message, with the bytes of those that hold bytes."""
    at = 0
    while at < len(message):
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
        yield key >> 3, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for place in range(MAX_VARINT):
        byte = message[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("no end of a number")
