"""A data spec → samples: one small reader for each kind of source."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from hydrasurgeon.data.folds import split_of
from hydrasurgeon.data.images import pixels
from hydrasurgeon.data.labels import (
    array_labels,
    class_names,
    is_label_array,
    named,
)
from hydrasurgeon.data.listed import Listed
from hydrasurgeon.data.places import PICTURES, TABLES, ending, is_url, located
from hydrasurgeon.data.remote import read_hub, read_remote
from hydrasurgeon.data.samples import (
    Arrays,
    Files,
    Rows,
    Samples,
    TextPairs,
    fit_classes,
    limited,
    part_of,
)
from hydrasurgeon.data.tables import (
    ID,
    ColumnSelection,
    Table,
    count_table,
    joined,
    read_tables,
    rows,
    table_of,
)
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.untrusted import (
    decoding,
    open_regular,
    readable,
    unrooted,
)
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.memo import shared
from hydrasurgeon.options.column_roles import LABELS, PART, SELECTING, SPLIT, WITHOUT, DataSpec

if TYPE_CHECKING:
    from hydrasurgeon.options.shared import Run


def open_data(
    spec: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    carried: Collection[str] = (),
    model: Model | None = None,
    labelled: bool = True,
    skip_bad: bool = False,
    empty: bool = False,
) -> Samples:
    """Open the samples behind a spec.

    Args:
        spec: A path, or a scheme and a name, as the user wrote it.
        limit: Size of a seeded random subset.
        seed: Seed of the subset.
        carried: Columns of a table that are carried along if they exist.
        model: Model whose class numbers replace the labels, which must exist.
        labelled: Raise the error of unreadable labels at once.
        skip_bad: Leave out rows of a table without a readable text, or without a label where labels
            are needed; `left_out` lists them.
        empty: A table may have no rows.
    """
    options = (limit, seed, tuple(carried), labelled, skip_bad, empty)
    read: Callable[[], Samples] = partial(_opened, spec, *options)
    place, roles = DataSpec.parse(spec)
    if SPLIT in roles and WITHOUT not in roles and PART not in roles:
        # Both parts of one table come from one reading of it.
        table = DataSpec(place, {role: roles[role] for role in roles if role != SPLIT})
        read = partial(_parted, spec, str(table), roles[SPLIT], *options)
    samples = shared(f"data {spec}", lambda: options, read)
    return samples if model is None else fit_classes(samples, model)


def _opened(
    spec: str,
    limit: int | None,
    seed: int,
    carried: Collection[str],
    labelled: bool,
    skip_bad: bool,
    empty: bool,
) -> Samples:
    """Open the samples behind a spec that this process does not hold."""
    place, roles = DataSpec.parse(spec)
    roles = dict(roles)
    split, part, without = (roles.pop(role, None) for role in SELECTING)
    paths = located(place)
    first_rows = limit if split is None else None  # a split is of all rows
    columns = ColumnSelection(roles, carried, first_rows, labelled=labelled, skip_bad=skip_bad)
    tables = _tables(spec, place, paths, columns)
    if tables is not None:
        samples = _rows(joined(spec, [*tables], columns), columns)
    elif not paths:
        scheme, _, rest = place.partition(":")
        samples = SCHEMES[scheme](place, rest, columns)
    elif all(ending(path) in PICTURES for path in paths):
        samples = Files(spec, paths)
    elif len(paths) > 1:
        hint = f"Found {paths[0]} and {paths[-1]}."
        raise DataError(f"{spec}: several files must be either all tables or all images", hint=hint)
    elif paths[0].is_dir():
        samples = _folder(spec, paths[0])
    else:
        samples = _npz(spec, paths[0])
    if not len(samples) and (tables is None or not empty):
        raise DataError(f"{spec}: holds no samples")
    samples.spec = unrooted(spec)
    if LABELS in roles and samples.written is not None:
        samples.written = replace(samples.written, reading=roles[LABELS])
    listed = None
    if without is not None:  # rows of another part may be the ones that are listed
        listed = Listed.read(without)
        listed.check(samples)
    if split is not None:
        samples = split_of(samples, split)
    samples = limited(samples, limit, seed)
    if part is not None:
        samples = part_of(samples, part)
    if listed is not None:
        samples = listed.left_out_of(samples)
    return samples


def _parted(
    spec: str, table: str, split: str, limit: int | None, seed: int, *options: Any
) -> Samples:
    """Return a part of a table, which is read once where steps share values."""
    unlimited = (None, seed, *options)
    samples = split_of(
        shared(f"data {table}", lambda: unlimited, partial(_opened, table, *unlimited)), split
    )
    samples.spec = unrooted(spec)
    return limited(samples, limit, seed)


def read_data(spec: str, run: Run, *, model: Model | None = None, labelled: bool = True) -> Samples:
    """Open data with the options of a command: limit, seed, and whether bad rows are skipped."""
    return open_data(
        spec,
        limit=run.limit,
        seed=run.seed,
        model=model,
        labelled=labelled,
        skip_bad=run.skip_bad,
    )


def _tables(
    spec: str, place: str, paths: Sequence[Path], columns: ColumnSelection
) -> Iterator[Table] | None:
    """Yield the tables behind a spec on demand; return None if there are no tables."""
    if is_url(place):
        return read_remote(spec, place, columns)
    if paths and all(ending(path) in TABLES for path in paths):
        return (table for path in paths for table in read_tables(spec, path, columns))
    return None


def in_pieces(
    spec: str, *, at_once: int, carried: Collection[str] = (), count: bool = False
) -> tuple[int | None, Iterator[Samples]]:
    """Return the number of samples behind a spec, and an iterator of the samples.

    Tables come in pieces of `at_once` rows, read on demand. Their rows are counted if `count` is
    true and that is possible without reading them all. A table without rows is one piece without
    rows.
    """
    place, roles = DataSpec.parse(spec)
    columns = ColumnSelection(roles, carried, at_once=at_once, labelled=False)
    paths = located(place)
    tables = _tables(spec, place, paths, columns)
    if tables is None or roles.keys() & {*SELECTING}:
        samples = open_data(spec, carried=carried, labelled=False)
        return len(samples), iter([samples])
    counts = [count_table(path) for path in paths] if count else []
    total = None if not counts or None in counts else sum(filter(None, counts))
    return total, _pieces(unrooted(spec), tables, columns)


def _pieces(spec: str, tables: Iterator[Table], columns: ColumnSelection) -> Iterator[Samples]:
    done, empty = 0, None
    for table in tables:
        samples = _rows(table, columns)
        samples.spec = spec if done == 0 else f"{spec} from row {done} on"
        done += len(samples)
        if len(samples):
            yield samples
        else:
            empty = samples
    if empty is not None and not done:
        yield empty


def _rows(table: Table, columns: ColumnSelection) -> Samples:
    """Return the samples of a table; none for a file whose rows name the columns if it has no
    rows.
    """
    return rows(table, columns) if table.names else Rows(table.spec, [], "text")


def in_memory(
    inputs: Any, kind: Literal["image", "text"], columns: Mapping[str, str] | None = None
) -> Samples:
    """Return samples from a caller's values: a table, or texts, pairs of texts or pictures, one or
    several.

    A path is opened, and so is the name of a picture. `columns` maps roles to the table's names.
    """
    if isinstance(inputs, Path) or (kind == "image" and isinstance(inputs, str)):
        return open_data(str(inputs))
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns"):
        return rows(table_of("the inputs", inputs), ColumnSelection(columns or {}, carried=(ID,)))
    several = isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes)
    samples = list(inputs) if several else [inputs]
    if kind == "image" and samples and all(isinstance(sample, str | Path) for sample in samples):
        return Files("the inputs", [Path(sample) for sample in samples])
    if kind == "text" and any(isinstance(sample, tuple) for sample in samples):
        return text_pairs("the inputs", samples)
    return Rows("the inputs", samples, kind)


def text_pairs(spec: str, pairs: Sequence[Any]) -> TextPairs:
    """Return samples from a caller's pairs of texts."""
    wrong = next(
        (i for i, pair in enumerate(pairs) if not isinstance(pair, tuple) or len(pair) != 2), None
    )
    if wrong is not None:
        raise DataError(
            f"{spec}: row {wrong} is not a pair of texts",
            hint="Give tuples of two texts, or texts alone.",
        )
    first, second = (Rows(spec, [pair[at] for pair in pairs], "text") for at in (0, 1))
    return TextPairs(first, second)


def _folder(spec: str, path: Path) -> Samples:
    """Read class folders, or a flat folder of unlabelled images; links to folders are followed at
    the top only.
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
    """Return image files at any depth; a folder that cannot be listed is an error."""

    def fail(error: OSError) -> None:
        raise error

    walked = (
        (Path(parent, name)) for parent, _, names in os.walk(folder, onerror=fail) for name in names
    )
    return sorted(path for path in walked if ending(path) in PICTURES)


def _demo(spec: str, rest: str, columns: ColumnSelection) -> Samples:
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
    """Read `images`, and `labels` and `classes` if they exist; nothing is unpickled, and other
    arrays are ignored.
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


SCHEMES = {"hf": read_hub, "demo": _demo}
"""Readers by scheme, the part before the colon."""
