"""The file of a graph: what it may hold, what it says of itself, and the hash behind it.

A graph of others may hold neither data outside its file, nor graphs within it, which may run for
ever. That is known before onnxruntime sees the file: it runs what is constant when it reads it, so
its own metadata come too late, and after 360 ms instead of 17 for a graph of 92 MB. Messages of
onnx.proto are read in place, and nothing is decoded but what may hold such a part. Large tensors
stay in the file, for onnxruntime to map: it would copy them twice.

Behind an exported graph stand what an answer costs, and the hash of both. Two messages of protobuf,
one behind the other, are read as one: the file stays a graph.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from hydrasurgeon.engines.onnx.protobuf import encode_field, encode_pair, fields, text_of
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.untrusted import open_regular

MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE = range(6)
"""Messages of onnx.proto that are looked into."""
INSIDE = {
    MODEL: {7: GRAPH},
    GRAPH: {1: NODE, 5: TENSOR, 15: SPARSE},
    NODE: {5: ATTRIBUTE},
    ATTRIBUTE: {5: TENSOR, 10: TENSOR, 22: SPARSE, 23: SPARSE},
    SPARSE: {1: TENSOR, 2: TENSOR},
}
"""Messages within each message, by the field's number."""
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
"""Fields of messages that hold large tensors."""
NUMBERS = (TENSOR, 9)
"""The field of a tensor that holds its numbers, as bytes."""
MAPPED = 4096
"""Bytes from which on a tensor stays in its file."""
OPERATOR, SAID, INPUT, OUTPUT = (NODE, 4), (MODEL, 14), (GRAPH, 11), (GRAPH, 12)
"""Fields of a node's operator, of the metadata's entries, and of the graph's inputs and outputs."""


@dataclass
class GraphContents:
    """The metadata, inputs, outputs and operators of a graph."""

    metadata: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)


def read_plain(content: Any, where: str) -> GraphContents:
    """Return the contents of a graph; refuse one that holds what we never write."""
    waiting, contents = [(MODEL, memoryview(content))], GraphContents()
    try:
        while waiting:
            kind, message = waiting.pop()
            for number, value, *_ in fields(message):
                if (kind, number) in FORBIDDEN:
                    fault = f"{where}: holds {FORBIDDEN[kind, number]}"
                    raise CheckpointError(fault, hint="`export` writes no such graph.")
                if value is None:
                    continue
                inside = INSIDE.get(kind, {}).get(number)
                if inside is not None:
                    waiting.append((inside, value))
                elif (kind, number) == OPERATOR:
                    contents.operators.add(bytes(value).decode())
                elif (kind, number) == SAID:
                    contents.metadata.setdefault(text_of(value, 1), text_of(value, 2))
                elif (kind, number) == INPUT:
                    contents.inputs.append(text_of(value, 1))
                elif (kind, number) == OUTPUT:
                    contents.outputs.append(text_of(value, 1))
    except (IndexError, ValueError) as error:
        hint = "The file is damaged: copy it again."
        raise CheckpointError(f"{where}: is not an ONNX graph", hint=hint) from error
    return contents


def without_weights(content: Any, name: str) -> bytes:
    """Return a plain graph whose large tensors lie in the file `name`, which it was read from."""
    return _light(MODEL, memoryview(content), 0, name.encode(errors="surrogateescape"))


def _light(kind: int, message: memoryview, begin: int, name: bytes) -> bytes:
    """Return a message of such a graph. `begin` is its place in the file."""
    parts: list[Any] = []
    for number, value, start, end in fields(message):
        inside = LARGE.get((kind, number))
        first = begin + end - (0 if value is None else len(value))
        if value is not None and inside is not None:
            parts.append(encode_field(number, _light(inside, value, first, name)))
        elif value is not None and (kind, number) == NUMBERS and len(value) >= MAPPED:
            place = {b"location": name, b"offset": b"%d" % first, b"length": b"%d" % len(value)}
            parts += [encode_field(13, encode_pair(*entry)) for entry in place.items()]
            parts.append(b"\x70\x01")  # field 14: outside
        elif (kind, number) != SAID:
            parts.append(message[start:end])
    return b"".join(parts)


METADATA = "hydrasurgeon."
"""Prefix of our keys in a graph's metadata."""

DECIDED = ("logits", "probabilities", "uncertainty", "ood_score", "unfamiliar")
"""Outputs of a model with a decision state: calibrated probabilities, their entropy, and whether
the score is above its threshold.
"""
MEMBERS = "members"
"""The output of a folder's graph that holds what its members say, whose calibrated answer is its
logits.
"""
LENGTHS: tuple[int, ...] = (3, 6, 9)
"""Tokens of the texts that multiply-adds are counted on: they grow with the square."""
KEY, OF = f"{METADATA}graph_sha256".encode(), f"{METADATA}of".encode()
"""Keys of the hash, and of the checkpoint that a cached graph belongs to."""
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Told(BaseModel, frozen=True):
    """Costs of an answer. Older versions recorded more."""

    params: Count
    macs: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    """Multiply-adds of one sample; of texts, one for each of `LENGTHS`."""
    macs_all_tokens: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)] | None = None
    """The same if every layer computed all tokens; None in files of older versions."""
    decision: str | None = None
    """The hash of the decision state's tensors, which lie beside a folder's graph."""

    def macs_of(self, tokens: int | None) -> int:
        """Return the multiply-adds of one sample of so many tokens."""
        return _at_length(self.macs, tokens)

    def macs_all_tokens_of(self, tokens: int | None) -> int | None:
        """Return the same if every layer computed all tokens."""
        return None if self.macs_all_tokens is None else _at_length(self.macs_all_tokens, tokens)


def _at_length(counts: tuple[int, ...], tokens: int | None) -> int:
    """Read the parabola through the counts at `LENGTHS` at so many tokens."""
    if tokens is None or len(counts) < len(LENGTHS):
        return counts[0]
    total = Fraction(0)
    for at, count in zip(LENGTHS, counts, strict=True):
        term = Fraction(count)
        for other in LENGTHS:
            if other != at:
                term *= Fraction(tokens - other, at - other)
        total += term
    return round(total)


def sealed(content: bytes, costs: Told | None = None, *, of: str | None = None) -> bytes:
    """Append the costs and the hash of everything to a graph's file. `of` names the checkpoint of a
    cached graph.
    """
    if costs is not None:
        content += _entry(f"{METADATA}told".encode(), costs.model_dump_json())
    if of is not None:
        content += _entry(OF, of)
    return content + _entry(KEY, hashlib.sha256(content).hexdigest())


def _entry(key: bytes, text: str) -> bytes:
    """Encode an entry of a graph's metadata."""
    return encode_field(SAID[1], encode_pair(key, text.encode()))


SEAL = len(sealed(b""))
"""Bytes of the hash at the end."""
BLOCK = 1 << 18
"""Bytes that are hashed at once: they stay in the processor's cache."""
TAIL = 256
"""Bytes in front of the hash that are looked at: more than the longest entry."""


def is_sound(path: Path, *, of: str | None = None) -> bool:
    """Return True if a file is unchanged since it was sealed, and belongs to the checkpoint `of`."""
    with open_regular(path) as file:
        size = file.seek(0, 2) - SEAL
        total, tail = hashlib.sha256(), b""
        file.seek(0)
        room = memoryview(bytearray(BLOCK))
        while size > 0 and (count := file.readinto(room[: min(size, BLOCK)])):
            total.update(room[:count])
            tail = (tail + bytes(room[max(0, count - TAIL) : count]))[-TAIL:]
            size -= count
        seal = file.read()
    sealing = _entry(KEY, total.hexdigest())
    return seal == sealing and (of is None or tail.endswith(_entry(OF, of)))
