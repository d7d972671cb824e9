"""A data spec → samples: one small reader per kind of source (DESIGN section 4, Data D)."""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hydrasurgeon.data.samples import Arrays, Files, Rows, Samples, limited
from hydrasurgeon.errors import DataError

__all__ = ["open_data", "portable", "read_table"]

IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
KINDS = "a folder, .npz, .parquet, .jsonl, .csv, an image list .txt, hf:NAME:SPLIT, torchvision:NAME:SPLIT or demo:NAME"


def open_data(spec: str, *, limit: int | None = None, seed: int = 0) -> Samples:
    """Samples behind a spec; with `limit` a seeded random subset of them."""
    scheme, _, rest = spec.partition(":")
    path = Path(spec.partition("@")[0])
    if scheme in SCHEMES and not Path(spec).exists():
        samples = SCHEMES[scheme](spec, rest)
    elif path.is_dir():
        samples = _folder(spec, path)
    elif path.suffix in SUFFIXES:
        if not path.is_file():
            raise DataError(f"{spec}: no such file{_near(path)}")
        samples = SUFFIXES[path.suffix](spec, path)
    else:
        raise DataError(f"{spec}: no such data{_near(path)}", hint=f"Data is {KINDS}.")
    if not len(samples):
        raise DataError(f"{spec}: holds no samples")
    samples.spec = portable(spec)
    return limited(samples, limit, seed)


def portable(spec: str) -> str:
    """The spec without absolute paths, so that manifests carry none."""
    return "@".join(Path(part).name if os.path.isabs(part) else part for part in spec.split("@"))


def _near(path: Path) -> str:
    folder = path.parent
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    return f" (did you mean {folder / close[0]}?)" if close else ""


def _folder(spec: str, path: Path) -> Samples:
    """Class folders, or a flat folder of unlabelled images."""
    classes = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        return Files(spec, sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES))
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in IMAGES and file.is_file()
    ]
    return Files(
        spec,
        [file for file, _ in found],
        np.array([label for _, label in found], dtype=np.int64),
        classes,
    )


def _npz(spec: str, path: Path | Any) -> Samples:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{spec}: not a readable .npz file ({error})") from error
    images = arrays.get("images")
    if images is None:
        raise DataError(f"{spec}: has no array 'images' (found: {', '.join(arrays) or 'nothing'})")
    if (
        images.dtype != np.uint8
        or images.ndim not in (3, 4)
        or (images.ndim == 4 and images.shape[-1] not in (1, 3, 4))
    ):
        raise DataError(
            f"{spec}: images must be uint8 N×H×W or N×H×W×C, found {images.dtype} {images.shape}"
        )
    labels = arrays.get("labels")
    if labels is not None:
        if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"{spec}: labels must be {len(images)} integers, found {labels.dtype} {labels.shape}"
            )
        labels = labels.astype(np.int64)
    classes = [str(name) for name in arrays["classes"]] if "classes" in arrays else None
    return Arrays(spec, images, labels, classes)


def _table(spec: str, path: Path) -> Samples:
    return read_table(spec, path, _rows)


def read_table(spec: str, path: Path, make: Callable[[str, Any, Path | None], Samples]) -> Samples:
    """A parquet, jsonl or csv file, through the readers of HF datasets."""
    from datasets import Dataset

    reader = {
        ".parquet": Dataset.from_parquet,
        ".jsonl": Dataset.from_json,
        ".csv": Dataset.from_csv,
    }[path.suffix]
    with _quiet_datasets(), tempfile.TemporaryDirectory() as cache:
        try:
            table = reader(str(path), cache_dir=cache, keep_in_memory=True)
        except (
            Exception
        ) as error:  # the reader raises whatever pyarrow, pandas or the file system raise
            raise DataError(
                f"{spec}: not a readable {path.suffix} file ({str(error).splitlines()[0]})"
            ) from error
        return make(spec, table, path.parent)


def _rows(spec: str, table: Any, root: Path | None = None) -> Samples:
    """Columns image/text and label of an HF dataset."""
    columns = table.column_names
    kind: Literal["image", "text"]
    if any(name in columns for name in ("image", "img")):
        kind, column = "image", "image" if "image" in columns else "img"
    elif any(name in columns for name in ("text", "sentence")):
        kind, column = "text", "text" if "text" in columns else "sentence"
    else:
        raise DataError(f"{spec}: needs a column image or text (found: {', '.join(columns)})")
    name = next((c for c in ("label", "labels", "fine_label") if c in columns), None)
    labels, classes = _labels(spec, table, name) if name else (None, None)
    # A plain list: rows stay readable after the reader's temporary files are gone, and in worker processes.
    values = table.with_format(None)[column][:]
    return Rows(spec, values, kind, labels, classes, root)


def _labels(
    spec: str, table: Any, name: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]] | None, Sequence[str] | None]:
    values = table[name][:]
    if any(value is None for value in values):
        raise DataError(
            f"{spec}: row {next(i for i, v in enumerate(values) if v is None)} has no label"
        )
    if all(isinstance(value, str) for value in values):
        classes = sorted(set(values))
        where = {label: i for i, label in enumerate(classes)}
        return np.array([where[value] for value in values], dtype=np.int64), classes
    if not all(isinstance(value, int) for value in values):
        raise DataError(f"{spec}: labels must be integers or strings")
    if values and all(value == -1 for value in values):
        return None, None
    return np.array(values, dtype=np.int64), getattr(table.features[name], "names", None)


def _image_list(spec: str, path: Path) -> Samples:
    """An OpenOOD list: `relative/path.jpg label` a line; label -1 where there is none."""
    lines = [
        line.rsplit(maxsplit=1)
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    if not lines:
        return Files(spec, [])
    if any(len(line) != 2 or not line[1].lstrip("-").isdigit() for line in lines):
        raise DataError(
            f"{spec}: not an image list", hint="Each line is `relative/path.jpg label`."
        )
    _, at, given = spec.partition("@")
    # OpenOOD keeps its lists in benchmark_imglist/<set>/ beside images_classic/ and images_largescale/.
    above = [path.parent, *path.parents[:3]]
    roots = (
        [Path(given)]
        if at
        else [
            *above,
            *(up / name for up in above for name in ("images_classic", "images_largescale")),
        ]
    )
    root = next((r for r in roots if (r / lines[0][0]).is_file()), None)
    if root is None:
        raise DataError(
            f"{spec}: {lines[0][0]} is not there",
            hint=f"Looked below {', '.join(map(str, roots[:2]))}; name the root: {path}@ROOT.",
        )
    labels = np.array([int(label) for _, label in lines], dtype=np.int64)
    return Files(spec, [root / name for name, _ in lines], None if (labels == -1).all() else labels)


def _hf(spec: str, rest: str) -> Samples:
    """`hf:org/name:split` or `hf:org/name/config:split`; a name without organisation is `hf:name[/config]:split`."""
    from datasets import load_dataset

    name, colon, split = rest.rpartition(":")
    if not colon or not name:
        raise DataError(
            f"{spec}: names no split",
            hint="Write hf:NAME[/CONFIG]:SPLIT, for example hf:cifar100:test.",
        )
    parts = name.split("/")
    # Two parts may be an organisation and a name, or a name and a config.
    attempts: list[tuple[str, str | None]] = [
        ("/".join(parts[:2]), parts[2] if len(parts) > 2 else None)
    ]
    if len(parts) == 2:
        attempts.append((parts[0], parts[1]))
    failure: Exception | None = None
    for repo, config in attempts:
        with _quiet_datasets():
            try:
                return _rows(spec, load_dataset(repo, config, split=split))
            except DataError:
                raise
            except (
                Exception
            ) as error:  # datasets raises many kinds for missing names, splits and networks
                failure = failure or error
    raise DataError(
        f"{spec}: cannot be loaded ({str(failure).splitlines()[0]})",
        hint="Check name, config and split; the hub must be reachable or the set cached.",
    ) from failure


def _torchvision(spec: str, rest: str) -> Samples:
    from torchvision import datasets

    name, _, split = rest.partition(":")
    known = {n.lower(): n for n in datasets.__all__}
    if name.lower() not in known:
        near = difflib.get_close_matches(name, datasets.__all__, n=3)
        raise DataError(
            f"{spec}: torchvision has no data set {name}",
            hint=f"Did you mean {', '.join(near)}?" if near else None,
        )
    maker = getattr(datasets, known[name.lower()])
    root = Path(os.environ.get("HYDRASURGEON_DATA", Path.home() / ".cache" / "hydrasurgeon"))
    split = split or "test"
    attempts: list[dict[str, Any]] = [
        {"split": split},
        {"train": split == "train"},
        {"image_set": split},
    ]
    failure: Exception | None = None
    for arguments in attempts:
        for extra in ({"download": False}, {"download": True}):
            try:
                found = maker(str(root), **arguments, **extra)
            except TypeError:
                break
            except (
                Exception
            ) as error:  # absent, unreachable or an unknown split: each set has its own kind
                failure = error
                continue
            return _indexed(spec, found)
    raise DataError(
        f"{spec}: cannot be loaded ({failure})",
        hint=f"Place it below {root} (HYDRASURGEON_DATA), or connect once.",
    )


def _indexed(spec: str, found: Any) -> Samples:
    """A torchvision data set: by its image array where it has one, else sample by sample."""
    labels = next(
        (getattr(found, n) for n in ("targets", "labels", "_labels") if hasattr(found, n)), None
    )
    array = None if labels is None else np.asarray(labels, dtype=np.int64)
    images = getattr(found, "data", None)
    if images is not None and len(images) == len(found):
        pixels = np.asarray(images)
        if pixels.ndim == 4 and pixels.shape[1] in (1, 3) and pixels.shape[-1] not in (1, 3):
            pixels = pixels.transpose(0, 2, 3, 1)
        return Arrays(spec, pixels, array, getattr(found, "classes", None))
    if array is None:
        array = np.array([found[i][1] for i in range(len(found))], dtype=np.int64)
    return Rows(spec, _First(found), "image", array, getattr(found, "classes", None))


class _First:
    """The pictures of a data set of (picture, label) pairs."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Any:
        return self.pairs[i][0]


def _demo(spec: str, rest: str) -> Samples:
    folder = files("hydrasurgeon") / "demo"
    names = sorted(
        entry.name.removesuffix(".npz") for entry in folder.iterdir() if entry.name.endswith(".npz")
    )
    if rest not in names:
        raise DataError(
            f"{spec}: no such demo set",
            hint=f"There are {', '.join(f'demo:{name}' for name in names)}.",
        )
    with (folder / f"{rest}.npz").open("rb") as file:
        return _npz(spec, file)


@contextlib.contextmanager
def _quiet_datasets() -> Iterator[None]:
    from datasets.utils.logging import (
        disable_progress_bar,
        enable_progress_bar,
        is_progress_bar_enabled,
    )

    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


SUFFIXES = {".npz": _npz, ".parquet": _table, ".jsonl": _table, ".csv": _table, ".txt": _image_list}
SCHEMES = {"hf": _hf, "torchvision": _torchvision, "demo": _demo}
