"""Image–text pairs: webdataset's tar shards, or a table with a column of images and one of
captions.
"""

from __future__ import annotations

import glob
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hydrasurgeon.data.images import MAX_BYTES, decode
from hydrasurgeon.data.places import TABLES, ending, is_there
from hydrasurgeon.data.samples import Rows, Samples, limited
from hydrasurgeon.data.tables import CAPTIONS, Columns, Table, read_tables
from hydrasurgeon.data.tables import IMAGES as IMAGE_COLUMNS
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, must, open_regular, portable, readable, utf8
from hydrasurgeon.options.columns import DataSpec

KINDS = (
    "shards (a.tar, shards-{000..003}.tar, 'shards-*.tar', a folder of them), .parquet, "
    ".jsonl or .csv"
)
"""What image–text pairs can be, in words."""
IMAGES = ("jpg", "jpeg", "png", "webp")
"""Suffixes of a shard’s pictures."""
TEXT = "txt"
"""Suffix of a shard’s captions."""
RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
"""Numbered shards in one name: {000..127}."""


def open_pairs(spec: str, *, limit: int | None = None, seed: int = 0) -> Samples:
    """Pairs behind a spec; with `limit` a seeded random subset of them."""
    place, named = DataSpec.parse(spec)
    path, columns = Path(place), Columns(named)
    if ending(path) in TABLES and is_there(path):
        (table,) = read_tables(spec, path, columns)
        samples = _captioned(table, columns)
    else:
        samples = Shards(spec, _shards(spec, path))
    if not len(samples):
        raise DataError(f"{spec}: holds no image–text pairs")
    samples.spec = portable(spec)
    return limited(samples, limit, seed)


def _shards(spec: str, path: Path) -> list[Path]:
    numbers = RANGE.search(spec)
    names: Iterable[str]
    if is_there(path):
        names = map(str, sorted(path.glob("*.tar")) if path.is_dir() else [path])
    elif numbers is not None:
        width, before, behind = len(numbers[1]), spec[: numbers.start()], spec[numbers.end() :]
        names = (
            f"{before}{i:0{width}}{behind}" for i in range(int(numbers[1]), int(numbers[2]) + 1)
        )
    else:
        names = sorted(glob.glob(spec))
    shards = []
    for shard in map(Path, names):
        if shard.suffix not in (".tar", *TABLES):
            raise DataError(
                f"{shard}: not image–text pairs",
                hint=f"Pairs are {KINDS}. A compressed shard must be unpacked to .tar first.",
            )
        shards.append(shard)
        if not is_there(shard):
            break
    if not shards or not is_there(shards[-1]):
        raise DataError(
            f"{shards[-1] if shards else spec}: no such image–text pairs",
            hint=f"Pairs are {KINDS}.",
        )
    return shards


class Shards(Samples):
    """Tar files in which members of one name, `key.jpg` and `key.txt`, follow one another.

    Only where they lie is held: pairs are read one by one, in any order.
    """

    kind = "pair"

    def __init__(self, spec: str, paths: Sequence[Path]) -> None:
        super().__init__(spec)
        self.paths = list(paths)
        places = [
            (number, *row) for number, path in enumerate(self.paths) for row in _members(path)
        ]
        self.where: NDArray[np.int64] = np.array(places, dtype=np.int64).reshape(-1, 5)
        """[pair, (shard, image offset, image size, text offset, text size)]"""

    def __len__(self) -> int:
        return len(self.where)

    def read(self, i: int) -> tuple[Image.Image, str]:
        where = f"{self.paths[self.where[i, 0]]}, pair {i}"
        image = decode(self._bytes(*self.where[i, [0, 1, 2]]), where)
        return image, utf8(self._bytes(*self.where[i, [0, 3, 4]]), f"{where}, caption", DataError)

    def content(self, i: int) -> bytes:
        """The caption, and the size of the image: shards are too large to be read once more for a
        hash.
        """
        return int(self.where[i, 2]).to_bytes(8, "little") + self._bytes(*self.where[i, [0, 3, 4]])

    def _bytes(self, shard: int, at: int, size: int) -> bytes:
        with readable(self.paths[shard], DataError), self.paths[shard].open("rb") as file:
            file.seek(at)
            return file.read(size)


def _members(path: Path) -> list[tuple[int, int, int, int]]:
    """Where image and text of each pair lie. A key with only one of them is no pair, as for
    webdataset.
    """
    keys: dict[tuple[int, str], dict[str, tuple[int, int]]] = {}
    before, run = "", 0
    for member in _files_in(path):
        folder, name = os.path.split(member.name)
        stem, _, suffix = name.lower().partition(".")
        key = os.path.join(folder, name[: len(stem)])
        run, before = run + (key != before), key
        kind = "image" if suffix in IMAGES else suffix
        if kind in ("image", TEXT) and member.size > MAX_BYTES:
            raise DataError(
                f"{path}: {member.name[:200]} has {member.size:,} bytes; at most {MAX_BYTES:,} "
                "are read"
            )
        keys.setdefault((run, key), {})[kind] = member.offset_data, member.size
    pairs = [
        (*parts["image"], *parts[TEXT])
        for parts in keys.values()
        if "image" in parts and TEXT in parts
    ]
    if not pairs:
        raise DataError(
            f"{path}: holds no image–text pairs",
            hint=f"A pair is KEY.{'|'.join(IMAGES)} followed by KEY.{TEXT}.",
        )
    return pairs


def _files_in(path: Path) -> Iterator[tarfile.TarInfo]:
    """The regular members of an uncompressed tar file, each behind the one before and within the
    file.
    """
    with open_regular(path, error=DataError) as raw:
        length, end = os.fstat(raw.fileno()).st_size, 0
        with (
            decoding(f"{path}: not a readable tar file"),
            tarfile.open(fileobj=raw, mode="r:") as tar,
        ):
            for member in tar:
                must((member.offset >= end and member.size >= 0, "its members overlap"))
                end = member.offset_data + (member.size if member.isfile() else 0)
                must((end <= length, "it ends within a member"))
                if member.isfile():
                    yield member


class Captioned(Samples):
    """Images of a table, and the captions beside them."""

    kind = "pair"

    def __init__(self, images: Rows, captions: Rows) -> None:
        super().__init__(images.spec)
        self.images, self.captions = images, captions

    def __len__(self) -> int:
        return len(self.images)

    def read(self, i: int) -> tuple[Image.Image, str]:
        image, caption = self.images.read(i), self.captions.read(i)
        assert isinstance(image, Image.Image)
        assert isinstance(caption, str)
        return image, caption

    def content(self, i: int) -> bytes:
        return self.images.content(i) + b"\0" + self.captions.content(i)


def _captioned(table: Table, columns: Columns) -> Samples:
    image, text = (
        table.column("image", columns, IMAGE_COLUMNS),
        table.column("text", columns, CAPTIONS),
    )
    if image is None or text is None:
        raise table.needs("columns image and text or caption")
    images = Rows(table.spec, table.columns[image], "image", root=table.root)
    return Captioned(images, Rows(table.spec, table.columns[text], "text"))


class Pairing:
    """A transform for pairs: images by `prepare`, and a batch's captions by `read` to token ids."""

    kind = "pair"

    def __init__(
        self, prepare: Callable[[Any], Tensor], read: Callable[[Sequence[str]], Tensor]
    ) -> None:
        self.prepare, self.read = prepare, read

    def __call__(self, pair: tuple[Image.Image, str]) -> tuple[Tensor, str]:
        return self.prepare(pair[0]), pair[1]

    def collate(self, pairs: Sequence[tuple[Tensor, str]]) -> dict[str, Tensor]:
        images = torch.stack([image for image, _ in pairs])
        return {"pixel_values": images, "texts": self.read([text for _, text in pairs])}
