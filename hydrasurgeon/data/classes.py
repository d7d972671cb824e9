"""A data set's classes → the model's: by name where both have names, else in their order, which a note says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hydrasurgeon.data.labels import Labels, are_codes
from hydrasurgeon.data.samples import Samples, Subset
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model

OTHER_CLASSES = (
    "Use the data set the model was trained for, make it a classifier of these classes (hydrasurgeon finetune "
    "--set classifier=fresh --data D), or give CLIP other --classes."
)
"""What next, where the data has other classes than the model."""
SHOWN = 6
"""Class names that a message lists."""


def fit_classes(samples: Samples, model: Model) -> Samples:
    """Labelled samples whose labels are numbers of the model's classes; DataError where they cannot be.

    Their `classes` are the model's, or the data's where the model has no names; their `note` says which order was
    assumed where names could not be matched.
    """
    if samples.labels is None:
        raise DataError(
            f"{samples.spec}: has no labels",
            hint="Give a column or array called label(s), or class folders; a label of -1 stands for none.",
        )
    names, labels, numbers = samples.classes, model.labels, samples.labels
    count = model.num_classes if names is None else len(names)
    bad = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(bad):
        owner = "the model" if names is None else "it"
        raise DataError(
            f"{samples.spec}: row {bad[0]} has label {numbers[bad[0]]}, {owner} has classes 0-{count - 1}",
            hint=OTHER_CLASSES,
        )
    note = None
    if names is None:
        if labels is not None:
            note = (
                f"labels of {samples.spec} are numbers, taken as the model's classes in its order: "
                f"0 is {labels[0]}, {count - 1} is {labels[-1]}"
            )
    elif labels is None or _same_order(names, model):
        if len(names) != model.num_classes:
            raise DataError(
                f"{samples.spec}: has {len(names)} classes, the model has {model.num_classes}", hint=OTHER_CLASSES
            )
        if names != labels:
            theirs = f"0…{count - 1}" if labels is None else listed(labels)
            note = f"classes of {samples.spec}, in this order, taken as the model's {theirs}: {listed(names)}"
    else:
        numbers = _matched(samples.spec, names, numbers, labels)
    fitted = Subset(samples, np.arange(len(samples)), numbers)
    fitted.classes = names if labels is None else labels
    fitted.note = note
    return fitted


def _same_order(names: Sequence[str], model: Model) -> bool:
    """Whether names that differ can only mean the model's classes one by one: codes, or CLIP's own words for them."""
    labels = model.labels or ()
    if tuple(names) == labels:
        return True
    if all(name in labels for name in names):
        return False
    if model.is_zero_shot:
        # Words of the user's for the data's classes: those that both use must stand in the same places.
        return all(name not in labels or labels[i : i + 1] == (name,) for i, name in enumerate(names))
    return are_codes(names) and not are_codes(labels)


def _matched(spec: str, names: Sequence[str], numbers: Labels, labels: Sequence[str]) -> Labels:
    """The numbers of the model's classes, by name; classes without samples need not be known."""
    where = {name: i for i, name in enumerate(labels)}
    used = [names[i] for i in np.unique(numbers)]
    unknown = [name for name in used if name not in where]
    if unknown:
        absent = [label for label in labels if label not in names]
        present = [name for name in names if name not in unknown]
        both = [label for label in labels if label not in absent]
        raise DataError(
            f"{spec}: the model has no class {listed(unknown)}; the data's classes: {listed([*unknown, *present])}; "
            f"the model's: {listed([*absent, *both])}",
            hint=OTHER_CLASSES,
        )
    twice = [name for name in used if list(labels).count(name) > 1]
    if twice:
        raise DataError(
            f"{spec}: the model has more than one class {twice[0]}",
            hint="Give the labels as numbers of the model's classes.",
        )
    return np.array([where.get(name, -1) for name in names], dtype=np.int64)[numbers]


def listed(names: Sequence[str]) -> str:
    """Some names, and how many there are."""
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown}, … ({len(names):,})"
