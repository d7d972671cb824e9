"""An .npz file → images, labels and class names; sizes and dtypes are checked before anything is unpacked."""

from __future__ import annotations

import io
import warnings
import zipfile
from math import prod
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.bounds import expands
from hydrasurgeon.data.failures import reason
from hydrasurgeon.data.images import check_size
from hydrasurgeon.data.labels import class_names, class_numbers
from hydrasurgeon.data.samples import Arrays
from hydrasurgeon.errors import DataError

Array = NDArray[Any]

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""Version of numpy's format → what reads its header."""
CHUNK = 1 << 20
"""Bytes that are unpacked at once."""
IMAGES = "uint8 N×H×W or N×H×W×C"
"""What images must be, in words."""
# Name → numpy's kinds of dtype, and how to say so.
EXPECTED = {"images": ("u", IMAGES), "labels": ("iu", "integers"), "classes": ("U", "texts")}


def read_npz(spec: str, file: IO[bytes]) -> Arrays:
    """`images`, and `labels` and `classes` where they are there; other arrays are left alone."""
    stored = file.seek(0, io.SEEK_END)
    try:
        archive = zipfile.ZipFile(file)
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    except Exception as error:  # zipfile raises whatever damaged bytes lead it to
        raise DataError(f"{spec}: not a readable .npz file ({reason(error)})") from error
    if "images" not in members:
        names = ", ".join(sorted(members)[:10])
        raise DataError(f"{spec}: has no array 'images' (found: {names or 'nothing'})")
    arrays = {}
    for name, (kinds, what) in EXPECTED.items():
        if name in members:
            arrays[name] = _array(f"{spec}: {name}", archive, members[name], kinds, what, stored)
    images = pixels(spec, arrays["images"])
    labels = arrays.get("labels")
    if labels is not None and labels.shape != (len(images),):
        raise DataError(f"{spec}: labels must be {len(images)} integers, found shape {labels.shape}")
    classes = arrays.get("classes")
    if classes is not None and classes.ndim != 1:
        raise DataError(f"{spec}: classes must be a list of names, found shape {classes.shape}")
    return Arrays(
        spec,
        images,
        None if labels is None else class_numbers(spec, labels),
        None if classes is None else class_names(spec, classes.tolist()),
    )


def pixels(spec: str, images: Array) -> NDArray[np.uint8]:
    """Images that PIL can take one by one."""
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[-1] not in (1, 3, 4))
    ):
        raise DataError(f"{spec}: images must be {IMAGES}, found {images.dtype} {images.shape}")
    if len(images):
        check_size(images.shape[2], images.shape[1], f"{spec}: each image")
    return images


def _array(where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, kinds: str, what: str, stored: int) -> Array:
    """One member as an array of one of the dtypes' `kinds`; nothing is unpickled, and sizes must agree."""
    if expands(info.file_size, stored):
        raise DataError(
            f"{where} would unpack to {info.file_size:,} bytes from a file of {stored:,}",
            hint="The file is damaged or was made to fill the memory: do not use it.",
        )
    try:
        with archive.open(info) as member, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtypes spelt as numpy no longer does
            shape, fortran, dtype = HEADERS[np.lib.format.read_magic(member)](member)
            size = info.file_size - member.tell()
            if dtype.kind not in kinds:
                raise DataError(f"{where} must be {what}, found {dtype} {shape}")
            if any(length < 0 for length in shape) or prod(shape) * dtype.itemsize != size:
                raise ValueError(f"{size} bytes do not fit {dtype} {shape}")
            content = np.empty(size, dtype=np.uint8)
            for at in range(0, size, CHUNK):
                part = content[at : at + CHUNK]
                part[:] = np.frombuffer(member.read(len(part)), dtype=np.uint8)
            array: Array = content.view(dtype).reshape(shape, order="F" if fortran else "C")
            if dtype.kind == "U":
                array.tolist()  # refuses what is no character
            return array
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise whatever damaged bytes lead them to
        raise DataError(f"{where}: cannot be read ({reason(error)})") from error
