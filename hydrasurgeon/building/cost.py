"""What models and hydras will cost, before any is built; budgets, and the sizes that fill them.

With T tokens of width E, u heads of width d in all, n of them in a member, attention that is read
at t tokens costs

    queries u·t·E·d     keys, values u·2·T·E·d     maps u·2·t·T·d     W_O n·t·d·E     multiply-adds

(all but keys and values as often as query heads share these) once for the trunk; once for each
member behind it. In the layer where members part, queries, keys, values and maps are computed once,
for the union of their heads (and queries of all tokens), if members have heads in common.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from hydrasurgeon.anatomy.layers import after_attention, run_block
from hydrasurgeon.anatomy.parts import Block, Stack
from hydrasurgeon.checkpoints.reading import Checkpoint, Single, rewritten
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.weights import head_axes, neuron_sizes, output_of
from hydrasurgeon.files.decided import PREFIX as DECISION_PREFIX
from hydrasurgeon.heads import NEURONS, Kept
from hydrasurgeon.measuring.cost import MultiplyAdds, first_sample, relative_macs
from hydrasurgeon.runtime.pruned import LoadedBackbone

Unit = Literal["macs", "params", "time"]
"""What a budget can be given in, times the backbone's; time is measured."""
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
    """What a hydra may cost, times the backbone's."""

    unit: Unit
    most: float

    def __str__(self) -> str:
        return f"{self.unit}={self.most:g}"

    def allows(self, cost: float) -> bool:
        return cost <= self.most * (1 + SLACK)


def parse_budgets(text: str) -> list[Budget]:
    """`macs=1.5`, or a list: a rising front."""
    numbers: list[float] = []
    match = BUDGET.fullmatch(text)
    if match is not None:
        with contextlib.suppress(ValueError):
            numbers = sorted({float(number) for number in match[2].split(",")})
    if match is None or not numbers or not all(0 < number < 1e9 for number in numbers):
        what = f"--budget {text}: expected macs=N, params=N or time=N, above 0"
        raise UsageError(what, hint="Such as macs=1.5, or a list: macs=1,1.5,2.")
    return [Budget(match[1], number) for number in numbers]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Part:
    """One member of a planned hydra."""

    kept: Kept
    own: Mapping[str, str] = field(default_factory=dict)
    """What tells apart the tensors that are not the backbone's, as a repair leaves W_O and its
    bias.
    """
    saved: Mapping[str, int] = field(default_factory=dict)
    """What its missing neurons would cost, by unit."""


SiteSize = tuple[int, int, int, tuple[str, str | None]]
"""Numbers in q, k and v of one head, in its columns of W_O, in W_O's bias; and the names of W_O and
its bias.
"""


@dataclass(frozen=True)
class CostModel:
    """The constants of one backbone."""

    tower: str
    """What inputs run through; the others cost parameters only."""
    width: int
    tokens: int
    """Tokens of the sample."""
    read: int
    """How many of them the classifier looks at."""
    embedding: int
    head_dims: tuple[int, ...]
    queries: int
    """Query heads that share the key and the value of one head."""
    rests: tuple[int, ...]
    """Multiply-adds of all but attention in each layer, for every token."""
    last: int
    """Those of the last layer, for the tokens that are read."""
    readout: int
    readout_of_all: int
    """The readout behind a last layer that ran for every token."""
    others: int
    """Numbers in the tensors that are no part of an attention site's heads, nor W_O's bias."""
    sites: Mapping[str, tuple[SiteSize, ...]]
    unpruned: Kept
    distances: tuple[int, int] = (0, 0)
    """What one head's distances cost in a layer, for all tokens and for those that are read."""

    def count(self, parts: Sequence[Part], unit: Unit) -> int:
        """What members of one backbone cost as one hydra, as `measuring.cost` counts it."""
        saved = sum(part.saved.get(unit, 0) for part in parts)
        if unit == "params":
            return self._params(parts) - saved
        trunk = self.trunk(parts)
        return self.shared(parts[0], trunk) + self.behind(parts, trunk) - saved

    def relative(self, groups: Iterable[Sequence[Part]], unit: Unit) -> float:
        """Times the unpruned model's; members of different models share nothing."""
        return sum(self.count(parts, unit) for parts in groups) / self.full[unit]

    @cached_property
    def full(self) -> dict[Unit, int]:
        """What the unpruned model costs."""
        return {unit: self.count([Part(self.unpruned)], unit) for unit in UNITS}

    def shared(self, part: Part, trunk: int) -> int:
        """The embedding and the trunk."""
        rows = part.kept[self.tower][:trunk]
        attention = sum(
            self._attention(layer, len(row), len(row), self.tokens)
            for layer, row in enumerate(rows)
        )
        return self.embedding + attention + sum(self.rests[:trunk])

    def behind(self, parts: Sequence[Part], trunk: int) -> int:
        """What these members run behind a trunk of so many layers."""
        rows = [part.kept[self.tower] for part in parts]
        depth, members = len(self.rests), len(parts)
        if trunk == depth:
            return members * self.readout_of_all
        total = members * self.readout
        for layer in range(trunk, depth):
            tokens, rest = (
                (self.read, self.last) if layer == depth - 1 else (self.tokens, self.rests[layer])
            )
            heads = computed = sum(len(row[layer]) for row in rows)
            if layer == trunk and not any(self.distances):
                computed = len(set().union(*(row[layer] for row in rows)))
            total += self._attention(layer, computed, heads, tokens) + members * rest
            if computed < heads:  # the union computes the queries of all tokens
                total += (
                    computed
                    * self.queries
                    * (self.tokens - tokens)
                    * self.width
                    * self.head_dims[layer]
                )
        return total

    def _params(self, parts: Sequence[Part]) -> int:
        """Numbers in the fused hydra's file, as `stored` counts them: heads of several members
        stand in it once.
        """
        total = self.others
        for tower, sites in self.sites.items():
            for layer, (projections, output, bias_size, (matrix, bias)) in enumerate(sites):
                rows = [part.kept[tower][layer] for part in parts]
                heads = len(set().union(*rows))
                apart = _conflict(rows, [part.own.get(matrix) for part in parts])
                total += heads * projections + (sum(map(len, rows)) if apart else heads) * output
                several = bias is not None and len({part.own.get(bias) for part in parts}) > 1
                total += (len(parts) if several else 1) * bias_size
        return total

    def trunk(self, parts: Sequence[Part]) -> int:
        """Leading layers that all members have in common."""
        first, *others = parts
        rows = first.kept[self.tower]
        for layer, (*_, names) in enumerate(self.sites[self.tower]):
            for other in others:
                repaired = any(first.own.get(name) != other.own.get(name) for name in names if name)
                if other.kept[self.tower][layer] != rows[layer] or repaired:
                    return layer
        return len(rows) if others else 0

    def _attention(self, layer: int, computed: int, heads: int, tokens: int) -> int:
        """`computed` heads of which members hand on `heads`, at so many tokens."""
        several = self.queries
        inside = (
            several * tokens + 2 * self.tokens
        ) * self.width + 2 * several * tokens * self.tokens
        distances = computed * self.distances[tokens != self.tokens]
        return (
            self.head_dims[layer] * (computed * inside + heads * several * tokens * self.width)
            + distances
        )


def _conflict(rows: Sequence[tuple[int, ...]], digests: Sequence[str | None]) -> bool:
    """Whether members that share a head have other columns for it, so that each brings a W_O of its
    own.
    """
    return any(digests) and any(
        one != other and not set(row).isdisjoint(rows[j])
        for (i, one), row in zip(enumerate(digests), rows, strict=True)
        for j, other in enumerate(digests[:i])
    )


@dataclass(frozen=True, order=True)
class Size:
    """What each layer of a smaller model keeps."""

    heads: int
    neurons: float
    """A fraction of the MLP's."""


class Sizes:
    """The sizes of one architecture, and what they cost before any is made."""

    def __init__(self, model: CostModel, opened: Single, *, stock: bool = False) -> None:
        self.opened = opened
        self.stock = stock
        """Whether only those count that the model's own library builds."""
        tower = opened.manifest.towers[model.tower]
        self.model = model
        self.heads = tower.heads
        self.layers = tower.layers
        self.neurons = [len(row) for row in opened.kept[f"{model.tower}{NEURONS}"]]
        self.neuron_costs = neuron_sizes(opened.weights.values())[f"{model.tower}{NEURONS}"]

    def part(self, size: Size) -> Part:
        """What is left of the model at a size."""
        kept = {**self.model.unpruned, self.model.tower: (tuple(range(size.heads)),) * self.layers}
        saved: dict[str, int] = dict.fromkeys(UNITS, 0)
        for layer, neurons in enumerate(self.neurons):
            removed = neurons - max(1, round(size.neurons * neurons))
            tokens = self.model.tokens
            if layer == self.layers - 1:
                tokens = self.model.read
            saved["macs"] += removed * self.neuron_costs[layer]["macs"] * tokens
            saved["params"] += removed * self.neuron_costs[layer]["params"]
        return Part(kept, saved=saved)

    def is_offered(self, size: Size) -> bool:
        """Whether the model's own library builds it, where that counts."""
        if not self.stock:
            return True
        widths = [max(1, round(size.neurons * neurons)) for neurons in self.neurons]
        cut = rewritten(
            self.opened.manifest,
            kind="member",
            kept=self.part(size).kept,
            kept_neurons={self.model.tower: tuple(tuple(range(width)) for width in widths)},
        )
        return self.opened.family.stock_sizes(cut) is not None

    def cost(self, size: Size, unit: Unit) -> float:
        """Times the unpruned model's."""
        return self.model.relative([[self.part(size)]], unit)

    def filling(self, budget: Budget) -> Size | None:
        """The size that costs this much or a little less: of all numbers of heads the one whose
        neurons are nearest to what goes with it, half of them with two thirds of the heads; None
        where nothing is so cheap.
        """
        fits = []
        for heads in range(1, self.heads + 1):
            if not self.is_offered(Size(heads, 1.0)):
                continue
            least = self.cost(Size(heads, 0.0), budget.unit)
            most = self.cost(Size(heads, 1.0), budget.unit)
            fraction = (budget.most * (1 + SLACK) - least) / (most - least)
            percent = min(100, math.floor(100 * fraction))
            while percent > 0:
                size = Size(heads, percent / 100)
                if budget.allows(self.cost(size, budget.unit)) and self.is_offered(size):
                    share = heads / self.heads
                    usual = max(1.5 * share - 0.5, share / 2)
                    fits.append((abs(size.neurons - usual), size))
                    break
                percent -= 1
        if not fits:
            return None
        return min(fits)[1]

    def ladder(self, budgets: Sequence[Budget]) -> list[Size]:
        """The sizes of which one, two or three fill a budget, the unpruned model not among them;
        a budget that no size is within is refused.
        """
        for budget in budgets:
            if budget.most < 1 and self.filling(budget) is None:
                least, what = self.cost(Size(1, 0.01), budget.unit), "one head a layer"
                if self.stock:
                    least, what = self.cost(Size(self.heads, 0.01), budget.unit), "hardly a neuron"
                raise UsageError(
                    f"--budget {budget}: a model with {what} costs {budget.unit}={least:.2g}",
                    hint="Allow more than that.",
                )
        costs = {budget for budget in budgets if budget.most < 1}
        shares = {
            Budget(budget.unit, budget.most / count)
            for budget in budgets
            for count in range(1, MOST_PARTS + 1)
        }
        for share in sorted(shares - costs, key=lambda budget: budget.most):
            near = any(cost.most <= share.most < NEAR * cost.most for cost in costs)
            if SMALLEST <= share.most < 1 and not near:
                costs.add(share)
        return sorted({size for cost in costs if (size := self.filling(cost))})


def stored(checkpoint: Checkpoint) -> int:
    """Numbers in the tensors of a checkpoint's members; a decision state is none of them."""
    infos = checkpoint.tensors.items()
    return sum(
        torch.Size(info.shape).numel()
        for name, info in infos
        if not name.startswith(DECISION_PREFIX)
    )


@torch.inference_mode()
def cost_model(backbone: LoadedBackbone, inputs: Any) -> CostModel:
    """Count one sample's work in the parts of the live backbone."""
    checkpoint, manifest = backbone.checkpoint, backbone.manifest
    anatomy = checkpoint.family.anatomy(backbone.module(manifest.kept))
    sample = first_sample(inputs)
    with MultiplyAdds() as embedding:
        stack = anatomy.embed(sample)
    entered = hidden = stack.hidden
    rests = []
    for block in anatomy.blocks:
        rests.append(_rest(block, hidden))
        entered, hidden = hidden, run_block(block, hidden, stack.bias)
    few = hidden[:, : anatomy.reads]
    readouts = []
    for some in (few, hidden):
        anatomy.readout(Stack(some, stack.bias))  # what is computed once is no cost of a sample
        with MultiplyAdds() as readout:
            anatomy.readout(Stack(some, stack.bias))
        readouts.append(readout.count)
    sites = _sites(checkpoint)
    whole = sum(torch.Size(weight.shape).numel() for weight in checkpoint.weights.values())
    held = sum(
        manifest.towers[tower].heads * (projections + output) + bias
        for tower, layers in sites.items()
        for projections, output, bias, _ in layers
    )
    return CostModel(
        tower=anatomy.blocks[0].attention.tower,
        width=hidden.shape[-1],
        tokens=hidden.shape[1],
        read=few.shape[1],
        embedding=embedding.count,
        head_dims=tuple(block.attention.head_dim for block in anatomy.blocks),
        queries=anatomy.blocks[0].attention.queries,
        rests=tuple(rests),
        last=_rest(anatomy.blocks[-1], entered[:, : anatomy.reads]),
        readout=readouts[0],
        readout_of_all=readouts[1],
        others=whole - held,
        sites=sites,
        unpruned=manifest.kept,
        distances=(
            relative_macs(anatomy.blocks, hidden, None),
            relative_macs(anatomy.blocks, hidden, anatomy.reads),
        ),
    )


def _rest(block: Block, hidden: torch.Tensor) -> int:
    with MultiplyAdds() as counter:
        after_attention(block, hidden, hidden)
    return counter.count


def _sites(checkpoint: Single) -> dict[str, tuple[SiteSize, ...]]:
    weights = checkpoint.weights
    axes = head_axes(weights.values())

    def numbers(name: str) -> int:
        return torch.Size(weights[name].shape).numel()

    def site(tower: str, layer: int, heads: int) -> SiteSize:
        matrix, bias = output_of(weights, tower, layer)
        projections = sum(
            numbers(n) for n, place in axes.items() if place[:2] == (tower, layer) and n != matrix
        )
        size = 0 if bias is None else numbers(bias)
        return projections // heads, numbers(matrix) // heads, size, (matrix, bias)

    return {
        tower: tuple(site(tower, layer, size.heads) for layer in range(size.layers))
        for tower, size in checkpoint.manifest.towers.items()
    }
