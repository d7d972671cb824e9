"""What an exported graph's file says behind its graph: what an answer costs, and the hash of
both.

Two messages of protobuf, one behind the other, are read as one: the file stays a graph.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from hydrasurgeon.engines.crafted import SAID, pair, written
from hydrasurgeon.files.foreign import open_regular

METADATA = "hydrasurgeon."
"""How the keys begin under which a file tells labels, thresholds and weights."""

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
"""What the hash is called, and what says of which checkpoint a cached graph is."""
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Told(BaseModel, frozen=True):
    """What an answer costs; older versions said more."""

    params: Count
    macs: Annotated[tuple[Count, ...], Field(min_length=1, max_length=3)]
    """Multiply-adds of one sample; of texts, one for each of `LENGTHS`."""
    decision: str | None = None
    """The hash of the decision state's tensors, which lie beside a folder's graph."""

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
        content += _entry(f"{METADATA}told".encode(), told.model_dump_json())
    if of is not None:
        content += _entry(OF, of)
    return content + _entry(KEY, hashlib.sha256(content).hexdigest())


def _entry(key: bytes, text: str) -> bytes:
    """An entry of a graph's metadata."""
    return written(SAID[1], pair(key, text.encode()))


SEAL = len(sealed(b""))
"""Bytes of the hash at the end."""
BLOCK = 1 << 18
"""Bytes that are hashed at once: they stay in the processor's cache."""
TAIL = 256
"""Bytes in front of the hash that are looked at: more than the longest entry."""


def is_sound(path: Path, *, of: str | None = None) -> bool:
    """Whether a file is as it was sealed, and says that it is `of` this."""
    with open_regular(path) as file:
        size = file.seek(0, 2) - SEAL
        total, tail = hashlib.sha256(), b""
        file.seek(0)
        room = memoryview(bytearray(BLOCK))
        while size > 0 and (count := file.readinto(room[: min(size, BLOCK)])):
            total.update(room[:count])
            tail = (tail + bytes(room[max(0, count - TAIL) : count]))[-TAIL:]
            size -= count
        said = file.read()
    sealing = _entry(KEY, total.hexdigest())
    return said == sealing and (of is None or tail.endswith(_entry(OF, of)))
