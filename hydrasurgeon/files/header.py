"""The header of a safetensors file: read once, checked whole, and trusted from then on.

A file is 8 bytes of length, a JSON object of that length, and the tensors' bytes: in the header's
order of offsets they cover the rest of the file exactly, without holes and without overlaps.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.untrusted import must, parse_json, readable

ITEMSIZE = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
"""Bytes of one element of every dtype that safetensors has."""
# The format's own limit.
MAX_HEADER = 100_000_000
MAX_TENSORS = 100_000
"""Tensors of one checkpoint: the largest models in use have some thousands. Each costs about 40 µs."""
# A name of a tensor or of a header's entry; the longest in use have some 150 characters.
MAX_NAME = 512
# Dimensions of one tensor; numpy and torch both know at least 32.
MAX_RANK = 16
# Elements of one tensor, empty dimensions counted as one: what numpy can lay out.
MAX_ELEMENTS = 2**48

ONLY = "Only safetensors files are read; convert other formats with their own library first."
"""The hint for files of other formats."""
AGAIN = "The file is truncated or not safetensors: copy or convert it again."
"""The hint for files that end too early, or are damaged."""


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a safetensors header; `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def named(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Return the entry of a part of this tensor under another name, for the weights' hash."""
        return replace(self, name=name, shape=shape)


def read_header(file: IO[bytes], path: Path) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """Read metadata and tensors of an open file; raise CheckpointError for a violated format."""
    size = os.fstat(file.fileno()).st_size
    with readable(path):
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else MAX_HEADER + 1
        content = file.read(min(length, size)) if length <= MAX_HEADER else b""
    if length <= MAX_HEADER and 8 + length > size:
        raise CheckpointError(
            f"{path}: the header should be {length} bytes long, but the file ends after {size}",
            hint=AGAIN,
        )
    if not content.startswith(b"{"):
        raise CheckpointError(
            f"{path}: not a safetensors file (no header where one must be)", hint=ONLY
        )
    where = f"{path} (safetensors header)"
    # One object for each tensor, one for the metadata, and the header itself.
    entries = parse_json(content, where, most=MAX_HEADER, objects=MAX_TENSORS + 2)
    try:
        metadata = entries.pop("__metadata__", {})
        texts = isinstance(metadata, dict) and all(
            isinstance(text, str) for text in metadata.values()
        )
        must((texts, "__metadata__ is not a JSON object of texts"))
        for name in (*metadata, *entries):
            # Control characters would let two sets of names have one hash, and move a terminal's
            # cursor.
            plain = 0 < len(name) <= MAX_NAME and name.isprintable()
            must(
                (
                    plain,
                    f"{name[:40]!r} is not a name: 1 to {MAX_NAME} characters that can be printed",
                )
            )
        infos = {name: _info(name, entry, 8 + length) for name, entry in entries.items()}
        _check_layout(infos.values(), 8 + length, size)
    except ValueError as error:
        raise CheckpointError(
            f"{path}: the safetensors header is damaged ({error})", hint=AGAIN
        ) from error
    return metadata, infos


def _info(name: str, entry: Any, data: int) -> TensorInfo:
    complete = isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}
    must((complete, f"tensor {name} does not have dtype, shape and data_offsets"))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    supported = isinstance(dtype, str) and dtype in ITEMSIZE
    must((supported, f"tensor {name} has dtype {str(dtype)[:40]!r}, which is not supported"))
    bounded = (
        _naturals(shape)
        and len(shape) <= MAX_RANK
        and math.prod(max(1, n) for n in shape) <= MAX_ELEMENTS
    )
    must((bounded, f"tensor {name} has no shape of at most {MAX_RANK} whole numbers"))
    fits = (
        _naturals(offsets)
        and len(offsets) == 2
        and offsets[1] - offsets[0] == ITEMSIZE[dtype] * math.prod(shape)
    )
    must((fits, f"tensor {name}: its data_offsets do not fit {dtype} of shape {shape}"))
    return TensorInfo(name, dtype, tuple(shape), data + offsets[0], offsets[1] - offsets[0])


def _naturals(values: Any) -> bool:
    """Return True for a list of whole numbers from 0 up; JSON's true is not 1."""
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)


def _check_layout(infos: Iterable[TensorInfo], at: int, size: int) -> None:
    """Check that the tensors cover the rest of the file without gaps."""
    for info in sorted(infos, key=lambda info: (info.start, info.nbytes)):
        end = info.start + info.nbytes
        must(
            (end <= size, f"tensor {info.name} lies beyond the end of the file ({size} bytes)"),
            (info.start >= at, f"tensor {info.name} overlaps the one before"),
            (info.start == at, f"tensor {info.name} has a gap before it"),
        )
        at = end
    must((at == size, f"{size - at} bytes behind the last tensor belong to none"))
