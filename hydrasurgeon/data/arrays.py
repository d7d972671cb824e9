"""An .npz file → images, labels and class names; nothing is unpickled, and no more is unpacked than a file can hold."""

from __future__ import annotations

import io
import warnings
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.data.images import check_size
from hydrasurgeon.data.labels import class_names, class_numbers
from hydrasurgeon.data.samples import Arrays
from hydrasurgeon.errors import DataError, reason

Array = NDArray[Any]

IMAGES = "uint8 N×H×W or N×H×W×C"
"""What images must be, in words."""
# Name → numpy's kinds of dtype, and how to say so.
EXPECTED = {"images": ("u", IMAGES), "labels": ("iu", "integers"), "classes": ("U", "texts")}
# What any file may unpack to: 1 GiB; beyond that, so many times its own size. Pictures do not compress better.
FREE, RATIO = 1 << 30, 100


def check_unpacked(where: str, unpacked: int, stored: int) -> None:
    """Refuse a file of `stored` bytes that says it holds more than it honestly can."""
    if unpacked > max(FREE, RATIO * stored):
        raise DataError(
            f"{where} would unpack to {unpacked:,} bytes from a file of {stored:,}",
            hint="The file is damaged or was made to fill the memory: do not use it.",
        )


def read_npz(spec: str, file: IO[bytes]) -> Arrays:
    """`images`, and `labels` and `classes` where they are there; other arrays are left alone."""
    stored = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        archive = np.load(file, allow_pickle=False)
        sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
    except Exception as error:  # numpy and zipfile raise whatever damaged bytes lead them to
        raise DataError(f"{spec}: not a readable .npz file ({reason(error)})") from error
    if "images" not in sizes:
        raise DataError(f"{spec}: has no array 'images' (found: {', '.join(sorted(sizes)[:10]) or 'nothing'})")
    arrays: dict[str, Array] = {}
    for name in EXPECTED:
        if name in sizes:
            check_unpacked(f"{spec}: {name}", sizes[name], stored)
            arrays[name] = _array(f"{spec}: {name}", archive, name)
    images = pixels(spec, arrays["images"])
    labels, classes = arrays.get("labels"), arrays.get("classes")
    if labels is not None and labels.shape != (len(images),):
        raise DataError(f"{spec}: labels must be {len(images)} integers, found shape {labels.shape}")
    if classes is not None and classes.ndim != 1:
        raise DataError(f"{spec}: classes must be a list of names, found shape {classes.shape}")
    return Arrays(
        spec,
        images,
        None if labels is None else class_numbers(spec, labels),
        None if classes is None else class_names(spec, classes.tolist()),
    )


def _array(where: str, archive: Any, name: str) -> Array:
    kinds, expected = EXPECTED[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtypes spelt as numpy no longer does
            array = archive[name]
        if not isinstance(array, np.ndarray):
            raise ValueError("it is no array")
        if array.dtype.kind == "U":
            array.tolist()  # refuses what is no character
    except Exception as error:
        raise DataError(f"{where}: cannot be read ({reason(error)})") from error
    if array.dtype.kind not in kinds:
        raise DataError(f"{where} must be {expected}, found {array.dtype} {array.shape}")
    return array


def pixels(spec: str, images: Array) -> NDArray[np.uint8]:
    """Images that PIL can take one by one."""
    grey, coloured = images.ndim == 3, images.ndim == 4 and images.shape[-1] in (1, 3, 4)
    if images.dtype != np.uint8 or not (grey or coloured):
        raise DataError(f"{spec}: images must be {IMAGES}, found {images.dtype} {images.shape}")
    if len(images):
        check_size(images.shape[2], images.shape[1], f"{spec}: each image")
    return images
