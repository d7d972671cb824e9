"""A folder of images in a .zip: read where it lies, nothing is unpacked, and no name in it becomes a path."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from PIL import Image

from hydrasurgeon.data.images import MAX_BYTES, decode
from hydrasurgeon.data.labels import Labels, class_names
from hydrasurgeon.data.places import PICTURES, ending
from hydrasurgeon.data.samples import Samples
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, open_regular, visible

# Files in one archive: more than any data set has.
MAX_FILES = 4_000_000


class Zipped(Samples):
    """Images of an archive, each unpacked when it is read, and never more of it than an image may have."""

    def __init__(
        self, spec: str, path: Path, names: Sequence[str], labels: Labels | None, classes: Sequence[str] | None
    ) -> None:
        super().__init__(spec, labels, classes)
        self.path, self.names = path, list(names)
        self._opened: tuple[int, IO[bytes], zipfile.ZipFile] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None}

    def __del__(self) -> None:
        if getattr(self, "_opened", None) is not None:
            self._opened[1].close()  # type: ignore[index]

    def name(self, i: int) -> str:
        return self.names[i]

    def read(self, i: int) -> Image.Image:
        return decode(self.content(i), f"{self.path}: {visible(self.names[i])}")

    def content(self, i: int) -> bytes:
        where = f"{self.path}: {visible(self.names[i])}"
        with decoding(f"{where}: cannot be unpacked"), self._archive().open(self.names[i]) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DataError(f"{where}: unpacks to more than {MAX_BYTES:,} bytes")
        return content

    def _archive(self) -> zipfile.ZipFile:
        """Of this process alone: workers that share a file would move its position for one another."""
        if self._opened is None or self._opened[0] != os.getpid():
            file = open_regular(self.path, error=DataError)
            self._opened = os.getpid(), file, zipfile.ZipFile(file)
        return self._opened[2]


def read_zip(spec: str, path: Path) -> Samples:
    """Class folders, or images without labels, perhaps within folders that hold all of them."""
    with open_regular(path, error=DataError) as file, decoding(f"{spec}: not a readable .zip file"):
        files = [info.filename for info in zipfile.ZipFile(file).infolist() if not info.is_dir()]
    if len(files) > MAX_FILES:
        raise DataError(f"{spec}: holds {len(files):,} files; at most {MAX_FILES:,} are read")
    wrong = next((name for name in files if not _is_plain(name)), None)
    if wrong is not None:
        raise DataError(f"{spec}: names a file '{visible(wrong)[:80]}', which is not one within it")
    if len(set(files)) != len(files):
        raise DataError(f"{spec}: holds two files of one name")
    images = [name for name in sorted(files) if ending(Path(name)) in PICTURES and not _is_hidden(name)]
    parts, depth = [PurePosixPath(name).parts for name in images], 0
    while parts and min(map(len, parts)) > depth + 2 and len({each[depth] for each in parts}) == 1:
        depth += 1  # a folder that all lie in says nothing
    folders = [each[depth] for each in parts if len(each) > depth + 1]
    if len(folders) < len(images) or len({*folders}) < 2:
        return Zipped(spec, path, images, None, None)
    classes = class_names(spec, sorted({*folders}))
    number = {name: i for i, name in enumerate(classes)}
    return Zipped(spec, path, images, np.array([number[folder] for folder in folders], dtype=np.int64), classes)


def _is_plain(name: str) -> bool:
    """Whether a name stays within its archive, and can be shown."""
    path = PurePosixPath(name)
    return name.isprintable() and "\\" not in name and not path.is_absolute() and ".." not in path.parts


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)
