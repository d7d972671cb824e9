"""Data sets that libraries fetch by name: the hub's, through datasets, and torchvision's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hydrasurgeon.data.images import pixels
from hydrasurgeon.data.labels import class_names, numbered
from hydrasurgeon.data.samples import Arrays, Rows, Samples
from hydrasurgeon.data.tables import Columns, Table, classes_of, rows
from hydrasurgeon.errors import DataError, reason
from hydrasurgeon.lookup import did_you_mean


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
    wanted = [name for name in features if name in columns.wanted]
    return Table(
        spec, tuple(features), {name: plain[name][:] for name in wanted}, classes_of(spec, features)
    )


def read_torchvision(spec: str, rest: str, columns: Columns) -> Samples:
    """`torchvision:NAME:SPLIT`, by its image array where the set has one, else sample by sample."""
    from torchvision import datasets

    name, _, split = rest.partition(":")
    by_name = {each.lower(): each for each in datasets.__all__}
    if name.lower() not in by_name:
        near = did_you_mean(name, datasets.__all__)
        raise DataError(f"{spec}: torchvision has no data set {name}{near}")
    loaded = _loaded(spec, getattr(datasets, by_name[name.lower()]), split or "test")
    for name in ("targets", "labels", "_labels"):
        if hasattr(loaded, name):
            targets = getattr(loaded, name)
            break
    else:
        targets = [loaded[i][1] for i in range(len(loaded))]
    numbers = np.asarray(targets)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(loaded),):
        raise DataError(
            f"{spec}: its targets are not one class for each picture",
            hint="Only data sets for classification can be used.",
        )
    column, classes = numbered(spec, numbers), getattr(loaded, "classes", None)
    if column is not None and classes is not None:  # ImageNet has several words for each
        words = [name if isinstance(name, str) else ", ".join(name) for name in classes]
        column = column.named(class_names(spec, words))
    images = getattr(loaded, "data", None)
    if images is None or len(images) != len(loaded):
        return Rows(spec, loaded, "image", column)
    array = np.asarray(images)
    if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[-1] not in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    return Arrays(spec, pixels(spec, array), column)


def _loaded(spec: str, make: Any, split: str) -> Any:
    """The data set, which calls its splits in one of three ways; downloaded where it is not there."""
    root = Path(os.environ.get("HYDRASURGEON_DATA", Path.home() / ".cache" / "hydrasurgeon"))
    why = "it has no splits"
    for arguments in ({"split": split}, {"train": split == "train"}, {"image_set": split}):
        for download in (False, True):
            try:
                return make(str(root), **arguments, download=download)
            except TypeError:
                break
            except (
                Exception
            ) as error:  # absent, unreachable or an unknown split: each set has its own kind
                why = reason(error)
    raise DataError(
        f"{spec}: cannot be loaded ({why})",
        hint=f"Place it below {root} (HYDRASURGEON_DATA), or connect once.",
    )
