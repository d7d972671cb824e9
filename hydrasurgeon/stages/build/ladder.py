"""build's ladder: whole models cut to sizes that fill a price, each a file that other commands make
without training.

Every layer keeps as many heads, and of its MLP as many neurons; both are chosen by taylor, and W_O
and W_2 repaired by least squares. Members of different whole models have nothing in common: a hydra
of them costs their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrasurgeon.checkpoints.reading import Single, all_kept
from hydrasurgeon.criteria.neurons import check_neurons
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.families.weights import neuron_sizes
from hydrasurgeon.files.resumable import content_hash
from hydrasurgeon.heads import NEURONS
from hydrasurgeon.options.making import BuildOptions
from hydrasurgeon.stages.build.candidates import read_tower
from hydrasurgeon.stages.build.cost import SLACK, Budget, CostModel, Part, Unit, parse_budgets
from hydrasurgeon.stages.commands import Command
from hydrasurgeon.stages.fuse import planned_mean

METHOD = "taylor"
"""By what heads and neurons are chosen."""
MOST_CUTS = 3
"""Members of a hydra that a price is divided among."""
SMALLEST = 0.25
"""Members of a hydra are no smaller than this, whatever the budget."""
NEAR = 1.1
"""A price so much above another one has no size of its own, unless it is a budget."""
TEACH = "teach"
"""The recipe of `--tune auto`."""


def laddered(options: BuildOptions) -> bool:
    """Whether members are cut out of whole models: for several, a front, a price below one, or to
    be taught.
    """
    budgets = parse_budgets(options.budget)
    taught = options.tune == "auto" or options.teachers is not None
    return taught or len(options.checkpoints) > 1 or len(budgets) > 1 or budgets[0].most < 1


@dataclass(frozen=True, order=True)
class Size:
    """What each layer keeps."""

    heads: int
    neurons: float
    """A fraction of the MLP's."""


@dataclass(frozen=True)
class Cut:
    """A whole model, or what is left of it at a size: a file in the work folder."""

    model: int
    """Its number among the models that were given; their mean is one more."""
    file: Path
    size: Size | None = None
    """None: it is whole."""
    commands: tuple[Command, ...] = ()
    """What makes it of the scored whole model."""
    taught: bool = False
    mean: bool = False
    """Whether it comes from the mean of the models that were given."""

    @property
    def label(self) -> str:
        """`model 2, 8 heads a layer, 0.5 of the neurons, taught`: as a table shows it."""
        name = "the mean" if self.mean else f"model {self.model + 1}"
        size = (
            ""
            if self.size is None
            else f", {self.size.heads} heads a layer, {self.size.neurons:g} of the neurons"
        )
        return f"{name}{size}" + (", taught" if self.taught else "")


class Sizes:
    """What sizes of one architecture cost, counted before any is made."""

    def __init__(self, model: CostModel, opened: Single) -> None:
        tower = read_tower(opened.manifest.kept)
        self.model, self.kept, self.tower = model, opened.manifest.kept, tower
        self.heads, self.layers = (
            opened.manifest.towers[tower].heads,
            opened.manifest.towers[tower].layers,
        )
        self.neurons = [len(row) for row in opened.kept[f"{tower}{NEURONS}"]]
        self.each = neuron_sizes(opened.weights.values())[f"{tower}{NEURONS}"]
        self.whole = {unit: self._count(Size(self.heads, 1.0), unit) for unit in ("macs", "params")}

    def cost(self, size: Size | None) -> dict[str, float]:
        """Times the whole model's."""
        if size is None:
            return {"macs": 1.0, "params": 1.0}
        return {unit: self._count(size, unit) / self.whole[unit] for unit in ("macs", "params")}

    def _count(self, size: Size, unit: Unit) -> int:
        kept = {**self.kept, self.tower: (tuple(range(size.heads)),) * self.layers}
        total = (self.model.macs if unit == "macs" else self.model.params)([Part(kept)])
        for layer, neurons in enumerate(self.neurons):
            tokens = self.model.read if layer == self.layers - 1 else self.model.tokens
            gone = neurons - max(1, round(size.neurons * neurons))
            total -= gone * self.each[layer][unit] * (tokens if unit == "macs" else 1)
        return total

    def filling(self, price: Budget) -> Size | None:
        """The size that costs this much or a little less: of all numbers of heads the one whose
        neurons are nearest to what goes with it, half of them with two thirds of the heads; None
        where nothing is so cheap.
        """
        fits = []
        for heads in range(1, self.heads + 1):
            least, most = (self.cost(Size(heads, share))[price.unit] for share in (0.0, 1.0))
            percent = min(
                100, math.floor(100 * (price.most * (1 + SLACK) - least) / (most - least))
            )
            while percent > 0 and not price.allows(
                self.cost(Size(heads, percent / 100))[price.unit]
            ):
                percent -= 1
            if percent > 0:
                share = heads / self.heads
                usual = max(1.5 * share - 0.5, share / 2)
                fits.append((abs(percent / 100 - usual), Size(heads, percent / 100)))
        return min(fits)[1] if fits else None

    def ladder(self, budgets: Sequence[Budget]) -> list[Size]:
        """The sizes of which one, two or three fill a budget; a whole model is none of them."""
        prices = {each for each in budgets if each.most < 1}
        shares = {
            Budget(each.unit, each.most / count)
            for each in budgets
            for count in range(1, MOST_CUTS + 1)
        }
        for price in sorted(shares - prices, key=lambda share: share.most):
            near = any(each.most <= price.most < NEAR * each.most for each in prices)
            if SMALLEST <= price.most < 1 and not near:
                prices.add(price)
        sizes = {self.filling(price) for price in prices}
        return sorted(size for size in sizes if size is not None)

    def check(self, budgets: Iterable[Budget]) -> None:
        """Refuse a budget that no size is within."""
        for budget in budgets:
            if budget.most < 1 and self.filling(budget) is None:
                least = self.cost(Size(1, 0.01))[budget.unit]
                what = (
                    f"--budget {budget}: a model with one head a layer costs "
                    f"{budget.unit}={least:.2g}"
                )
                raise UsageError(what, hint="Allow more than that.")


def averaged(models: Sequence[Single]) -> bool:
    """Whether they are several, and have a mean that is like them."""
    if len(models) == 1:
        return False
    try:
        planned_mean(models, [opened.digests() for opened in models])
    except SurgeryError:
        return False
    return True


class Ladder:
    """Cuts of whole models, and what makes them."""

    def __init__(self, models: Sequence[Single], options: BuildOptions) -> None:
        self.models, self.options = models, options
        self.mean = options.work / "mean.safetensors" if averaged(models) else None
        """The mean of several fine-tunings of one start."""
        kept = models[0].manifest.kept
        self.tower = {"tower": read_tower(kept)} if len(kept) > 1 else {}
        self.read = {
            "data": options.data,
            "limit": options.score_limit,
            **options.names,
            **options.running,
        }
        for opened in models:
            if (
                opened.manifest.kept != all_kept(opened.manifest.towers)
                or opened.manifest.kept_neurons
            ):
                what = f"{opened.path}: is pruned already"
                raise SurgeryError(
                    what, hint="Cheaper members are cut out of whole models: give those."
                )
            check_neurons(opened, (read_tower(kept),))

    def scorings(self, model: int) -> list[Command]:
        """What makes a scored copy of a whole model."""
        whole, options = self.whole(model), self.options
        source = self.mean if whole.mean and self.mean else options.paths[model]
        keywords = {"method": METHOD, **self.read, **self.tower, "seed": options.seed}
        first = Command(
            "score",
            (source,),
            {**keywords, "arch": None if whole.mean else options.arch},
            whole.file,
        )
        return [first, Command("score", (whole.file,), {**keywords, "part": "neurons"})]

    def averaging(self) -> list[Command]:
        """What makes the mean of the scored whole models, where they have one."""
        files = tuple(self.whole(at).file for at in range(len(self.models)))
        return (
            [Command("fuse", files, {"mean": True, **self.options.names}, self.mean)]
            if self.mean
            else []
        )

    @property
    def wholes(self) -> range:
        """The numbers of the models, and of their mean."""
        return range(len(self.models) + (self.mean is not None))

    def whole(self, model: int) -> Cut:
        mean = model == len(self.models)
        return Cut(
            model,
            self.options.work / f"whole-{'mean' if mean else model + 1}.safetensors",
            mean=mean,
        )

    def cut(self, model: int, size: Size) -> Cut:
        whole = self.whole(model)
        file = self.options.work / f"{whole.file.stem}-k{size.heads}-n{size.neurons:g}.safetensors"
        keywords = {
            "method": METHOD,
            "keep": size.heads,
            "neurons": size.neurons,
            "compensate": "lstsq",
        }
        pruning = Command("prune", (whole.file,), {**keywords, **self.read, **self.tower}, file)
        return replace(whole, file=file, size=size, commands=(pruning,))

    def taught(self, cut: Cut, teachers: Sequence[Path | str]) -> Cut:
        """The same, taught by these, or by the whole model that it was cut out of."""
        options = self.options
        sources = list(teachers) or [self.whole(cut.model).file]
        recipe = TEACH if options.tune == "auto" else options.tune
        keywords: dict[str, Any] = {"recipe": recipe, "data": options.data, "val": options.val}
        keywords |= {"teacher": [str(each) for each in sources], **options.names}
        keywords |= {"limit": options.limit, "seed": options.seed, "batch_size": None}
        about = {name: str(value) for name, value in keywords.items()} | {
            "recipe": recipe_text(str(recipe))
        }
        file = cut.file.with_name(
            f"{cut.file.stem}-taught-{content_hash(about, '')[:8]}.safetensors"
        )
        teaching = Command("finetune", (cut.file,), keywords, file)
        return replace(cut, file=file, commands=(*cut.commands, teaching), taught=True)

    def teachers(self, count: int) -> list[Command]:
        """What trains so many whole models, each with an order of samples of its own."""
        options = self.options
        keywords: dict[str, Any] = {
            "data": options.data,
            "val": options.val,
            **options.names,
            "limit": options.limit,
        }
        return [
            Command(
                "finetune",
                (self.whole(0).file,),
                {**keywords, "seed": options.seed + at},
                options.work / name,
            )
            for at, name in enumerate(
                (f"teacher-{number}.safetensors" for number in range(1, count + 1)), 1
            )
        ]


def recipe_text(recipe: str, fields: Mapping[str, str] | None = None) -> str:
    """All that a recipe says, whatever its name."""
    from hydrasurgeon.tuning.recipes import load_recipe

    return repr(load_recipe(recipe, fields or {}))
