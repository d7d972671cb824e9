"""Several labelled data sets in one evaluation: one row per model, one column per data set (paper,
Table 24).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydrasurgeon.checkpoints.checkpoint import Checkpoint
from hydrasurgeon.checkpoints.class_names import classifying
from hydrasurgeon.errors import DataError, UsageError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.untrusted import is_name, visible
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.options.shared import ClassNames, Run

if TYPE_CHECKING:
    from hydrasurgeon.data import Samples

SLICE = re.compile(r"\[[^\]]*:[^\]]*\]")
"""The part of a hub data set's split that is read, which is not part of its name."""
SEVERITIES = ("1", "2", "3", "4", "5")
"""Severities that shifted data may have: they are averaged."""
NAMED = re.compile(r"([\w-]+)=(.+)")
"""NAME=D."""


@dataclass(frozen=True)
class LabelledSet:
    """One `--data`, and the class names that `--classes` gives it."""

    name: str
    spec: str
    classes: str | None

    def named(
        self, checkpoints: Sequence[Checkpoint], templates: Sequence[str], samples: Samples
    ) -> list[Checkpoint]:
        """Return the checkpoints as classifiers of this set's classes, if they take classes by
        name.
        """
        names = ClassNames(classes=self.classes, template=tuple(templates))
        return [classifying(checkpoint, names, samples) for checkpoint in checkpoints]


Further = tuple[str, Any, list[Checkpoint]]
"""A further, opened data set: its name, its samples, and the checkpoints as classifiers of its
classes.
"""


def labelled_sets(
    data: str | Sequence[str] | None, classes: str | Sequence[str] | None
) -> list[LabelledSet]:
    """Parse `D` or `NAME=D`, with its `NAME=CLASSES` or the CLASSES for all sets."""
    entries = [data] if isinstance(data, str) else list(data or ())
    pairs = [_name_of(text) for text in entries]
    names = [name for name, _ in pairs]
    check_once("--data", names)
    of_one: dict[str, str] = {}
    common: list[str] = []
    for text in [classes] if isinstance(classes, str) else classes or ():
        match = NAMED.fullmatch(text)
        if match is not None and match[1] in names and match[1] not in of_one:
            of_one[match[1]] = match[2]
        else:
            common.append(text)
    if len(common) > 1:
        raise UsageError(
            f"--classes {common[1]}: {common[0]} is given already", hint="Write NAME=CLASSES."
        )
    shared = common[0] if common else None
    return [LabelledSet(name, spec, of_one.get(name, shared)) for name, spec in pairs]


def check_once(option: str, names: Sequence[str]) -> None:
    """Refuse a name that occurs twice: reports, predictions files and assertions identify sets by
    name.
    """
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{option}: {name} occurs twice", hint="Name them: NAME=D.")


def _name_of(text: str) -> tuple[str, str]:
    """Parse `NAME=D`, or derive a name from D: `hf:cifar100:test` is cifar100, `a/b.npz` is b."""
    match = NAMED.fullmatch(text)
    if match is not None and not os.path.exists(text):
        return match[1], match[2]
    scheme, colon, rest = text.partition(":")
    if colon and not os.path.exists(text):
        return rest.partition(":")[0].rpartition("/")[2] or scheme, text
    return Path(text).stem, text


@dataclass(frozen=True)
class DataSets:
    """The data of one evaluation, opened once."""

    id: Any
    ood: Mapping[str, Any]
    near: Collection[str]
    shift: Mapping[tuple[str, int | None], Any]
    val: Any | None = None
    """Data for fitting a temperature."""

    @property
    def notes(self) -> list[str]:
        """Notes on the orders of classes that were assumed."""
        labelled = (self.id, *self.shift.values())
        return [samples.note for samples in labelled if samples.note is not None]


def name_of(job: Sequence[Checkpoint]) -> str:
    """Return the name of a checkpoint, or of several that answer together."""
    return " + ".join(
        checkpoint.alias or checkpoint.name.removesuffix(SUFFIX) for checkpoint in job
    )


def by_path(checkpoints: Sequence[Checkpoint], paths: Sequence[str | Path]) -> list[Checkpoint]:
    """Name different checkpoints that share a name by the paths they were given as."""
    places = [
        (name_of([checkpoint]), Path(path).absolute())
        for checkpoint, path in zip(checkpoints, paths, strict=True)
    ]
    counts = Counter(name for name, _ in {*places})
    return [
        checkpoint
        if counts[name] == 1
        else replace(checkpoint, alias=str(path).removesuffix(SUFFIX))
        for checkpoint, (name, _), path in zip(checkpoints, places, paths, strict=True)
    ]


def uses_of(sets: DataSets, further: Sequence[Further]) -> dict[str, Samples]:
    """Return all data by their use."""
    uses = {"data": sets.id} | {name: samples for name, samples, _ in further}
    for name, samples in sets.ood.items():
        uses[f"{'near' if name in sets.near else 'far'}-OOD {name}"] = samples
    for (name, severity), samples in sets.shift.items():
        uses[f"shift {name}{'' if severity is None else f':{severity}'}"] = samples
    return uses if sets.val is None else uses | {"val": sets.val}


def _split(entry: str) -> tuple[str | None, str]:
    """Split `NAME=D` or D into the name, if there is one, and the data."""
    name, equals, spec = entry.partition("=")
    return (name, spec) if equals else (None, entry)


def check_same_classes(opened: Sequence[Checkpoint]) -> None:
    """Refuse models of different classes, or of a different order, which cannot share a table."""
    first = opened[0]
    labels = first.manifest.model.labels
    for other in opened[1:]:
        tasks = [checkpoint.manifest.model.task for checkpoint in (first, other)]
        if tasks[0] != tasks[1]:
            message = f"{visible(first.name)} is {tasks[0]}, {visible(other.name)} {tasks[1]}"
            raise DataError(message, hint="Evaluate them one by one.")
        check_classes(
            first.name,
            first.manifest.model.num_classes,
            other.name,
            other.manifest.model.num_classes,
        )
        for at, (model_name, other_name) in enumerate(
            zip(labels or (), other.manifest.model.labels or (), strict=False)
        ):
            if model_name != other_name:
                raise DataError(
                    (
                        f"{visible(first.name)} calls class {at} {visible(model_name)}, "
                        f"{visible(other.name)} {visible(other_name)}"
                    ),
                    hint=(
                        "Models in one table must have the same classes in the same order: evaluate "
                        "them one by one."
                    ),
                )


def check_classes(name: str, classes: int | None, other: str, its_classes: int | None) -> None:
    """Refuse models of different numbers of classes, which cannot share a table."""
    if classes != its_classes:
        raise DataError(
            f"{visible(name)} has {classes} classes, {visible(other)} {its_classes}",
            hint="Models in one table must have the same classes.",
        )


def open_sets(
    checkpoint: Checkpoint,
    inside: Samples,
    ood: Sequence[str],
    shift: Sequence[str],
    val: str | None,
    run: Run,
) -> DataSets:
    """Open all data of an evaluation."""
    from hydrasurgeon.data import fit_classes, read_data

    model = checkpoint.manifest.model

    def labelled(spec: str) -> Samples:
        return read_data(spec, run, model=model)

    outside, shifts = [parse_ood(entry) for entry in ood], [parse_shift(entry) for entry in shift]
    check_once("--ood", [name for _, name, _ in outside])
    check_once(
        "--shift",
        [name if severity is None else f"{name}:{severity}" for name, severity, _ in shifts],
    )
    return DataSets(
        fit_classes(inside, model),
        {name: read_data(spec, run, labelled=False) for _, name, spec in outside},
        [name for group, name, _ in outside if group == "near"],
        {(name, severity): labelled(spec) for name, severity, spec in shifts},
        None if val is None else labelled(val),
    )


def parse_ood(text: str) -> tuple[Literal["near", "far"], str, str]:
    """Parse `near:NAME=D`, `far:NAME=D`, `NAME=D` or `D` (far)."""
    group: Literal["near", "far"] = "near" if text.startswith("near:") else "far"
    rest = text.removeprefix("near:").removeprefix("far:")
    name, spec = _split(rest)
    if name is not None and ":" in name:
        unknown = name.partition(":")[0]
        raise UsageError(
            f"--ood {text}: no group {unknown}{did_you_mean(unknown, ('near', 'far'))}",
            hint="Write near:NAME=D or far:NAME=D.",
        )
    if name is None:
        name = Path(SLICE.sub("", rest).rpartition(":")[2]).stem
    if not is_name(name) or not spec:
        raise UsageError(f"--ood {text}: not near:NAME=D or far:NAME=D")
    return group, name, spec


def parse_shift(text: str) -> tuple[str, int | None, str]:
    """Parse `NAME=D` or `NAME:SEVERITY=D`."""
    named, spec = _split(text)
    name, colon, severity = (named or "").partition(":")
    if not is_name(name) or not spec:
        raise UsageError(f"--shift {text}: not NAME=D or NAME:SEVERITY=D")
    if not colon:
        return name, None, spec
    if severity not in SEVERITIES:
        raise UsageError(
            f"--shift {text}: no such severity",
            hint=(
                f"Severities are 1 to {SEVERITIES[-1]}; what has none is given as "
                f"{visible(name)}=D."
            ),
        )
    return name, int(severity), spec


def kind_read(manifest: Manifest) -> Literal["image", "text"]:
    """Return the kind of the model's inputs."""
    return "image" if "vision" in manifest.towers else "text"


def overlap_notes(sets: Sequence[tuple[str, Samples]], rule: str) -> list[str]:
    """Return warnings for sets that share samples with the first; refuse a copy of another set, and
    a set that contains all of the first.

    `sets` holds each set's option and its samples.
    """
    seen: dict[str, str] = {}
    notes = []
    (option, first), *_ = sets
    for set_name, samples in sets:
        called = f"{set_name} {visible(samples.spec)}"
        content = samples.content_hash()
        count = 0 if samples is first else samples.shared_with(first)
        if content in seen:
            raise DataError(f"{called}: holds the same samples as {seen[content]}", hint=rule)
        if count and first.shared_with(samples) == len(first):
            raise DataError(
                f"{called}: holds all samples of {option} {visible(first.spec)}", hint=rule
            )
        seen[content] = called
        if count:
            notes.append(
                f"{called}: {_shared(count, samples, first)}; {rule[0].lower()}{rule[1:-1]}"
            )
    return notes


def _shared(count: int, samples: Samples, other: Samples) -> str:
    return f"{count:,} of its {len(samples):,} rows are also in {visible(other.spec)}"


def in_samples(
    inside: Samples, others_data: Iterable[tuple[str, Samples]], *, harm: str
) -> Iterator[str]:
    """Yield a warning for each OOD set that shares samples with the labelled set, with the harm
    that does.
    """
    for name, samples in others_data:
        count = samples.shared_with(inside)
        if count:
            yield f"OOD set {visible(name)}: {_shared(count, samples, inside)}; {harm}"
