"""Locations of data: check what a spec refers to before anything heavy is imported."""

from __future__ import annotations

import glob
import re
from pathlib import Path, PurePath

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import readable
from hydrasurgeon.lookup import did_you_mean

KINDS = (
    "a folder of images, an image, .csv, .tsv, .json, .jsonl, .parquet, .conll, .npz, "
    "hf:NAME:SPLIT or demo:NAME"
)
"""Kinds of data, in words."""
SCHEMES = ("hf", "demo")
"""Schemes: the part before the colon of data that is not a file."""
TABLES = (
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".parquet",
    ".conll",
)
"""Endings of tables."""
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""Endings of files that are read as images."""
URL = re.compile(r"[a-z][a-z0-9+.-]*://")
"""Pattern of the beginning of a URL."""
ENDINGS = (*TABLES, *PICTURES, ".npz")
"""Endings of files that are data."""
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
"""Endings of spreadsheets."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
"""Endings of files that must be unpacked first."""


def ending(path: PurePath) -> str:
    """Return a file's ending in the form of ENDINGS."""
    return path.suffix.lower()


def located(spec: str) -> list[Path]:
    """Return the files or the folder behind a spec; none for a scheme or a URL. DataError if
    nothing is there.
    """
    scheme = spec.partition(":")[0]
    if is_url(spec):
        return []
    path = Path(spec)
    if scheme in SCHEMES and not is_there(path):
        return []
    if is_there(path) and (path.is_dir() or ending(path) in ENDINGS):
        return [path]
    if glob.has_magic(spec):
        matches = [Path(name) for name in sorted(glob.glob(spec))]
        if matches:
            return matches
        raise DataError(f"{spec}: no file matches", hint="* stands for any characters of a name.")
    if ending(path) in ENDINGS:
        raise DataError(f"{spec}: no such file{_near(path)}")
    if ending(path) in SHEETS:
        raise DataError(f"{spec}: spreadsheets cannot be read", hint="Save the sheet as CSV.")
    if is_there(path) and ending(path) in PACKED:
        raise DataError(
            f"{spec}: compressed archives cannot be read",
            hint="Unpack it and give the files inside.",
        )
    if is_there(path):
        problem = (
            f"files that end in {path.suffix} are not read"
            if path.suffix
            else "has no ending that tells its format"
        )
        raise DataError(f"{spec}: {problem}", hint=f"Data is {KINDS}.")
    raise DataError(f"{spec}: no such data{_near(path)}", hint=f"Data is {KINDS}.")


def is_url(spec: str) -> bool:
    """Return True for remote data: `s3://…`, `hf://…`."""
    return URL.match(spec) is not None


def is_there(path: Path) -> bool:
    """Return True if the path exists; DataError if that cannot be determined."""
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
