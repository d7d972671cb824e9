"""What an exported graph's file says behind its graph: what an answer costs, and the hash of
both.

Two messages of protobuf, one behind the other, are read as one: the file stays a graph.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, Field

from hydrasurgeon.engines.program import METADATA

LENGTHS: tuple[int, ...] = (3, 6, 9)
"""Tokens of the texts that multiply-adds are counted on: they grow with the square."""
KEY, OF = f"{METADATA}graph_sha256".encode(), f"{METADATA}of".encode()
"""What the hash is called, and what says of which checkpoint a cached graph is."""
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Told(BaseModel, frozen=True):
    """What an answer costs; older versions said more."""

    params: Count
    macs: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    """Multiply-adds of one sample; of texts, one for each of `LENGTHS`."""

    def macs_of(self, tokens: int | None) -> int:
        """Multiply-adds of one sample of so many tokens: the parabola through those counted."""
        if tokens is None or len(self.macs) < len(LENGTHS):
            return self.macs[0]
        total = Fraction(0)
        for at, count in zip(LENGTHS, self.macs, strict=True):
            term = Fraction(count)
            for other in LENGTHS:
                if other != at:
                    term *= Fraction(tokens - other, at - other)
            total += term
        return round(total)


def sealed(content: bytes, told: Told | None = None, *, of: str | None = None) -> bytes:
    """The file with what it says behind it, and the hash of both; a cached one says what it is `of`."""
    if told is not None:
        import onnx

        said = onnx.StringStringEntryProto(key=f"{METADATA}told", value=told.model_dump_json())
        content += onnx.ModelProto(metadata_props=[said]).SerializeToString()
    if of is not None:
        content += _entry(OF, of)
    return content + _entry(KEY, hashlib.sha256(content).hexdigest())


def _entry(key: bytes, text: str) -> bytes:
    """An entry of a graph's metadata, of fewer than 128 bytes."""
    value = text.encode()
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x72" + bytes([len(entry)]) + entry


SEAL = len(sealed(b""))
"""Bytes of the hash at the end."""


def is_sound(content: bytes, *, of: str | None = None) -> bool:
    """Whether a file is as it was sealed, and says that it is `of` this."""
    inside = content[:-SEAL]
    return sealed(inside) == content and (of is None or inside.endswith(_entry(OF, of)))
