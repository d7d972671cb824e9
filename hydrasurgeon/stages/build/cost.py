"""What a training-free hydra will cost, from the heads of its members alone: no member is built.

With T tokens of width E, u heads of width d in all, n of them in a member, attention that is read
at t tokens costs

    queries u·t·E·d     keys, values u·2·T·E·d     maps u·2·t·T·d     W_O n·t·d·E     multiply-adds

(all but keys and values as often as query heads share these) once for the trunk; once for each
member behind it. In the layer where members part, queries, keys, values and maps are computed once,
for the union of their heads (and queries of all tokens), if members have heads in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from hydrasurgeon.anatomy.layers import after_attention, run_block
from hydrasurgeon.anatomy.parts import Block, Stack
from hydrasurgeon.checkpoints.reading import Checkpoint, Single
from hydrasurgeon.errors import UsageError
from hydrasurgeon.families.weights import head_axes, output_of
from hydrasurgeon.files.decided import PREFIX as DECISION_PREFIX
from hydrasurgeon.heads import Kept
from hydrasurgeon.measuring.cost import MultiplyAdds, first_sample, relative_macs
from hydrasurgeon.runtime.pruned import LoadedBackbone
from hydrasurgeon.stages.build.candidates import Candidate

Unit = Literal["macs", "params"]
UNITS: tuple[Unit, ...] = ("macs", "params")
"""What a budget can be given in, both times the backbone's."""
BUDGET = re.compile(r"(macs|params)=([0-9.,e+-]+)")
"""A unit, and one number or several."""
SLACK = 1e-9
"""Relative, so that a hydra of exactly the budget is within it."""


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
    match = BUDGET.fullmatch(text)
    try:
        numbers = sorted({float(number) for number in match[2].split(",")}) if match else []
    except ValueError:
        numbers = []
    if match is None or not numbers or not all(0 < number < 1e9 for number in numbers):
        what = f"--budget {text}: expected macs=N or params=N, above 0"
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
    relative: tuple[int, int] = (0, 0)
    """What one head's distances cost in a layer, for all tokens and for those that are read."""

    def macs(self, parts: Sequence[Part]) -> int:
        """Multiply-adds of one sample, as `cost.macs` counts them of the fused hydra."""
        trunk = self.trunk(parts)
        return self.shared(parts[0], trunk) + self.behind(parts, trunk)

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
            if layer == trunk and not any(self.relative):
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

    def params(self, parts: Sequence[Part]) -> int:
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
        relative = computed * self.relative[tokens != self.tokens]
        return (
            self.head_dims[layer] * (computed * inside + heads * several * tokens * self.width)
            + relative
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


class Costs:
    """What combinations of candidates cost, times the backbone's."""

    def __init__(self, model: CostModel, backbone: Kept, candidates: Sequence[Candidate]) -> None:
        self.model = model
        self.parts = [Part(each.kept, self._repaired(each, backbone)) for each in candidates]
        whole = [Part(backbone)]
        self.whole = {"macs": model.macs(whole), "params": model.params(whole)}

    def _repaired(self, candidate: Candidate, backbone: Kept) -> dict[str, str]:
        """A repair writes W_O and its bias wherever heads are gone; no two candidates have the
        same.
        """
        changed = [
            self.model.sites[tower][layer][-1]
            for tower, rows in backbone.items()
            for layer, row in enumerate(rows)
            if candidate.repair and candidate.kept[tower][layer] != row
        ]
        return {name: candidate.name for names in changed for name in names if name is not None}

    def cost(self, members: Sequence[int], unit: Unit) -> float:
        parts = [self.parts[i] for i in members]
        return (self.model.macs if unit == "macs" else self.model.params)(parts) / self.whole[unit]


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
        relative=(
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
