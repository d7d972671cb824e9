"""Everything that could be chosen, as one kind of record, and the commands that make each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.building.budgets import ModelSizes, Size, Unit, read_tower
from hydrasurgeon.checkpoints.checkpoint import Single, all_kept
from hydrasurgeon.criteria.neurons import check_neurons
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.atomic import SUFFIX
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.options.making import BuildOptions

CUT_BY = "taylor"
"""The criterion that chooses heads and neurons of smaller models."""
SCORED = 1000
"""Samples of TRAIN that heads are scored, members repaired, and OOD scores fitted on."""
LARGE = 10_000
"""Rows above which a table is large."""
QUICK = 4000
"""Rows of a large table that the first probe reads, so that the first file does not wait."""
SEEDS = 3
"""Models that are tuned from a body where no number is given."""
WHOLE: Mapping[Unit, float] = {"macs": 1.0, "params": 1.0}
"""Cost of an unpruned model."""


@dataclass(frozen=True)
class MemberModel:
    """One model that could be chosen, alone or with others."""

    label: str
    """As tables show it."""
    file: Path
    """Path of the file, which may still have to be made."""
    cost: Mapping[Unit, float] = field(compare=False)
    """Times the unpruned model's."""
    making: tuple[CommandLine, ...] = field(default=(), compare=False)
    """Commands that make the file; empty for a model that exists."""
    size: Size | None = None
    """Heads and neurons that each layer keeps; None for a model that is not cut."""

    @property
    def name(self) -> str:
        """Stem of the names of its files."""
        return self.label.replace(",", "").replace(" ", "-")

    @property
    def shape(self) -> str:
        """Key of its latency: models of one shape are equally fast."""
        return str(self.size)


def given_models(options: BuildOptions) -> list[MemberModel]:
    """Return the models that the command line names."""
    paths = enumerate(options.paths, 1)
    return [MemberModel(f"model {number}", path, WHOLE) for number, path in paths]


def finetuned(options: BuildOptions, source: Path, file: Path, **words: Any) -> CommandLine:
    """Return the command that trains a model on TRAIN."""
    usual = {"data": options.data, "val": options.choosing, "limit": options.limit}
    usual |= {**options.names, "seed": options.seed, "skip_bad": options.skip_bad}
    return CommandLine("finetune", (source,), usual | words, file)


def is_large(data: Sized, options: BuildOptions) -> bool:
    """Return True if the first probe reads a part of the training rows."""
    return len(data) > LARGE and not options.crossed


def probe_of(
    source: Path, options: BuildOptions, task: str | None = None, *, rows: int | None = None
) -> MemberModel:
    """Return a member made of an unchanged body with a classifier in closed form; `rows` limits the
    rows that it is fitted to.
    """
    settings = {} if task is None else {"task": task}
    name, label = "probe", "the probe"
    if rows is not None:
        settings["probe_rows"] = str(rows)
        name, label = f"probe-{rows}", f"the probe on {rows:,} rows"
    file = options.work / f"{name}{SUFFIX}"
    fit = finetuned(options, source, file, recipe="probe", set=settings or None, arch=options.arch)
    return MemberModel(label, file, WHOLE, (fit,))


def tuned(number: int, options: BuildOptions) -> MemberModel:
    """Return a member that is tuned from a body in its own order of samples. The untuned start
    counts as an epoch, and may be the one that is kept.
    """
    file, seed = options.work / f"seed-{number + 1}{SUFFIX}", options.seed + number + 1
    tune = finetuned(options, options.paths[0], file, arch=options.arch, seed=seed)
    return MemberModel(f"model {number + 1}", file, WHOLE, (tune,))


class Cuts:
    """Copies of the models with scores, their mean, and what is left of each at a size."""

    def __init__(
        self, models: Sequence[MemberModel], opened: Sequence[Single], options: BuildOptions
    ):
        self.models = models
        self.opened = opened
        self.options = options
        kept = opened[0].manifest.kept
        self.words = {"data": options.data, "limit": SCORED, **options.names, **options.running}
        """Options of the commands that score heads or repair layers."""
        if len(kept) > 1:
            self.words["tower"] = read_tower(kept)

    def scored(self, member: MemberModel) -> MemberModel:
        """Return a copy of an unpruned model that stores scores of its heads and neurons."""
        options, name = self.options, f"{member.name}{SUFFIX}"
        heads, file = options.work / f"heads-{name}", options.work / f"scored-{name}"
        words = {"method": CUT_BY, **self.words, "seed": options.seed}
        arch = options.arch if not member.making else None
        making = (
            *member.making,
            CommandLine("score", (member.file,), {**words, "arch": arch}, heads),
            CommandLine("score", (heads,), {**words, "part": "neurons"}, file),
        )
        return replace(member, file=file, making=making)

    def mean(self) -> MemberModel:
        """Return one ordinary model of the mean weights."""
        file = self.options.work / f"mean{SUFFIX}"
        files = tuple(member.file for member in self.models)
        fuse = CommandLine("fuse", files, {"mean": True, **self.options.names}, file)
        making = (*(command for member in self.models for command in member.making), fuse)
        return MemberModel("the mean", file, WHOLE, making)

    def cut(self, member: MemberModel, size: Size, sizes: ModelSizes) -> MemberModel:
        """Return a model cut to a size."""
        scored = self.scored(member)
        words = {
            "method": CUT_BY,
            "keep": size.heads,
            "neurons": size.neurons,
            "compensate": "lstsq",
            **self.words,
        }
        name = f"{member.name}-k{size.heads}-n{size.neurons:g}{SUFFIX}"
        file = self.options.work / name
        return replace(
            member,
            label=f"{member.label}, {size.heads} heads a layer, {size.neurons:g} of the neurons",
            file=file,
            cost={unit: sizes.cost(size, unit) for unit in WHOLE},
            making=(*scored.making, CommandLine("prune", (scored.file,), words, file)),
            size=size,
        )


def check_uncut(models: Sequence[Single]) -> None:
    """Refuse models that nothing can be cut from at a size."""
    for opened in models:
        manifest = opened.manifest
        if manifest.kept != all_kept(manifest.towers) or manifest.kept_neurons:
            raise SurgeryError(
                f"{opened.path}: is pruned already",
                hint="Cheaper members are cut out of unpruned models: give those.",
            )
        check_neurons(opened, (read_tower(manifest.kept),))
