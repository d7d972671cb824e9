"""A history as commands to run: with which files it begins, which steps follow, what each of them
should write.

Whatever a step read is looked up by its hash: an earlier step wrote it, or it is where the history
begins.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.checks import history_check, short
from hydrasurgeon.checkpoints.folder import present
from hydrasurgeon.checkpoints.hub import is_hub_id
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.data.places import is_url
from hydrasurgeon.errors import CheckpointError, DataError, ManifestError
from hydrasurgeon.files.history import changes_weights
from hydrasurgeon.files.manifest import Input, Step
from hydrasurgeon.options.base import FRESH
from hydrasurgeon.options.commands import Command, recalled
from hydrasurgeon.stages.ancestry import AtHand, Hashed

MAX_NAME = 200
"""Bytes of a file's name: file systems allow 255, and a file that is being written has a longer
one.
"""
DATA = ("data", "val", "unlabelled", "fit_data", "ood", "check")
"""Options that name data."""
FETCHED = ("hf:", "torchvision:")
"""Data that a library fetches."""
PATTERN = "*?[{"
"""Several files in one name: shards of image–text pairs."""


@dataclass(eq=False)
class Artifact:
    """A checkpoint on the way: one that is at hand, or what a step writes."""

    sha256: str | None
    name: str | None = None
    """What the step that read it called it."""
    source: Hashed | None = None
    """The file at hand with which the replay begins."""
    place: str = ""
    """Its path below the folder of the replay; a hub id stands for itself."""

    @property
    def is_file(self) -> bool:
        return self.source is None or self.source.checkpoint.hub_id is None


@dataclass(frozen=True)
class Rerun:
    """One step to run again."""

    entry: Step
    inputs: tuple[Artifact, ...]
    output: Artifact

    def command(self, root: Path, folder: Path, *, fetch: bool) -> Command:
        """The step with its files below `root`; data, recipes and masks are those of `folder`."""
        options = {**_located(self.entry, folder, fetch=fetch), "seed": self.entry.seed or None}
        inputs = [
            root / artifact.place if artifact.is_file else artifact.place
            for artifact in self.inputs
        ]
        if "base" in options and inputs:
            *inputs, options["base"] = inputs
        # `score` without -o writes into the file it reads.
        in_place = bool(self.inputs) and self.output.place == self.inputs[0].place
        start = [] if inputs else [str(self.entry.args["checkpoint"])]
        out = None if in_place else root / self.output.place
        return Command(self.entry.command, (*inputs, *start), options, out)


def plan_replay(target: Checkpoint, at_hand: AtHand, *, fetch: bool) -> list[Rerun]:
    """All steps from what none of them made to the target; ManifestError where there is no such way."""
    where, steps = target.name, target.manifest.history
    if not steps:
        raise ManifestError(
            f"{where}: has no history to replay", hint="Only files that hydrasurgeon made have one."
        )
    every = _linked(steps)
    every[-1].output.name = target.path.name
    runs: list[Rerun] = []
    needed = {every[-1].output}
    for run in reversed(every):
        # What `init` drew is where a history begins.
        if run.output in needed and run.entry.command != "init":
            _check_inputs(run, where)
            runs.insert(0, run)
            needed |= {*run.inputs}
    check = history_check(target.manifest)
    if check.holds is False:
        raise ManifestError(f"{where}: its history is not whole: {check.detail}")
    made = {run.output for run in runs}
    for run in runs:
        for artifact, read in zip(run.inputs, run.entry.inputs, strict=True):
            if artifact not in made and artifact.source is None:
                arch = run.entry.args.get("arch")
                artifact.source = _beginning(read, arch, at_hand, where, fetch=fetch)
    _place(runs, where)
    return runs


def _linked(steps: Sequence[Step]) -> list[Rerun]:
    """All steps, each with the files that earlier ones wrote; of equal weights those of its name,
    then the latest.
    """
    runs: list[Rerun] = []
    beginnings: dict[str, Artifact] = {}
    for entry in steps:
        inputs = []
        for read in entry.inputs:
            alike = [run.output for run in reversed(runs) if run.output.sha256 == read.sha256]
            alike.sort(key=lambda artifact: artifact.name not in (None, read.name))
            artifact = (
                alike[0] if alike else beginnings.setdefault(read.sha256, Artifact(read.sha256))
            )
            artifact.name = artifact.name or read.name
            inputs.append(artifact)
        runs.append(Rerun(entry, tuple(inputs), Artifact(entry.output)))
    return runs


def _check_inputs(run: Rerun, where: str) -> None:
    """A step with these options can have read so many checkpoints."""
    command, count = run.entry.command, len(run.inputs)
    recalled(run.entry, where)
    start = str(run.entry.args.get("checkpoint", ""))
    fresh = command == "finetune" and count == 0 and start.startswith(FRESH) and start.isprintable()
    if not fresh and ((count < 2) if command == "fuse" else (count != 1)):
        raise ManifestError(f"{where}: its history's {command} read {count} files")


def _beginning(
    read: Input, arch: str | None, at_hand: AtHand, where: str, *, fetch: bool
) -> Hashed:
    """What no step of the history wrote: a file at hand, or on the hub."""
    source = at_hand.find(read.sha256, name=read.name, arch=arch)
    history = () if source is None else source.checkpoint.manifest.history
    for entry in history:
        # `score` writes the weights that it read.
        wrote = entry.output == read.sha256 and all(i.sha256 != read.sha256 for i in entry.inputs)
        if wrote and entry.command != "init":
            raise ManifestError(
                f"{where}: its history has no step that wrote {read.name}, which {entry.command} made",
                hint="A replay begins with backbones, not with what was made on the way.",
            )
    on_hub = is_hub_id(read.name)
    if source is None and on_hub and fetch:
        opened = open_checkpoint(read.name, arch=arch)
        digests = opened.digests()
        if opened.record(digests).sha256 == read.sha256:
            source = Hashed(opened, digests)
    if source is None:
        raise CheckpointError(
            f"{where}: {read.name} ({short(read.sha256)}), with which its history begins, is not in "
            f"{at_hand.folder}",
            hint="Files are found by the hash of their weights: put that one there"
            + (", or give --fetch." if on_hub and not fetch else "."),
        )
    return source


def _place(runs: Sequence[Rerun], where: str) -> None:
    """Give each file the name that history knows it by; a folder of its own where two would share
    one.
    """
    taken: set[str] = set()

    def put(artifact: Artifact, number: int) -> None:
        name = artifact.name or f"step-{number}.safetensors"
        plain = name.isprintable() and Path(name).name == name and name not in (".", "..")
        if not plain or len(name.encode()) > MAX_NAME:
            raise ManifestError(f"{where}: its history names a file {name[:80]!r}")
        artifact.place = name if name not in taken else f"{number}/{name}"
        taken.add(name)

    for artifact in dict.fromkeys(artifact for run in runs for artifact in run.inputs):
        if artifact.source is not None and not artifact.is_file:
            artifact.place = artifact.source.checkpoint.name
        elif artifact.source is not None:
            put(artifact, 0)
    for number, run in enumerate(runs, 1):
        first = run.inputs[0] if run.inputs else run.output
        if (
            not changes_weights(run.entry)
            and first.place == first.name
            and run.output.name in (None, first.name)
        ):
            run.output.place = first.place
        else:
            put(run.output, number)


def _located(entry: Step, folder: Path, *, fetch: bool) -> dict[str, Any]:
    """A step's options with names of files that can be opened from `folder`; DataError for what is
    not there.
    """
    options = {name: value for name, value in entry.args.items() if name != "checkpoint"}
    for name, value in options.items():
        if name in DATA:
            specs = [
                _data(name, spec, folder, fetch=fetch)
                for spec in ([value] if isinstance(value, str) else value)
            ]
            options[name] = specs[0] if isinstance(value, str) else specs
        elif name == "mask" or (name == "recipe" and value.endswith(".toml")):
            options[name] = _file(name, value, folder)
        elif name == "teacher":
            options[name] = [_file(name, each, folder) for each in value]
        elif name in ("classes", "template"):
            _check_names([value] if isinstance(value, str) else value, folder)
    return options


def _data(option: str, spec: str, folder: Path, *, fetch: bool) -> str:
    """A data spec as it can be opened: as it was recorded where that works, else by file name."""
    fetched = spec.startswith(FETCHED) or is_url(spec)
    if fetched and not fetch:
        raise DataError(
            f"--{option} {spec}: is not in {folder}, and nothing is fetched because a file says so",
            hint="Give --fetch if you want what the history names.",
        )
    pattern = any(character in spec for character in PATTERN) and _is_below(Path(spec))
    if fetched or spec.startswith("demo:") or pattern:
        return spec
    place, named, columns = (spec, "", "") if present(folder / spec) else spec.partition("#")
    file, at, root = place.partition("@")
    return (
        _file(option, file, folder)
        + at
        + (root and (_inside(root, folder) or root))
        + named
        + columns
    )


def _file(option: str, name: str, folder: Path) -> str:
    path = _inside(name, folder)
    if path is None:
        raise DataError(
            f"--{option} {name}: is not in {folder}", hint="Put it there under this name."
        )
    return path


def _inside(name: str, folder: Path) -> str | None:
    """How to call a file of the folder that is its current one: as recorded if it lies there, else
    by its name.
    """
    path = Path(name)
    if _is_below(path) and present(folder / path):
        return name
    plain = path.name not in ("", "..") and present(folder / path.name)
    return str(folder.resolve() / path.name) if plain else None


def _is_below(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _check_names(names: Sequence[str], folder: Path) -> None:
    """Class names and templates may be files, but of this folder: what others hold would be in what
    the step writes.
    """
    for text in names:
        path = folder / text
        if os.path.lexists(path) and not Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(folder)
        ):
            raise ManifestError(
                f"{text}: a history names this file, which is not in {folder}",
                hint="Only class names and templates in the folder of the replay are read.",
            )
