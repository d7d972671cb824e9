"""Tables behind a URL (s3://, gs://, hf://, memory:// and whatever else fsspec opens), and data
sets of the hub, through the datasets library.

Tables are read as local ones are, except for pictures that they name by path: their author would
choose which of the reader's files are opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from hydrasurgeon.data.places import TABLES, ending
from hydrasurgeon.data.samples import Samples
from hydrasurgeon.data.tables import ColumnSelection, Table, classes_of, rows, tables_in
from hydrasurgeon.errors import DataError, MissingDependency, reason
from hydrasurgeon.files.untrusted import decoding

HINT = "What is read from elsewhere is tables (.parquet, .jsonl, .csv, …) and folders of .parquet."
"""Hint for data that cannot be read."""
MAGIC = {*"*?["}
"""Characters of a pattern that matches several names."""
AT_HEAD = 64
"""Number of rows that are inspected to find out what a column of pictures holds."""


def read_remote(spec: str, url: str, columns: ColumnSelection) -> Iterator[Table]:
    """Yield remote tables, one file after another."""
    system, names = _locate(spec, url)
    for name in names:
        yield from _tables(spec, system, name, columns)


def _locate(spec: str, url: str) -> tuple[Any, list[str]]:
    """Return a file system, and the names of the tables that a URL refers to."""
    import fsspec

    with decoding(f"{spec}: cannot be reached", hint="Are address, name and rights right?"):
        try:
            system, name = fsspec.core.url_to_fs(url)
        except ImportError as error:  # `Install s3fs to access S3`
            package = str(error).partition("nstall ")[2].split()[:1] or ["what it names"]
            problem = f"{url.partition('://')[0]}:// needs {package[0]}, which is not installed"
            raise MissingDependency(problem, hint=f"Run `pip install {package[0]}`.") from error
        if MAGIC & {*name}:
            names = sorted(system.glob(name))
        elif system.isdir(name):
            names = [path for path in sorted(system.find(name)) if path.endswith(".parquet")]
        else:
            names = [name] * system.exists(name)
    if not names:
        raise DataError(f"{spec}: no such data", hint=HINT)
    return system, names


def _tables(spec: str, system: Any, name: str, columns: ColumnSelection) -> Iterator[Table]:
    kind = ending(PurePosixPath(name))
    if kind not in TABLES:
        raise DataError(f"{spec}: {PurePosixPath(name).name} is not a table", hint=HINT)
    with decoding(f"{spec}: cannot be read"), system.open(name, "rb") as file:
        for table in tables_in(spec, kind, file, system.size(name), columns):
            image = table.find(columns.images)
            if image is not None and any(map(_is_path, _head(table.columns[image]))):
                hint = "Let the table hold the pictures' bytes, or bring it here."
                raise DataError(f"{spec}: its column {image} holds paths", hint=hint)
            yield table


def _head(values: Sequence[Any]) -> list[Any]:
    return [values[i] for i in range(min(len(values), AT_HEAD))]


def _is_path(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("bytes") is None and value.get("path") is not None
    return isinstance(value, str)


def read_hub(spec: str, rest: str, columns: ColumnSelection) -> Samples:
    """Read `hf:org/name:split` or `hf:org/name/config:split`; a name without organisation is
    `hf:name[/config]:split`.

    The split may be a slice, `train[:3000]`, or several joined by +, as the datasets library writes
    them.
    """
    import datasets

    # Older versions run the script of a data set if whoever sits there agrees to it.
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False
    datasets.disable_progress_bars()
    name, colon, split = rest.partition("[")[0].rpartition(":")
    split += rest[len(name) + len(colon) + len(split) :]
    if not name or not split:
        raise DataError(
            f"{spec}: names no split",
            hint="Write hf:NAME[/CONFIG]:SPLIT, for example hf:cifar100:test.",
        )
    parts = name.split("/")
    # Two parts may be an organisation and a name, or a name and a config.
    repo, config = "/".join(parts[:2]), "/".join(parts[2:3]) or None
    attempts = [(repo, config)]
    if len(parts) == 2:
        attempts.append((parts[0], parts[1]))
    failures = []
    for repo, config in attempts:
        _check_name(spec, repo)
        try:
            loaded = datasets.load_dataset(repo, config, split=split)
        except (
            Exception
        ) as error:  # datasets raises many kinds for missing names, splits and networks
            failures.append(error)
        else:
            return rows(_hub_table(spec, loaded, columns), columns)
    raise DataError(
        f"{spec}: cannot be loaded ({reason(failures[0])})",
        hint=(
            "Check name, config and split ('train[:3000]' in quotes); the hub must be reachable "
            "or the set cached."
        ),
    ) from failures[0]


def _check_name(spec: str, name: str) -> None:
    """Refuse names for which `datasets` would read local files: its builders take the current
    folder's files, pickles too.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as builders

    if name in builders or os.path.lexists(name):
        raise DataError(
            (
                f"{spec}: {name} is a format of the datasets library or a local folder, which would be "
                "read "
                "instead"
            ),
            hint="Work in another folder; or name the folder itself, without hf:.",
        )


def _hub_table(spec: str, loaded: Any, columns: ColumnSelection) -> Table:
    """Return the columns of a set of the datasets library. Images stay encoded, because the library
    would open them in any format.
    """
    from datasets import Image

    features = loaded.features
    for name in set(columns.images) & set(features):
        if isinstance(features[name], Image):
            loaded = loaded.cast_column(name, Image(decode=False))
    plain = loaded.with_format(None)
    column_names = columns.chosen(features)
    return Table(
        spec,
        tuple(features),
        {name: plain[name][:] for name in column_names},
        classes_of(spec, features),
    )
