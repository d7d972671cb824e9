"""An .npz file, read as if it were safetensors: numbers are tensors, texts are metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, open_regular
from hydrasurgeon.files.header import ITEMSIZE, TensorInfo
from hydrasurgeon.files.tensors import BLOCK_BYTES, CARRIER, TensorFile

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

LETTERS = {"f": "F", "i": "I", "u": "U"}
"""Kind of numpy's numbers → what safetensors calls them, before their bits."""
PICKLED = "Write it with numpy's savez, of arrays of numbers or texts: np.array(names, dtype=str) for an array of objects."
"""What to do about a file that cannot be read."""


class ArrayFile(TensorFile):
    """The arrays are in memory; nothing is unpickled."""

    def __init__(self, path: Path) -> None:
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
