"""A data spec → samples: one small reader for each kind of source."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import IO

import numpy as np

from hydrasurgeon.data.images import SUFFIXES as IMAGES
from hydrasurgeon.data.images import pixels
from hydrasurgeon.data.labels import class_names, class_numbers
from hydrasurgeon.data.libraries import read_hub, read_torchvision
from hydrasurgeon.data.samples import Arrays, Files, Samples, fit_classes, limited
from hydrasurgeon.data.tables import read_table, rows
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import decoding, open_regular, portable, read_text, readable
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.lookup import did_you_mean

KINDS = "a folder, .npz, .parquet, .jsonl, .csv, an image list .txt, hf:NAME:SPLIT, torchvision:NAME:SPLIT or demo:NAME"
"""What data can be, in words."""
# Bytes of an image list.
MAX_LIST = 1 << 30
LABEL = re.compile(r"-?[0-9]{1,18}")
"""The label in a line of an image list."""


def open_data(
    spec: str, *, limit: int | None = None, seed: int = 0, carried: Collection[str] = (), model: Model | None = None
) -> Samples:
    """Samples behind a spec.

    Args:
        spec: What the user wrote: a path, or a scheme and a name.
        limit: A seeded random subset of so many.
        seed: Which subset.
        carried: Columns of a table that go along if they are there.
        model: The samples must be labelled, and their labels become the numbers of its classes.
    """
    scheme, _, rest = spec.partition(":")
    path = Path(spec.partition("@")[0])
    exists = is_there(path)
    if scheme in SCHEMES and not is_there(Path(spec)):
        samples = SCHEMES[scheme](spec, rest, carried)
    elif exists and path.is_dir():
        samples = _folder(spec, path)
    elif exists and path.suffix in SUFFIXES:
        samples = SUFFIXES[path.suffix](spec, path, carried)
    else:
        what, hint = ("file", None) if path.suffix in SUFFIXES else ("data", f"Data is {KINDS}.")
        raise DataError(f"{spec}: no such {what}{_near(path)}", hint=hint)
    if not len(samples):
        raise DataError(f"{spec}: holds no samples")
    samples.spec = portable(spec)
    samples = limited(samples, limit, seed)
    return samples if model is None else fit_classes(samples, model)


def is_there(path: Path) -> bool:
    """Whether the path leads to anything; DataError where that cannot be told."""
    try:
        with readable(path, DataError):
            str(path).encode()
            return path.exists()
    except UnicodeEncodeError as error:
        raise DataError(f"{str(path)!r}: is not UTF-8", hint="Rename it, or link to it.") from error


def _near(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, names, shown=lambda near: path.parent / near)


def _folder(spec: str, path: Path) -> Samples:
    """Class folders, or a flat folder of unlabelled images. Links to folders are followed at the top only."""
    with readable(path, DataError):
        entries = sorted(path.iterdir())
        names = [p.name for p in entries if p.is_dir() and not p.name.startswith(".")]
        if not names:
            return Files(spec, [p for p in entries if p.suffix.lower() in IMAGES])
        classes = class_names(spec, names)
        images = [(file, i) for i, name in enumerate(classes) for file in _images_in(path / name)]
    numbers = np.array([label for _, label in images], dtype=np.int64)
    return Files(spec, [file for file, _ in images], numbers, classes)


def _images_in(folder: Path) -> list[Path]:
    """Image files at any depth; a folder that cannot be listed is an error, not an empty one."""

    def fail(error: OSError) -> None:
        raise error

    walked = ((Path(parent, name)) for parent, _, names in os.walk(folder, onerror=fail) for name in names)
    return sorted(path for path in walked if path.suffix.lower() in IMAGES)


def _table(spec: str, path: Path, carried: Collection[str]) -> Samples:
    return rows(read_table(spec, path, carried), carried)


def _image_list(spec: str, path: Path, carried: Collection[str]) -> Samples:
    """An OpenOOD list: `relative/path.jpg label` a line; label -1 where there is none.

    A list names files of its reader, wherever they lie: like a folder of links, it is as trusted as its images.
    """
    text = read_text(path, most=MAX_LIST, error=DataError)
    names, labels = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, *label = line.rsplit(maxsplit=1)
        if not label or not LABEL.fullmatch(label[0]):
            raise DataError(
                f"{spec}, line {number}: not a line of an image list",
                hint="Each line is `relative/path.jpg label`; the label is a number, -1 for none.",
            )
        names.append(name)
        labels.append(int(label[0]))
    root = _root(spec, path, names[0]) if names else path
    return Files(spec, [root / name for name in names], class_numbers(spec, labels))


def _root(spec: str, path: Path, name: str) -> Path:
    """Where the paths of an image list start: at @ROOT, or at the first folder around it that has the first image."""
    _, at, root = spec.partition("@")
    # OpenOOD keeps its lists in benchmark_imglist/<set>/ beside images_classic/ and images_largescale/.
    above = [path.parent, *path.parents[:3]]
    beside = [up / name for up in above for name in ("images_classic", "images_largescale")]
    roots = [Path(root)] if at else [*above, *beside]
    for candidate in roots:
        if is_there(candidate / name):
            return candidate
    raise DataError(
        f"{spec}: {name[:200]} is not there",
        hint=f"Looked below {', '.join(map(str, roots[:2]))}; name the root: {path}@ROOT.",
    )


def _demo(spec: str, rest: str, carried: Collection[str]) -> Samples:
    folder = files("hydrasurgeon") / "demo"
    sets = {entry.name.removesuffix(".npz"): entry for entry in folder.iterdir() if entry.name.endswith(".npz")}
    if rest not in sets:
        raise DataError(
            f"{spec}: no such demo set{did_you_mean(rest, sets, 'demo:{}'.format)}",
            hint=f"There are {', '.join(f'demo:{name}' for name in sorted(sets))}.",
        )
    with sets[rest].open("rb") as file:
        return _arrays(spec, file)


def _npz(spec: str, path: Path, carried: Collection[str]) -> Samples:
    with open_regular(path, error=DataError) as file:
        return _arrays(spec, file)


def _arrays(spec: str, file: IO[bytes]) -> Arrays:
    """`images`, and `labels` and `classes` where they are there; nothing is unpickled, other arrays are left alone."""
    with decoding(f"{spec}: not a readable .npz file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dtypes spelt as numpy no longer does
        archive = np.load(file, allow_pickle=False)
        arrays = {name: np.asarray(archive[name]) for name in {"images", "labels", "classes"} & {*archive.files}}
        names = arrays["classes"].tolist() if "classes" in arrays else None
    if "images" not in arrays:
        listed = ", ".join(sorted(archive.files)[:10]) or "nothing"
        raise DataError(f"{spec}: has no array 'images' (found: {listed})")
    images, labels = pixels(spec, arrays["images"]), arrays.get("labels")
    numbered = labels is None or (labels.shape == (len(images),) and labels.dtype.kind in "iu")
    if not numbered or (names is not None and arrays["classes"].ndim != 1):
        raise DataError(f"{spec}: labels must be {len(images)} integers, and classes a list of names")
    return Arrays(
        spec,
        images,
        None if labels is None else class_numbers(spec, labels),
        None if names is None else class_names(spec, names),
    )


SUFFIXES = {".npz": _npz, ".parquet": _table, ".jsonl": _table, ".csv": _table, ".txt": _image_list}
"""Suffix of a file → its reader."""
SCHEMES = {"hf": read_hub, "torchvision": read_torchvision, "demo": _demo}
"""What stands before the colon → its reader."""
