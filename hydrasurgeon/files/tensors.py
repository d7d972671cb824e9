"""Read and write safetensors one tensor at a time, hashing on the way, without torch.

The weights' hash is a hash of hashes, so unchanged tensors are never hashed twice and several threads
can share the work:  sha256( Σ name · dtype · shape · sha256(bytes) )  over the names in order.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import CheckpointError

if TYPE_CHECKING:  # numpy is a third of what `inspect` would have to import, and reads no header
    import numpy as np
    from numpy.typing import NDArray

    Raw = NDArray[Any]

__all__ = [
    "Planned",
    "TensorFile",
    "TensorInfo",
    "Tensors",
    "as_float",
    "digest",
    "from_float",
    "weights_sha256",
    "write_tensors",
]

ITEMSIZE = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
# Surgery only moves bytes, so every dtype is read as the unsigned integer of its width (numpy has no bfloat16).
CARRIER = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
MAX_HEADER = 100_000_000
THREADS = 2
LOOKAHEAD_BYTES = 128 << 20


@dataclass(frozen=True)
class TensorInfo:
    """One entry of a safetensors header; `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int

    def named(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """What a hash of weights takes from it, for a part of this tensor under another name."""
        return replace(self, name=name, shape=shape)


class TensorFile:
    """One safetensors file: its header is checked on opening, its tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.metadata, self.infos = _read_header(path, file.read(8), file.read, size)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error

    def read(self, name: str) -> Raw:
        """The tensor's bytes as unsigned integers of its item size."""
        import numpy as np

        info = self.infos[name]
        array: Raw = np.empty(info.shape, dtype=CARRIER[ITEMSIZE[info.dtype]])
        view = array.reshape(-1).view("u1").data if info.nbytes else memoryview(b"")
        with self.path.open("rb", buffering=0) as file:
            file.seek(info.start)
            done = 0
            while done < info.nbytes:
                got = file.readinto(view[done:])
                if not got:
                    raise CheckpointError(
                        f"{self.path}: ends inside tensor {name}",
                        hint="The file is truncated: copy it again.",
                    )
                done += got
        return array


def _read_header(
    path: Path, prefix: bytes, read: Callable[[int], bytes], size: int
) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    broken = "Only safetensors files are read; convert other formats with their own library first."
    if len(prefix) < 8:
        raise CheckpointError(
            f"{path}: not a safetensors file (only {size} bytes long)", hint=broken
        )
    (length,) = struct.unpack("<Q", prefix)
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path}: not a safetensors file (no header where one must be)", hint=broken
        )
    if 8 + length > size:
        raise CheckpointError(
            f"{path}: the header should be {length} bytes long, but the file ends after {size}",
            hint="The file is truncated or not safetensors: copy or convert it again.",
        )
    try:
        header = json.loads(read(length))
        metadata = header.pop("__metadata__", {})
        infos = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            infos[name] = TensorInfo(
                name, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, end - begin
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: the safetensors header is damaged ({error})", hint=broken
        ) from error
    for info in infos.values():
        if info.dtype not in ITEMSIZE:
            raise CheckpointError(
                f"{path}: tensor {info.name} has dtype {info.dtype}, which is not supported"
            )
        if info.nbytes != ITEMSIZE[info.dtype] * math.prod(info.shape):
            raise CheckpointError(
                f"{path}: tensor {info.name}: {info.nbytes} bytes do not fit shape {info.shape}",
                hint=broken,
            )
        if info.start + info.nbytes > size or info.start < 8 + length:
            raise CheckpointError(
                f"{path}: tensor {info.name} lies beyond the end of the file ({size} bytes)",
                hint="The file is truncated: copy it again.",
            )
    return metadata, infos


class Tensors(Mapping[str, TensorInfo]):
    """The tensors of one or several (sharded) files, by name."""

    def __init__(self, files: Sequence[TensorFile], names: Mapping[str, str] | None = None) -> None:
        """With `names` (ours → the file's) only these tensors, under our names."""
        self.files = tuple(files)
        homes = {name: file for file in self.files for name in file.infos}
        pairs = {name: name for name in homes} if names is None else names
        self._home = {name: (homes[stored], stored) for name, stored in pairs.items()}

    def __getitem__(self, name: str) -> TensorInfo:
        file, stored = self._home[name]
        info = file.infos[stored]
        return info if stored == name else replace(info, name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._home))

    def __len__(self) -> int:
        return len(self._home)

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.values())

    def read(self, name: str) -> Raw:
        file, stored = self._home[name]
        return file.read(stored)

    def home(self, name: str) -> tuple[TensorFile, TensorInfo]:
        """The file that holds a tensor, and where in it."""
        file, stored = self._home[name]
        return file, file.infos[stored]

    def digests(self) -> dict[str, str]:
        """sha256 of every tensor's bytes."""
        names = list(self)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(
                zip(names, pool.map(lambda name: digest(self.read(name)), names), strict=True)
            )


def digest(array: Raw) -> str:
    return hashlib.sha256(_bytes(array)).hexdigest()


def _bytes(array: Raw) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view("u1").data


def as_float(raw: Raw, dtype: str) -> NDArray[np.float64]:
    """Raw safetensors integers → their values."""
    if dtype == "BF16":
        return (raw.astype("u4") << 16).view("f4").astype("f8")
    return raw.view({"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]).astype("f8")


def from_float(values: NDArray[np.float64], dtype: str) -> Raw:
    """Values → raw safetensors integers, rounded to nearest, ties to even."""
    if dtype == "BF16":
        bits = values.astype("f4").view("u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")
    return values.astype({"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]).view(
        CARRIER[ITEMSIZE[dtype]]
    )


def weights_sha256(infos: Mapping[str, TensorInfo], digests: Mapping[str, str]) -> str:
    return _combine(
        (infos[name].name, infos[name].dtype, infos[name].shape, digests[name])
        for name in sorted(infos)
    )


def _combine(entries: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    total = hashlib.sha256()
    for name, dtype, shape, one in entries:
        total.update(f"{name}\0{dtype}\0{','.join(map(str, shape))}\0{one}\n".encode())
    return total.hexdigest()


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: what the header says now, and where its bytes come from later."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    produce: Callable[[], tuple[Raw, str]]
    """Gives the array and the sha256 of its bytes; runs in a worker thread."""

    @property
    def nbytes(self) -> int:
        return ITEMSIZE[self.dtype] * math.prod(self.shape)


def write_tensors(
    path: Path, planned: Sequence[Planned], metadata: Callable[[str | None], Mapping[str, str]]
) -> str:
    """Stream `planned` into a new file at `path`, fsync it, and return the weights' hash.

    `metadata` is asked twice: with None before the bytes are known, and with the hash after; both answers
    must be equally long, since the second replaces the first in place.
    """
    planned = sorted(planned, key=lambda plan: plan.name)
    offsets, at = {}, 0
    for plan in planned:
        offsets[plan.name] = [at, at + plan.nbytes]
        at += plan.nbytes

    def header(sha256: str | None) -> bytes:
        entries = {
            "__metadata__": {"format": "pt", **metadata(sha256)},
            **{
                p.name: {"dtype": p.dtype, "shape": list(p.shape), "data_offsets": offsets[p.name]}
                for p in planned
            },
        }
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=True).encode()
        return text + b" " * (-len(text) % 8)

    with path.open("wb") as file:
        first = header(None)
        file.write(struct.pack("<Q", len(first)) + first)
        digests = []
        for plan, array, one in _produced(planned):
            assert array.shape == plan.shape, (
                f"{plan.name}: planned {plan.shape}, produced {array.shape}"
            )
            file.write(_bytes(array))
            digests.append((plan.name, plan.dtype, plan.shape, one))
        sha256 = _combine(digests)
        final = header(sha256)
        assert len(final) == len(first), (
            "the manifest changed its length while the weights were written"
        )
        file.seek(8)
        file.write(final)
        file.flush()
        os.fsync(file.fileno())
    return sha256


def _produced(planned: Sequence[Planned]) -> Iterator[tuple[Planned, Raw, str]]:
    """Read, cut and hash ahead of the writer, a bounded number of bytes at a time."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: list[tuple[Planned, Future[tuple[Raw, str]]]] = []
        ahead = 0
        queue = iter(planned)
        upcoming = next(queue, None)
        while waiting or upcoming is not None:
            while upcoming is not None and (
                not waiting or ahead + upcoming.nbytes <= LOOKAHEAD_BYTES
            ):
                waiting.append((upcoming, pool.submit(upcoming.produce)))
                ahead += upcoming.nbytes
                upcoming = next(queue, None)
            plan, future = waiting.pop(0)
            array, one = future.result()
            ahead -= plan.nbytes
            yield plan, array, one
