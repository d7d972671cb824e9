"""Data sets of the hub, through the datasets library."""

from __future__ import annotations

import os
from typing import Any

from hydrasurgeon.data.samples import Samples
from hydrasurgeon.data.tables import Columns, Table, classes_of, rows
from hydrasurgeon.errors import DataError, reason


def read_hub(spec: str, rest: str, columns: Columns) -> Samples:
    """`hf:org/name:split` or `hf:org/name/config:split`; a name without organisation is
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
    """Refuse what `datasets` would read here instead: its builders take the current folder's files,
    pickles too.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as builders

    if name in builders or os.path.lexists(name):
        raise DataError(
            (
                f"{spec}: {name} is a format of the datasets library, or lies here: it would be "
                "read "
                "instead"
            ),
            hint="Work in another folder; or name the folder itself, without hf:.",
        )


def _hub_table(spec: str, loaded: Any, columns: Columns) -> Table:
    """The columns of a set of the datasets library; it leaves the images to us, which it would open
    in any format.
    """
    from datasets import Image

    features = loaded.features
    for name in set(columns.images) & set(features):
        if isinstance(features[name], Image):
            loaded = loaded.cast_column(name, Image(decode=False))
    plain = loaded.with_format(None)
    wanted = columns.chosen(features)
    return Table(
        spec, tuple(features), {name: plain[name][:] for name in wanted}, classes_of(spec, features)
    )
