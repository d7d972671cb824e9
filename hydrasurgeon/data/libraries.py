"""Data sets that libraries fetch by name: the hub's, through datasets, and torchvision's."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from hydrasurgeon.data.arrays import pixels
from hydrasurgeon.data.labels import class_names, class_numbers
from hydrasurgeon.data.samples import Arrays, Rows, Samples
from hydrasurgeon.data.tables import COLUMNS, IMAGES, Table, rows
from hydrasurgeon.errors import DataError, reason
from hydrasurgeon.lookup import nearest

SLICE = re.compile(r"[^\[\]]+(\[(-?\d+%?)?:(-?\d+%?)?\])?")
"""A split or a slice of it, in samples or in per cent, as the datasets library writes them."""


def read_hub(spec: str, rest: str, carried: Collection[str] = ()) -> Samples:
    """`hf:org/name:split` or `hf:org/name/config:split`; a name without organisation is `hf:name[/config]:split`."""
    import datasets

    # Older versions run the script of a data set if whoever sits there agrees to it.
    datasets.config.HF_DATASETS_TRUST_REMOTE_CODE = False
    datasets.disable_progress_bars()
    name, split = _name_and_split(spec, rest)
    parts = name.split("/")
    # Two parts may be an organisation and a name, or a name and a config.
    attempts = [("/".join(parts[:2]), parts[2] if len(parts) > 2 else None)]
    if len(parts) == 2:
        attempts.append((parts[0], parts[1]))
    failures = []
    for repo, config in attempts:
        _check_name(spec, repo)
        try:
            loaded = datasets.load_dataset(repo, config, split=split)
        except Exception as error:  # datasets raises many kinds for missing names, splits and networks
            failures.append(error)
        else:
            return rows(_hub_table(spec, loaded, carried), carried)
    raise DataError(
        f"{spec}: cannot be loaded ({reason(failures[0])})",
        hint="Check name, config and split; the hub must be reachable or the set cached.",
    ) from failures[0]


def _name_and_split(spec: str, rest: str) -> tuple[str, str]:
    """`name:split`; the split may be a slice, `train[:3000]`, or several joined by +."""
    name, colon, split = rest.partition("[")[0].rpartition(":")
    split += rest[len(name) + len(colon) + len(split) :]
    if not colon or not name:
        raise DataError(f"{spec}: names no split", hint="Write hf:NAME[/CONFIG]:SPLIT, for example hf:cifar100:test.")
    for part in split.split("+"):
        if not SLICE.fullmatch(part):
            raise DataError(
                f"{spec}: {part or 'nothing'} is no split, nor a slice of one",
                hint="Write 'train[:3000]', 'train[-500:]' or 'train[50%:80%]', in quotes: shells read brackets, too.",
            )
    return name, split


def _check_name(spec: str, name: str) -> None:
    """Refuse what `datasets` would read here instead: its builders take the current folder's files, pickles once
    too."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as builders

    if name in builders:
        raise DataError(f"{spec}: {name} is a format of the datasets library, not a data set")
    if os.path.lexists(name):
        raise DataError(
            f"{spec}: there is {name} here, which the datasets library would read instead",
            hint="Work in another folder; or name the folder itself, without hf:.",
        )


def _hub_table(spec: str, loaded: Any, carried: Collection[str]) -> Table:
    """The columns of a set of the datasets library; it leaves the images to us, which it would open in any format."""
    from datasets import ClassLabel, Image

    features = loaded.features
    for name in set(IMAGES) & set(features):
        if isinstance(features[name], Image):
            loaded = loaded.cast_column(name, Image(decode=False))
    plain = loaded.with_format(None)
    wanted = [name for name in features if name in COLUMNS or name in carried]
    return Table(
        spec,
        tuple(features),
        {name: plain[name][:] for name in wanted},
        {n: class_names(spec, features[n].names) for n in wanted if isinstance(features[n], ClassLabel)},
    )


def read_torchvision(spec: str, rest: str, carried: Collection[str] = ()) -> Samples:
    from torchvision import datasets

    name, _, split = rest.partition(":")
    by_name = {each.lower(): each for each in datasets.__all__}
    if name.lower() not in by_name:
        near = nearest(name, datasets.__all__, most=3)
        raise DataError(
            f"{spec}: torchvision has no data set {name}", hint=f"Did you mean {', '.join(near)}?" if near else None
        )
    make = getattr(datasets, by_name[name.lower()])
    root = Path(os.environ.get("HYDRASURGEON_DATA", Path.home() / ".cache" / "hydrasurgeon"))
    split = split or "test"
    why = "it has no splits"
    # What the sets call it.
    for arguments in ({"split": split}, {"train": split == "train"}, {"image_set": split}):
        for download in (False, True):
            try:
                return _indexed(spec, make(str(root), **arguments, download=download))
            except DataError:
                raise
            except TypeError:
                break
            except Exception as error:  # absent, unreachable or an unknown split: each set has its own kind
                why = reason(error)
    raise DataError(
        f"{spec}: cannot be loaded ({why})", hint=f"Place it below {root} (HYDRASURGEON_DATA), or connect once."
    )


def _indexed(spec: str, loaded: Any) -> Samples:
    """A torchvision data set: by its image array where it has one, else sample by sample."""
    names = ("targets", "labels", "_labels")
    targets = next((getattr(loaded, name) for name in names if hasattr(loaded, name)), None)
    if targets is None:
        targets = [loaded[i][1] for i in range(len(loaded))]
    numbers = np.asarray(targets)
    if numbers.dtype.kind not in "iu" or numbers.shape != (len(loaded),):
        raise DataError(
            f"{spec}: its targets are not one class for each picture",
            hint="Only data sets for classification can be used.",
        )
    labels = class_numbers(spec, numbers)
    classes = getattr(loaded, "classes", None)
    if classes is not None:  # ImageNet has several words for each
        classes = class_names(spec, [c if isinstance(c, str) else ", ".join(c) for c in classes])
    images = getattr(loaded, "data", None)
    if images is None or len(images) != len(loaded):
        return Rows(spec, _First(loaded), "image", labels, classes)
    array = np.asarray(images)
    if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[-1] not in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    return Arrays(spec, pixels(spec, array), labels, classes)


class _First:
    """The pictures of a data set of (picture, label) pairs."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Any:
        return self.pairs[i][0]
