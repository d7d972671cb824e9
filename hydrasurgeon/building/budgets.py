"""Predicted cost of models before they are made; budgets, and the sizes that fill them."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, Single
from hydrasurgeon.data import moved
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.weights import head_axes, neuron_sizes
from hydrasurgeon.files.decided import PREFIX as DECISION_PREFIX
from hydrasurgeon.heads import NEURONS, Kept
from hydrasurgeon.lookup import format_number
from hydrasurgeon.measuring.cost import first_sample, macs
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.hydra import Hydra
from hydrasurgeon.runtime.pruned import LoadedBackbone

Unit = Literal["macs", "params", "time"]
"""Units of a budget, relative to the unpruned model; time is measured."""
UNITS: tuple[Unit, ...] = ("macs", "params")
"""Those that are counted."""
BUDGET = re.compile(r"(macs|params|time)=([0-9.,e+-]+)")
"""A unit, and one number or several."""
SLACK = 1e-9
"""Relative, so that a hydra of exactly the budget is within it."""
MOST_PARTS = 3
"""Members of different models that a budget is divided among."""
SMALLEST = 0.25
"""Members of a hydra are no smaller than this, whatever the budget."""
NEAR = 1.1
"""A cost so much above another one has no size of its own, unless it is a budget."""


@dataclass(frozen=True)
class Budget:
    """Largest cost of a model, relative to the unpruned model."""

    unit: Unit
    most: float

    def __str__(self) -> str:
        return f"{self.unit}={self.most:g}"

    def allows(self, cost: float) -> bool:
        return cost <= self.most * (1 + SLACK)


def parse_budgets(text: str) -> list[Budget]:
    """Parse `macs=1.5`, or a list such as `macs=1,1.5`; return the budgets in rising order."""
    numbers: list[float] = []
    match = BUDGET.fullmatch(text)
    if match is not None:
        with contextlib.suppress(ValueError):
            numbers = sorted({float(number) for number in match[2].split(",")})
    if match is None or not numbers or not all(0 < number < 1e9 for number in numbers):
        message = f"--budget {text}: expected macs=N, params=N or time=N, above 0"
        raise UsageError(message, hint="Such as macs=1.5, or a list: macs=1,1.5,2.")
    return [Budget(match[1], number) for number in numbers]  # type: ignore[arg-type]


@dataclass(frozen=True, order=True)
class Size:
    """Heads and neurons that each layer of a smaller model keeps."""

    heads: int
    neurons: float
    """A fraction of the MLP's."""


class ModelSizes:
    """The sizes of one architecture, and what they cost before any is made: so much for each head
    of every layer, and for each neuron.
    """

    def __init__(self, opened: Single, inputs: Any, options: Run) -> None:
        self.opened = opened
        manifest, weights = opened.manifest, opened.weights.values()
        self.tower = read_tower(manifest.kept)
        tower = manifest.towers[self.tower]
        self.heads, self.layers = tower.heads, tower.layers
        group = f"{self.tower}{NEURONS}"
        self.neurons = [len(row) for row in opened.kept[group]]
        self.neuron_costs = neuron_sizes(weights)[group]
        backbone = LoadedBackbone(opened, device=options.device, dtype=options.dtype)
        sample = moved(first_sample(inputs), backbone.device, backbone.dtype)
        anatomy = opened.family.anatomy(backbone.module(manifest.kept))
        with torch.inference_mode():
            tokens = anatomy.embed(sample).hidden.shape[1]
        self.tokens = [tokens] * (self.layers - 1) + [min(tokens, anatomy.reads or tokens)]
        counts = [_counted(backbone, self._kept(heads), sample) for heads in (self.heads, 1)]
        self.full: dict[Unit, int] = {"macs": counts[0], "params": stored(opened)}
        axes = head_axes(weights)
        in_heads = sum(
            torch.Size(opened.weights[name].shape).numel()
            for name, (named, *_) in axes.items()
            if named == self.tower
        )
        self.of_a_head: dict[Unit, float] = {
            "macs": (counts[0] - counts[1]) / max(1, self.heads - 1),
            "params": in_heads / self.heads,
        }

    def _kept(self, heads: int) -> Kept:
        """Return the kept heads of a model with this number of heads in every layer."""
        kept = self.opened.manifest.kept
        return {**kept, self.tower: (tuple(range(heads)),) * self.layers}

    def widths(self, size: Size) -> list[int]:
        """Return the number of neurons that each layer keeps."""
        return [max(1, round(size.neurons * neurons)) for neurons in self.neurons]

    def cost(self, size: Size, unit: Unit) -> float:
        """Return the cost relative to the unpruned model."""
        saved = (self.heads - size.heads) * self.of_a_head[unit]
        layers = zip(self.neurons, self.widths(size), self.neuron_costs, self.tokens, strict=True)
        for before, after, neuron_cost, tokens in layers:
            saved += (before - after) * neuron_cost[unit] * (tokens if unit == "macs" else 1)
        return (self.full[unit] - round(saved)) / self.full[unit]

    def filling(self, budget: Budget) -> Size | None:
        """Return the size that costs as much as the budget or a little less; None if no size is so
        cheap. Of all numbers of heads it takes the one whose neurons are nearest to the usual
        share: half of the neurons with two thirds of the heads.
        """
        fits = []
        for heads in range(1, self.heads + 1):
            least = self.cost(Size(heads, 0.0), budget.unit)
            most = self.cost(Size(heads, 1.0), budget.unit)
            fraction = (budget.most * (1 + SLACK) - least) / (most - least)
            for percent in range(min(100, math.floor(100 * fraction)), 0, -1):
                size = Size(heads, percent / 100)
                if budget.allows(self.cost(size, budget.unit)):
                    share = heads / self.heads
                    usual = max(1.5 * share - 0.5, share / 2)
                    fits.append((abs(size.neurons - usual), size))
                    break
        return min(fits)[1] if fits else None

    def ladder(self, budgets: Sequence[Budget], models: int) -> list[Size]:
        """Return the sizes of which as many as there are models, or fewer, fill a budget, without
        the unpruned model. Refuse a budget below the smallest size.
        """
        for budget in budgets:
            if budget.most < 1 and self.filling(budget) is None:
                least = self.cost(Size(1, 0.01), budget.unit)
                raise UsageError(
                    f"--budget {budget}: the smallest possible model costs {budget.unit}={format_number(least, 2)}",
                    hint="Give a larger --budget.",
                )
        costs = {budget for budget in budgets if budget.most < 1}
        shares = {
            Budget(budget.unit, budget.most / count)
            for budget in budgets
            for count in range(1, min(models, MOST_PARTS) + 1)
        }
        for share in sorted(shares - costs, key=lambda budget: budget.most):
            near = any(cost.most <= share.most < NEAR * cost.most for cost in costs)
            if SMALLEST <= share.most < 1 and not near:
                costs.add(share)
        return sorted({size for cost in costs if (size := self.filling(cost))})


def stored(checkpoint: Checkpoint) -> int:
    """Return the number of parameters in a checkpoint's members, without its decision state."""
    infos = checkpoint.tensors.items()
    return sum(
        torch.Size(info.shape).numel()
        for name, info in infos
        if not name.startswith(DECISION_PREFIX)
    )


def _counted(backbone: LoadedBackbone, kept: Kept, inputs: Any) -> int:
    """Count the multiply-adds of a model that keeps these heads."""
    anatomy = backbone.checkpoint.family.anatomy
    with torch.inference_mode():
        return macs(Hydra([backbone.module(kept)], anatomy, trunk=0, mode="apart"), inputs)


def read_tower(kept: Kept) -> str:
    """Return the tower that data run through: the image tower of a CLIP."""
    return "vision" if "vision" in kept else next(iter(kept))
