"""Everything that could be a member, as one kind of record, and the two ways to make one.

`Pruned` members lose heads of the first model, are tried in memory, and share its leading layers as
a trunk. `Cuts` are whole models and what is left of them at a size, with fewer heads and neurons in
every layer; each is a file, and shares nothing with those of other models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from hydrasurgeon.building.cost import CostModel, Part, Size, Sizes, Unit
from hydrasurgeon.checkpoints.reading import Single, all_kept
from hydrasurgeon.criteria import chooser, criterion
from hydrasurgeon.criteria.neurons import check_neurons
from hydrasurgeon.criteria.selection import movable
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import output_of
from hydrasurgeon.files.manifest import Score, SingleManifest
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.heads import Kept
from hydrasurgeon.options.commands import Command
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.tuning.recipes import load_recipe

FRACTIONS = (0.15, 0.25, 0.35, 0.5, 0.65)
"""Fractions of the heads that can go which pruned members lose."""
DRAWS = 3
"""Members drawn from one pool, besides the one that loses the heads that go first (paper B.5)."""
POOL = 1.75
"""A draw is from so many times the heads that go."""
REPAIRS = (None, "lstsq")
"""What is done for what is left of the layers."""
CUT_BY = "taylor"
"""The criterion that chooses heads and neurons of cuts."""
DISTIL = "teach"
"""The recipe of `--tune auto`."""


@dataclass(frozen=True)
class Pruning:
    """The options of `prune` that make a member of a scored copy."""

    method: str
    remove: int | None = None
    sample: str | None = None
    layers: str | None = None
    compensate: str | None = None
    seed: int = 0

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def label(self) -> str:
        """`circuit-avg -14 in layers 3-5, lstsq`: as a table shows it."""
        text = f"{self.method} -{self.remove}"
        if self.sample is not None:
            text = f"{self.method} -{self.sample} seed {self.seed}"
        if self.layers is not None:
            text += f" in layers {self.layers}"
        if self.compensate is not None:
            text += f", {self.compensate}"
        return text

    @property
    def name(self) -> str:
        """`circuit-avg_-14_in_layers_3-5_lstsq`: as its file is called."""
        return self.label.replace(",", "").replace("/", "of").replace(" ", "_")


@dataclass(frozen=True)
class MeanTrunk:
    """A hydra of whole models behind the mean of their leading layers; it is never parted."""

    file: Path
    layers: int
    numbers: int
    """Parameters."""


@dataclass(frozen=True)
class Member:
    """One model that could be a member."""

    label: str
    """As tables show it."""
    file: Path
    """Where it lies once it is made."""
    part: Part
    """What it costs."""
    model: int = 0
    """The number of the model it is made of; the mean of several is one more."""
    making: tuple[Command, ...] = ()
    """How it is made; nothing for a model that is there."""
    trunk: int | None = None
    """Leading layers that are the first model's; None: it shares nothing with other members."""
    pruning: Pruning | None = None
    """How it is pruned in memory, to be tried before it is made."""
    size: Size | None = None
    """What each layer keeps; None: it is not cut to a size."""
    hydra: MeanTrunk | None = None
    """What it is a member of, where it is no model of its own: `model` is its place in there."""


def cost(model: CostModel, members: Sequence[Member], unit: Unit) -> float:
    """Times the unpruned model's."""
    hydra = members[0].hydra
    if hydra is not None and unit == "params":
        return hydra.numbers / model.full[unit]
    if hydra is not None:
        part = members[0].part
        behind = len(members) * model.behind([part], hydra.layers)
        return (model.shared(part, hydra.layers) + behind) / model.full[unit]
    groups: dict[tuple[int, Size | None], list[Part]] = {}
    for member in members:
        groups.setdefault((member.model, member.size), []).append(member.part)
    return model.relative(groups.values(), unit)


def compatible(members: Sequence[Member]) -> bool:
    """Whether they may answer together; two cuts of one model never do."""
    alone = any(member.trunk is None for member in members)
    return not alone or len({member.model for member in members}) == len(members)


def scored(key: str, options: BuildOptions) -> Path:
    """The copy of the first model with these scores: another set of criteria finds it again."""
    how = ""
    if key.startswith("circuit-"):
        how = f"-{options.search}"
    return options.work / f"scored-{key}{how}.safetensors"


def reading(options: BuildOptions) -> dict[str, Any]:
    """What a command reads to score heads, or to repair layers."""
    return {
        "data": options.data,
        "limit": options.score_limit,
        **options.names,
        **options.running,
    }


class Pruned:
    """Members that lose heads of the first model."""

    def __init__(self, opened: Single, scores: Mapping[str, Score], options: BuildOptions) -> None:
        self.opened = opened
        self.manifest: SingleManifest = opened.manifest
        self.scores = scores
        self.options = options
        self.tower = read_tower(self.manifest.kept)
        self.layers = self.manifest.towers[self.tower].layers

    def backbone(self, label: str) -> Member:
        """The model as it is."""
        part = Part(self.manifest.kept)
        return Member(label, self.opened.path, part, trunk=self.layers)

    def candidates(self) -> Iterator[Member]:
        """So many members, each different: prefixes of every order and draws from it.

        Criteria come in turn, each in an order of its own drawn by the seed: none is crowded out
        where candidates are few.
        """
        starts = sorted({self.layers * quarter // 4 for quarter in range(4)})
        random = np.random.default_rng(self.options.seed)
        planned = []
        for method in sorted(self.scores):
            draws = range(DRAWS + 1)
            if criterion(method).own_number:
                draws = range(1)
            points = list(product(starts, FRACTIONS, draws, REPAIRS))
            planned.append([(method, *points[i]) for i in random.permutation(len(points))])
        seen: set[tuple[object, str | None]] = {(_key(self.manifest.kept), None)}
        for point in filter(None, chain.from_iterable(zip_longest(*planned))):
            if len(seen) > self.options.candidates:
                return
            member = self._candidate(*point)
            if member is None or member.pruning is None:
                continue
            key = (_key(member.part.kept), member.pruning.compensate)
            if key not in seen:
                seen.add(key)
                yield member

    def _candidate(
        self, method: str, start: int, fraction: float, draw: int, repair: str | None
    ) -> Member | None:
        """A member pruned from layer `start` on by the heads that go first (draw 0) or a draw, where
        there are such.
        """
        score, layers = self.scores[method], None
        if start > 0:
            layers = f"{start}-{self.layers - 1}"
        try:
            free = len(movable(self.manifest, score, layers=layers, tower=None))
            remove = round(fraction * free)
            pool = min(round(POOL * remove), free - 1)
            if remove < 1 or (draw and pool <= remove):
                return None
            amount: dict[str, Any] = {"remove": remove}
            if draw:
                amount = {"sample": f"{remove}/{pool}"}
            kept, _ = chooser(method)(self.manifest, score, **amount, layers=layers, seed=draw)
        except SurgeryError:  # an order that is shorter, or nothing would be left
            return None
        pruning = Pruning(method, **amount, layers=layers, compensate=repair, seed=draw)
        return self._member(kept, pruning)

    def _member(self, kept: Kept, pruning: Pruning) -> Member:
        options = self.options
        file = options.work / f"{pruning.name}.safetensors"
        own: dict[str, str] = {}
        words = dict(pruning.options)
        if pruning.compensate is not None:
            words |= reading(options)
            own = self._repaired(kept, file.name)
        making = Command("prune", (scored(pruning.method, options),), words, file)
        return Member(
            label=pruning.label,
            file=file,
            part=Part(kept, own),
            making=(making,),
            trunk=self._unchanged(kept),
            pruning=pruning,
        )

    def _repaired(self, kept: Kept, name: str) -> dict[str, str]:
        """A repair writes W_O and its bias wherever heads are gone; no two members have the same."""
        own = {}
        for tower, rows in self.manifest.kept.items():
            for layer, row in enumerate(rows):
                if kept[tower][layer] != row:
                    matrix, bias = output_of(self.opened.weights, tower, layer)
                    own[matrix] = name
                    if bias is not None:
                        own[bias] = name
        return own

    def _unchanged(self, kept: Kept) -> int:
        """How many leading layers have all their heads."""
        pairs = zip(self.manifest.kept[self.tower], kept[self.tower], strict=True)
        for layer, (before, after) in enumerate(pairs):
            if before != after:
                return layer
        return self.layers


class Cuts:
    """Whole models, their mean, and what is left of each at a size."""

    def __init__(
        self, models: Sequence[Single], sizes: Sizes, options: BuildOptions, *, averaged: bool
    ) -> None:
        self.models = models
        self.sizes = sizes
        self.options = options
        self.averaged = averaged
        """Whether the mean of the models is one more of them."""
        kept = models[0].manifest.kept
        self.words = reading(options)
        if len(kept) > 1:
            self.words["tower"] = read_tower(kept)
        for opened in models:
            manifest = opened.manifest
            if manifest.kept != all_kept(manifest.towers) or manifest.kept_neurons:
                raise SurgeryError(
                    f"{opened.path}: is pruned already",
                    hint="Cheaper members are cut out of unpruned models: give those.",
                )
            check_neurons(opened, (read_tower(kept),))

    @property
    def numbers(self) -> range:
        """The numbers of the models, and of their mean."""
        return range(len(self.models) + self.averaged)

    def unpruned(self, number: int) -> Member:
        """A scored copy of a model, or of their mean."""
        label, name = f"model {number + 1}", f"whole-{number + 1}"
        if number == len(self.models):
            label, name = "the mean", "whole-mean"
        part = Part(self.models[0].manifest.kept)
        return Member(label, self.options.work / f"{name}.safetensors", part, number)

    def averaging(self) -> Command:
        """What makes the mean of the scored copies."""
        files = tuple(self.unpruned(number).file for number in range(len(self.models)))
        words = {"mean": True, **self.options.names}
        return Command("fuse", files, words, self.options.work / "mean.safetensors")

    def soup(self) -> Member:
        """The mean of those models that make it better, as VAL says."""
        options = self.options
        words = {
            "mean": True,
            "soup": "greedy",
            "check": options.val,
            **options.names,
            "limit": options.limit,
            "seed": options.seed,
        }
        files = tuple(self.unpruned(number).file for number in range(len(self.models)))
        out = options.work / "soup.safetensors"
        making = (Command("fuse", files, words, out),)
        part = Part(self.models[0].manifest.kept)
        return Member("the greedy soup", out, part, len(self.models) + 1, making=making)

    def mean_trunk(self, layers: int) -> Command:
        """What makes a hydra of the scored copies behind the mean of so many layers."""
        files = tuple(self.unpruned(number).file for number in range(len(self.models)))
        words = {"mean_trunk": layers, **self.options.names}
        out = self.options.work / f"mean-trunk-{layers}.safetensors"
        return Command("fuse", files, words, out)

    def scorings(self, number: int) -> list[Command]:
        """What makes the scored copy of a model."""
        options, file = self.options, self.unpruned(number).file
        words = {"method": CUT_BY, **self.words, "seed": options.seed}
        if number == len(self.models):
            source: Path | str | None = self.averaging().out
            arch = None
        else:
            source, arch = options.paths[number], options.arch
        assert source is not None
        return [
            Command("score", (source,), {**words, "arch": arch}, file),
            Command("score", (file,), {**words, "part": "neurons"}),
        ]

    def cut(self, number: int, size: Size) -> Member:
        """What is left of a model at a size."""
        whole = self.unpruned(number)
        name = f"{whole.file.stem}-k{size.heads}-n{size.neurons:g}.safetensors"
        words = {
            "method": CUT_BY,
            "keep": size.heads,
            "neurons": size.neurons,
            "compensate": "lstsq",
            **self.words,
        }
        file = self.options.work / name
        return replace(
            whole,
            label=f"{whole.label}, {size.heads} heads a layer, {size.neurons:g} of the neurons",
            file=file,
            part=self.sizes.part(size),
            making=(Command("prune", (whole.file,), words, file),),
            size=size,
        )

    def distilled(self, member: Member, teachers: Sequence[str]) -> Member:
        """The same, distilled from these, or from the model that it was cut out of."""
        options, recipe = self.options, recipe_of(self.options)
        words: dict[str, Any] = {
            "recipe": recipe,
            "data": options.data,
            "val": options.val,
            "teacher": list(teachers) or [str(self.unpruned(member.model).file)],
            **options.names,
            "limit": options.limit,
            "seed": options.seed,
            "batch_size": None,
        }
        about = {name: str(value) for name, value in words.items()}
        about["recipe"] = repr(load_recipe(recipe, {}))  # all that it says, whatever its name
        name = f"{member.file.stem}-distilled-{content_hash(about, '')[:8]}.safetensors"
        file = member.file.with_name(name)
        return replace(
            member,
            label=f"{member.label}, distilled",
            file=file,
            making=(*member.making, Command("finetune", (member.file,), words, file)),
        )

    def teachers(self, count: int) -> list[Command]:
        """What trains so many models, each with an order of samples of its own."""
        options = self.options
        words = {
            "data": options.data,
            "val": options.val,
            **options.names,
            "limit": options.limit,
        }
        return [
            Command(
                "finetune",
                (self.unpruned(0).file,),
                {**words, "seed": options.seed + number},
                options.work / f"teacher-{number}.safetensors",
            )
            for number in range(1, count + 1)
        ]


def recipe_of(options: BuildOptions) -> str:
    """The recipe by which members are distilled."""
    if options.tune == "auto":
        return DISTIL
    return str(options.tune)


def read_tower(kept: Kept) -> str:
    """The tower that data runs through: members of a CLIP differ in their image towers."""
    if "vision" in kept:
        return "vision"
    return next(iter(kept))


def _key(kept: Kept) -> tuple[object, ...]:
    return tuple((tower, tuple(map(tuple, rows))) for tower, rows in sorted(kept.items()))
