"""Read and write safetensors one tensor at a time, hashing on the way, without torch.

The weights' hash is a hash of hashes, so unchanged tensors are never hashed twice and several
threads can share the work:  sha256( Σ name · dtype · shape · sha256(bytes) )  over the names in
order.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.files.header import AGAIN, ITEMSIZE, MAX_HEADER, TensorInfo, read_header
from hydrasurgeon.files.untrusted import decoding, open_regular, readable

if TYPE_CHECKING:  # numpy is a third of what `inspect` would have to import, and reads no header
    import numpy as np
    from numpy.typing import NDArray

    Raw = NDArray[Any]
    """A tensor\'s numbers as numpy holds them; unsigned integers for dtypes that it lacks."""

Look = Callable[[str, Any], None]
"""Function that sees a tensor's name and its blocks as they are read."""
Entry = tuple[str, str, tuple[int, ...], str]
"""Entry of a tensor in the weights' hash: name, dtype, shape, and sha256 of its bytes."""

# Surgery only moves bytes, so every dtype is read as the unsigned integer of its width (numpy has
# no bfloat16).
CARRIER = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
EXPONENT = {"F16": 0x7C00, "BF16": 0x7F80, "F8_E5M2": 0x7C, "F8_E4M3": 0x7F}
"""Bits of the exponent, which are all set in what is not finite (E4M3: its seven lower bits)."""
NUMPY = {"F32": "<f4", "F64": "<f8"}
"""Types that numpy tests for infinities and NaN by itself."""
# How much of a tensor is in memory at once where it need not be whole.
BLOCK_BYTES = 8 << 20
THREADS = 2
"""Tensors that are read, cut and hashed at a time."""


class TensorFile:
    """One safetensors file: its header is checked on opening, its tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path) as file:
            self._stamp = _stamp(file)
            self.metadata, self.infos = read_header(file, path)
        self.digests: dict[str, str] = {}
        """sha256 of tensors that were hashed, so that no command hashes one twice."""

    def read(self, name: str) -> Raw:
        """Read a tensor as unsigned integers of its item size."""
        info = self.infos[name]
        (array,) = self.blocks(name, most=info.nbytes) if info.nbytes else (_empty(info, 0),)
        return array.reshape(info.shape)

    def blocks(self, name: str, *, most: int | None = None) -> Iterator[Raw]:
        """Yield a tensor's elements in flat arrays of at most `most` bytes (BLOCK_BYTES)."""
        info = self.infos[name]
        width = ITEMSIZE[info.dtype]
        step = max(1, (most or BLOCK_BYTES) // width)
        end = math.prod(info.shape)
        with open_regular(self.path) as file, readable(self.path):
            if _stamp(file) != self._stamp:
                raise CheckpointError(
                    f"{self.path}: changed while it was read", hint="Run the command again."
                )
            file.seek(info.start)
            for at in range(0, end, step):
                array = _empty(info, min(step, end - at))
                if file.readinto(array.view("u1").data) < array.nbytes:
                    raise CheckpointError(f"{self.path}: ends inside tensor {name}", hint=AGAIN)
                yield array


def _empty(info: TensorInfo, count: int) -> Raw:
    import numpy as np

    return np.empty(count, dtype=CARRIER[ITEMSIZE[info.dtype]])


def _stamp(file: IO[bytes]) -> tuple[int, int, int, int]:
    """Return the identity and the state of a file."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


LETTERS = {"f": "F", "i": "I", "u": "U"}
"""Kind of numpy's numbers → what safetensors calls them, before their bits."""
PICKLED = "Write it with numpy's savez, of arrays of numbers or texts: np.array(names, dtype=str) for an array of objects."
"""Hint about an array file that cannot be read."""


class ArrayFile(TensorFile):
    """An .npz file, read as if it were safetensors: numbers are tensors, texts are metadata. The arrays
    are in memory; nothing is unpickled.
    """

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.path = path
        self.metadata: dict[str, str] = {}
        self.infos: dict[str, TensorInfo] = {}
        self.digests: dict[str, str] = {}
        self._arrays: dict[str, Raw] = {}
        with (
            open_regular(path, error=DataError) as file,
            decoding(f"{path}: not a readable .npz file", hint=PICKLED),
        ):
            arrays = dict(np.load(file, allow_pickle=False))
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                self.metadata[name] = json.dumps(array.tolist())
            elif array.dtype.kind in LETTERS and array.dtype.itemsize in CARRIER:
                dtype = f"{LETTERS[array.dtype.kind]}{8 * array.dtype.itemsize}"
                little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                self.infos[name] = TensorInfo(name, dtype, array.shape, 0, array.nbytes)
                self._arrays[name] = little.reshape(-1).view(CARRIER[ITEMSIZE[dtype]])

    def blocks(self, name: str, *, most: int | None = None) -> Iterator[Raw]:
        step = max(1, (most or BLOCK_BYTES) // ITEMSIZE[self.infos[name].dtype])
        part = self._arrays[name]
        return (part[at : at + step] for at in range(0, len(part), step))


class Tensors(Mapping[str, TensorInfo]):
    """The tensors of one or several (sharded) files, by name."""

    def __init__(self, files: Sequence[TensorFile], names: Mapping[str, str] | None = None) -> None:
        """Open the tensors of files.

        With `names` (ours → the file's) only these tensors, under our names.
        """
        self.files = tuple(files)
        homes: dict[str, TensorFile] = {}
        for file in self.files:
            if repeated := homes.keys() & file.infos:
                name = min(repeated)
                raise CheckpointError(
                    f"{file.path}: tensor {name} is in {homes[name].path.name} too"
                )
            homes |= dict.fromkeys(file.infos, file)
        pairs = {name: name for name in homes} if names is None else names
        self._home = {name: (homes[stored], stored) for name, stored in pairs.items()}

    def __getitem__(self, name: str) -> TensorInfo:
        file, stored = self._home[name]
        info = file.infos[stored]
        return info if stored == name else replace(info, name=name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._home))

    def stored(self, name: str) -> str:
        """Return the name of a tensor in its file."""
        return self._home[name][1]

    def __len__(self) -> int:
        return len(self._home)

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.values())

    def read(self, name: str) -> Raw:
        file, stored = self._home[name]
        return file.read(stored)

    def blocks(self, name: str, *, most: int | None = None) -> Iterator[Raw]:
        """Yield a tensor's elements in flat arrays of at most `most` bytes (BLOCK_BYTES)."""
        file, stored = self._home[name]
        return file.blocks(stored, most=most)

    def rows(self, name: str) -> Iterator[Raw]:
        """Yield a tensor in arrays of a few rows of its first dimension; a scalar is one row."""
        shape = self[name].shape or (1,)
        row = self[name].nbytes // max(1, shape[0])
        most = max(1, BLOCK_BYTES // max(1, row)) * row
        for block in self.blocks(name, most=most):
            yield block.reshape((-1, *shape[1:]))

    def planned(self) -> list[Planned]:
        """Plan to write all tensors unchanged."""
        return [
            Planned(name, info.dtype, info.shape, partial(self.blocks, name))
            for name, info in self.items()
        ]

    def digests(self, look: Look | None = None) -> dict[str, str]:
        """Return the sha256 of every tensor's bytes; `look` sees the blocks."""

        def digest_of(name: str) -> str:
            file, stored = self._home[name]
            if look is None and stored in file.digests:
                return file.digests[stored]
            total = hashlib.sha256()
            for block in self.blocks(name):
                total.update(block.data)
                if look is not None:
                    look(name, block)
            file.digests[stored] = total.hexdigest()
            return file.digests[stored]

        names = list(self)
        with ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(names, pool.map(digest_of, names), strict=True))


def sha256_of(arrays: Iterable[Raw]) -> str:
    """Return the hash of a tensor that comes in parts."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(as_bytes(array))
    return total.hexdigest()


def digest(array: Raw) -> str:
    return sha256_of([array])


def as_bytes(array: Raw) -> memoryview:
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view("u1").data


def typed(raw: Raw, dtype: str) -> Raw:
    """Convert raw safetensors integers to their values; bfloat16, which numpy lacks, to float32."""
    if dtype == "BF16":
        return (raw.astype("u4") << 16).view("f4")
    return raw.view(f"<{dtype[0].lower()}{int(dtype[1:]) // 8}")


def as_float(raw: Raw, dtype: str) -> NDArray[np.float64]:
    """Convert raw safetensors integers to float64."""
    return typed(raw, dtype).astype("f8")


def from_float(values: NDArray[np.float64], dtype: str) -> Raw:
    """Convert values to raw safetensors integers, rounded to nearest, ties to even."""
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


def _combine(entries: Iterable[Entry]) -> str:
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
    produce: Callable[[], Iterable[Raw]]
    """The arrays that make it up, one behind the other; runs in a worker thread."""

    @property
    def nbytes(self) -> int:
        return ITEMSIZE[self.dtype] * math.prod(self.shape)


def planned(arrays: Mapping[str, Raw]) -> list[Planned]:
    """Plan to write float32 arrays under their names."""
    return [
        Planned(name, "F32", array.shape, partial(_carried, array))
        for name, array in arrays.items()
    ]


def _carried(array: Raw) -> list[Raw]:
    return [array.view("<u4")]


def write_tensors(
    path: Path,
    planned: Sequence[Planned],
    metadata: Callable[[str | None], Mapping[str, str]],
    *,
    elsewhere: Sequence[Entry] = (),
) -> list[Entry]:
    """Stream `planned` into a new file and fsync it; return the entries of the weights' hash.

    `metadata` is asked twice: with None before the bytes are known, and with the hash after, which
    counts in the entries `elsewhere`, of other files; both answers must be equally long, since the second
    replaces the first in place.
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

    with path.open("xb") as file:
        first = header(None)
        if len(first) > MAX_HEADER:
            raise CheckpointError(
                f"{path}: the header would have {len(first):,} bytes; a safetensors file may have {MAX_HEADER:,}",
                hint="Write a directory (-o DIR/): there the texts lie beside the weights.",
            )
        file.write(struct.pack("<Q", len(first)) + first)
        digests: list[Entry] = []
        parts = _parts(planned)
        if at > BLOCK_BYTES:
            parts = _ahead(parts)
        for part in parts:
            if isinstance(part, memoryview):
                file.write(part)
            else:
                digests.append(part)
                end = 8 + len(first) + offsets[part[0]][1]
                assert file.tell() == end, f"{part[0]}: not {part[2]}"
        final = header(_combine(sorted((*elsewhere, *digests))))
        assert len(final) == len(first), (
            "the manifest changed its length while the weights were written"
        )
        file.seek(8)
        file.write(final)
        file.flush()
        os.fsync(file.fileno())
    return digests


def _parts(planned: Iterable[Planned]) -> Iterator[memoryview | Entry]:
    """Yield the bytes of each tensor, and after them its entry of the weights' hash."""
    for plan in planned:
        total = hashlib.sha256()
        for array in plan.produce():
            content = as_bytes(array)
            total.update(content)
            yield content
        yield plan.name, plan.dtype, plan.shape, total.hexdigest()


def _ahead(parts: Iterator[memoryview | Entry]) -> Iterator[memoryview | Entry]:
    """Yield the same parts, while a worker makes the next one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, parts, None)
        while (part := following.result()) is not None:
            following = pool.submit(next, parts, None)
            yield part


def finite(content: NDArray[np.uint8], dtype: str) -> bool:
    """Return True if bytes of `dtype` hold finite numbers only; integers always do."""
    import numpy as np

    if dtype in NUMPY:
        return bool(np.isfinite(content.view(NUMPY[dtype])).all())
    if dtype in EXPONENT:
        bits = EXPONENT[dtype]
        return not bool(((content.view(CARRIER[ITEMSIZE[dtype]]) & bits) == bits).any())
    return True


def sound(blocks: Iterable[Raw], dtype: str, *, name: str, path: Path) -> Iterator[Raw]:
    """Yield the same blocks, as long as their numbers are finite."""
    for block in blocks:
        if not finite(block.reshape(-1).view("u1"), dtype):
            raise spoiled(name, path)
        yield block


def spoiled(name: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: tensor {name} holds NaN or infinity: nothing that is computed with it means anything",
        hint="Start from a sound checkpoint; `hydrasurgeon verify` names all such tensors.",
    )
