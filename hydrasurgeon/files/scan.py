"""Read every tensor once, in pieces: the hash of its bytes, and whether all of its numbers are finite.

A float is infinite or not a number where all bits of its exponent are set (8-bit E4M3: where its other seven
bits are), so nothing is converted. Memory stays at one piece for each thread, however large a tensor is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.header import ITEMSIZE
from hydrasurgeon.files.tensors import CARRIER, THREADS, Tensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hydrasurgeon.files.tensors import Raw

PIECE_BYTES = 1 << 20
"""Small enough to stay in a core's cache between hashing and looking, large enough that calls do not count."""
EXPONENT = {"F16": 0x7C00, "BF16": 0x7F80, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}
"""Bits that are all set in what is not finite, where numpy has no quick test of its own."""
NUMPY = {"F32": "<f4", "F64": "<f8"}
"""What numpy tests for infinities and NaN by itself."""


@dataclass(frozen=True)
class Scanned:
    """What one pass over a tensor's bytes gives."""

    sha256: str
    finite: bool


def scan(tensors: Tensors) -> dict[str, Scanned]:
    """Hash and finiteness of every tensor."""
    names = list(tensors)
    # The largest first: no thread is left with one of them at the end.
    order = sorted(names, key=lambda name: -tensors[name].nbytes)
    with ThreadPoolExecutor(THREADS) as pool:
        scans = dict(zip(order, pool.map(lambda name: _scan(tensors, name), order), strict=True))
    return {name: scans[name] for name in names}


def _scan(tensors: Tensors, name: str) -> Scanned:
    dtype = tensors[name].dtype
    total, sound = hashlib.sha256(), True
    for block in tensors.blocks(name, most=PIECE_BYTES):
        total.update(block.data)
        sound = sound and finite(block.view("u1"), dtype)
    return Scanned(total.hexdigest(), sound)


def finite(content: NDArray[np.uint8], dtype: str) -> bool:
    """Whether bytes of `dtype` hold finite numbers only; integers always do."""
    import numpy as np

    if dtype in NUMPY:
        return bool(np.isfinite(content.view(NUMPY[dtype])).all())
    if dtype in EXPONENT:
        bits = EXPONENT[dtype]
        return not bool(((content.view(CARRIER[ITEMSIZE[dtype]]) & bits) == bits).any())
    return True


def sound(blocks: Iterable[Raw], dtype: str, *, name: str, path: Path) -> Iterator[Raw]:
    """The same blocks, as long as their numbers are finite."""
    for block in blocks:
        content = block.reshape(-1).view("u1")
        for at in range(0, len(content), PIECE_BYTES):
            if not finite(content[at : at + PIECE_BYTES], dtype):
                raise spoiled(name, path)
        yield block


def spoiled(name: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: tensor {name} holds NaN or infinity: nothing that is computed with it means anything",
        hint="Start from a sound checkpoint; `hydrasurgeon verify` names all such tensors.",
    )
