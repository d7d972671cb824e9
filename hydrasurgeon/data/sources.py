"""A data spec → samples: one small reader for each kind of source."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

import numpy as np
from PIL import Image

from hydrasurgeon.data.images import MAX_BYTES, decode, pixels
from hydrasurgeon.data.labels import (
    Column,
    array_labels,
    class_names,
    is_label_array,
    named,
    numbered,
)
from hydrasurgeon.data.libraries import read_hub, read_torchvision
from hydrasurgeon.data.places import PICTURES, TABLES, ending, is_there, is_url, located
from hydrasurgeon.data.remote import read_remote
from hydrasurgeon.data.samples import Arrays, Files, Rows, Samples, TextPairs, fit_classes, limited
from hydrasurgeon.data.tables import ID, Columns, Table, joined, read_tables, rows, table_of
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.foreign import (
    decoding,
    open_regular,
    portable,
    read_text,
    readable,
    visible,
)
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.options.columns import LABELS, DataSpec

# Files in one archive: more than any data set has.
MAX_FILES = 4_000_000


class Zipped(Samples):
    """Images of an archive, each unpacked when it is read, and never more of it than an image may
    have.
    """

    def __init__(self, spec: str, path: Path, names: Sequence[str], written: Column | None) -> None:
        super().__init__(spec, written)
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
    images = [
        name for name in sorted(files) if ending(Path(name)) in PICTURES and not _is_hidden(name)
    ]
    parts, depth = [PurePosixPath(name).parts for name in images], 0
    while parts and min(map(len, parts)) > depth + 2 and len({each[depth] for each in parts}) == 1:
        depth += 1  # a folder that all lie in says nothing
    folders = [each[depth] for each in parts if len(each) > depth + 1]
    if len(folders) < len(images) or len({*folders}) < 2:
        return Zipped(spec, path, images, None)
    return Zipped(spec, path, images, named(spec, folders))


def _is_plain(name: str) -> bool:
    """Whether a name stays within its archive, and can be shown."""
    path = PurePosixPath(name)
    return (
        name.isprintable()
        and "\\" not in name
        and not path.is_absolute()
        and ".." not in path.parts
    )


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


# Bytes of an image list.
MAX_LIST = 1 << 30
LABEL = re.compile(r"-?[0-9]{1,18}")
"""The label in a line of an image list."""


def open_data(
    spec: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    carried: Collection[str] = (),
    model: Model | None = None,
) -> Samples:
    """Samples behind a spec.

    Args:
        spec: What the user wrote: a path, or a scheme and a name.
        limit: A seeded random subset of so many.
        seed: Which subset.
        carried: Columns of a table that go along if they are there.
        model: The samples must be labelled, and their labels become the numbers of its classes.
    """
    place, roles = DataSpec.parse(spec)
    paths, columns = located(place), Columns(roles, carried, limit)
    tables = _tables(spec, place, paths, columns)
    if tables is not None:
        samples = rows(joined(spec, [*tables], columns), columns)
    elif not paths:
        scheme, _, rest = place.partition(":")
        samples = SCHEMES[scheme](place, rest, columns)
    elif all(ending(path) in PICTURES for path in paths):
        samples = Files(spec, paths)
    elif len(paths) > 1:
        hint = f"Found {paths[0]} and {paths[-1]}."
        raise DataError(f"{spec}: several files must all be tables, or all images", hint=hint)
    elif paths[0].is_dir():
        samples = _folder(spec, paths[0])
    else:
        samples = READERS[ending(paths[0])](spec, paths[0])
    if not len(samples):
        raise DataError(f"{spec}: holds no samples")
    samples.spec = portable(spec)
    if LABELS in roles and samples.written is not None:
        samples.written = replace(samples.written, reading=roles[LABELS])
    samples = limited(samples, limit, seed)
    return samples if model is None else fit_classes(samples, model)


def _tables(
    spec: str, place: str, paths: Sequence[Path], columns: Columns
) -> Iterator[Table] | None:
    """The tables behind a spec, each as it is asked for; None where it is no tables."""
    if is_url(place):
        return read_remote(spec, place, columns)
    if paths and all(ending(path) in TABLES for path in paths):
        return (table for path in paths for table in read_tables(spec, path, columns))
    return None


def in_pieces(spec: str, *, at_once: int, carried: Collection[str] = ()) -> Iterator[Samples]:
    """Samples behind a spec; those of tables in pieces of so many rows, each as it is asked for."""
    place, roles = DataSpec.parse(spec)
    columns = Columns(roles, carried, at_once=at_once)
    tables = _tables(spec, place, located(place), columns)
    if tables is None:
        yield open_data(spec, carried=carried)
        return
    done = 0
    for table in tables:
        samples = rows(table, columns)
        samples.spec = portable(spec) if done == 0 else f"{portable(spec)} from row {done} on"
        done += len(samples)
        yield samples
    if not done:
        raise DataError(f"{spec}: holds no samples")


def in_memory(
    inputs: Any, kind: Literal["image", "text"], columns: Mapping[str, str] | None = None
) -> Samples:
    """What a caller holds: a table, or texts, pairs of texts or pictures, one or several; a path is
    opened, and so is the name of a picture. `columns` says what a table calls them.
    """
    if isinstance(inputs, Path) or (kind == "image" and isinstance(inputs, str)):
        return open_data(str(inputs))
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
        return rows(table_of("the inputs", inputs), Columns(columns or {}, carried=(ID,)))
    several = isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes)
    samples = list(inputs) if several else [inputs]
    if kind == "image" and samples and all(isinstance(each, str | Path) for each in samples):
        return Files("the inputs", [Path(each) for each in samples])
    if kind == "text" and any(isinstance(each, tuple) for each in samples):
        return text_pairs("the inputs", samples)
    return Rows("the inputs", samples, kind)


def text_pairs(spec: str, pairs: Sequence[Any]) -> TextPairs:
    """Pairs of texts that a caller holds."""
    wrong = next(
        (i for i, pair in enumerate(pairs) if not isinstance(pair, tuple) or len(pair) != 2), None
    )
    if wrong is not None:
        raise DataError(
            f"{spec}: row {wrong} is no pair of texts",
            hint="Give tuples of two texts, or texts alone.",
        )
    first, second = (Rows(spec, [pair[at] for pair in pairs], "text") for at in (0, 1))
    return TextPairs(first, second)


def _folder(spec: str, path: Path) -> Samples:
    """Class folders, or a flat folder of unlabelled images. Links to folders are followed at the
    top only.
    """
    with readable(path, DataError):
        entries = sorted(path.iterdir())
        names = [p.name for p in entries if p.is_dir() and not p.name.startswith(".")]
        if not names:
            return Files(spec, [p for p in entries if ending(p) in PICTURES])
        images = [(file, name) for name in names for file in _images_in(path / name)]
    written = named(spec, [name for _, name in images], names)
    return Files(spec, [file for file, _ in images], written)


def _images_in(folder: Path) -> list[Path]:
    """Image files at any depth; a folder that cannot be listed is an error, not an empty one."""

    def fail(error: OSError) -> None:
        raise error

    walked = (
        (Path(parent, name)) for parent, _, names in os.walk(folder, onerror=fail) for name in names
    )
    return sorted(path for path in walked if ending(path) in PICTURES)


def _image_list(spec: str, path: Path) -> Samples:
    """An OpenOOD list: `relative/path.jpg label` a line; label -1 where there is none.

    A list names files of its reader, wherever they lie: like a folder of links, it is as trusted as
    its images.
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
    return Files(spec, [root / name for name in names], numbered(spec, labels))


def _root(spec: str, path: Path, name: str) -> Path:
    """Where the paths of an image list start: at @ROOT, or at the first folder around it that has
    the first image.
    """
    _, at, root = spec.partition("@")
    # OpenOOD keeps its lists in benchmark_imglist/<set>/ beside images_classic/ and
    # images_largescale/.
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


def _demo(spec: str, rest: str, columns: Columns) -> Samples:
    folder = files("hydrasurgeon") / "demo"
    sets = {
        entry.name.removesuffix(".npz"): entry
        for entry in folder.iterdir()
        if entry.name.endswith(".npz")
    }
    if rest not in sets:
        raise DataError(
            f"{spec}: no such demo set{did_you_mean(rest, sets, 'demo:{}'.format)}",
            hint=f"There are {', '.join(f'demo:{name}' for name in sorted(sets))}.",
        )
    with sets[rest].open("rb") as file:
        return _arrays(spec, file)


def _npz(spec: str, path: Path) -> Samples:
    with open_regular(path, error=DataError) as file:
        return _arrays(spec, file)


def _arrays(spec: str, file: IO[bytes]) -> Arrays:
    """`images`, and `labels` and `classes` where they are there; nothing is unpickled, other arrays
    are left alone.
    """
    with decoding(f"{spec}: not a readable .npz file"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dtypes spelt as numpy no longer does
        archive = np.load(file, allow_pickle=False)
        arrays = {
            name: np.asarray(archive[name])
            for name in {"images", "labels", "classes"} & {*archive.files}
        }
    if "images" not in arrays:
        listed = ", ".join(sorted(archive.files)[:10]) or "nothing"
        raise DataError(f"{spec}: has no array 'images' (found: {listed})")
    images, labels = pixels(spec, arrays["images"]), arrays.get("labels")
    classes = arrays.get("classes")
    fits = labels is None or (labels.shape[:1] == (len(images),) and is_label_array(labels))
    if not fits or (classes is not None and classes.ndim != 1):
        raise DataError(
            f"{spec}: labels must be {len(images)} integers, and classes a list of names"
        )
    names = None if classes is None else class_names(spec, classes.tolist())
    written = None if labels is None else array_labels(spec, labels, names)
    return Arrays(spec, images, written)


READERS = {".npz": _npz, ".txt": _image_list, ".zip": read_zip}
"""Ending of a file → its reader."""
SCHEMES = {"hf": read_hub, "torchvision": read_torchvision, "demo": _demo}
"""What stands before the colon → its reader."""
