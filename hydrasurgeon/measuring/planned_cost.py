"""What a training-free hydra will cost, from the heads of its members alone: no member is built.

With T tokens of width E, u heads of width d in all, n of them in a member, attention that is read at t tokens costs

    queries u·t·E·d     keys, values u·2·T·E·d     maps u·2·t·T·d     W_O n·t·d·E     multiply-adds

once for the trunk; once for each member behind it. In the layer where members part, queries, keys, values and maps are
computed once, for the union of their heads (and queries of all tokens), if members have heads in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from hydrasurgeon.anatomy.layers import after_attention, run_block
from hydrasurgeon.anatomy.parts import Block, Stack
from hydrasurgeon.checkpoints.reading import Checkpoint, single
from hydrasurgeon.families.weights import head_axes, output_of
from hydrasurgeon.files.decided import PREFIX as DECISION_PREFIX
from hydrasurgeon.files.tensors import digest
from hydrasurgeon.heads import Kept, positions, take_heads
from hydrasurgeon.measuring.cost import MultiplyAdds, StepMacs, first_sample

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw
    from hydrasurgeon.runtime.pruned import LoadedBackbone


@dataclass(frozen=True)
class Part:
    """One member of a planned hydra."""

    kept: Kept
    own: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are not the backbone's, as `prune --compensate` leaves W_O and its bias: digests by name, which
    tell members with equal ones."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LayerWork(_Record):
    """One layer that inputs run through."""

    head_dim: int
    rest: int
    """Multiply-adds of all but attention, for every token."""


class SiteSize(_Record):
    """Numbers that one attention site holds."""

    projections: int
    """In q, k and v of one head."""
    output: int
    """In W_O's columns of one head."""
    bias: int
    names: tuple[str, str | None]
    """W_O and its bias."""


class TimeModel(_Record):
    """Milliseconds of a batch: start + layer · layers run + mac · multiply-adds, each at least 0."""

    start: float = Field(ge=0)
    layer: float = Field(ge=0)
    mac: float = Field(ge=0)
    error: float = Field(ge=0)
    """Largest share by which a hydra that was timed is missed."""

    @classmethod
    def fitted(cls, layers: Sequence[int], macs: Sequence[int], milliseconds: Sequence[float]) -> TimeModel:
        """Least squares of relative errors, under which no coefficient is negative."""
        taken = torch.tensor(milliseconds, dtype=torch.float64)
        columns = torch.stack([torch.ones_like(taken), torch.tensor(layers).double(), torch.tensor(macs).double()], 1)
        weighted = columns / taken[:, None]
        unit = weighted.norm(dim=0)
        best, loss = torch.zeros(3, dtype=torch.float64), float("inf")
        # Of three coefficients, every choice of those that are not 0 is tried.
        for some in (c for count in (1, 2, 3) for c in combinations(range(3), count)):
            used = list(some)
            solved = torch.linalg.lstsq(
                weighted[:, used] / unit[used], torch.ones_like(taken)[:, None], driver="gelsd"
            ).solution[:, 0]
            whole = torch.zeros(3, dtype=torch.float64)
            whole[used] = solved / unit[used]
            missed = float((weighted @ whole - 1).square().sum())
            if (whole >= 0).all() and missed < loss:
                best, loss = whole, missed
        error = float((weighted @ best - 1).abs().max())
        start, layer, mac = best.tolist()
        return cls(start=start, layer=layer, mac=mac, error=error)


class CostModel(_Record):
    """The constants of one backbone; written as JSON and read again, they give the same figures."""

    tower: str
    """What inputs run through; the others cost parameters only."""
    width: int
    tokens: int
    """Of the sample."""
    read: int
    """How many of them the classifier looks at."""
    embedding: int
    layers: tuple[LayerWork, ...]
    last: int
    """The last layer's `rest`, for the tokens that are read."""
    readout: int
    readout_of_all: int
    """The readout behind a last layer that ran for every token."""
    others: int
    """Numbers in the tensors that are no part of an attention site's heads, nor W_O's bias."""
    sites: dict[str, tuple[SiteSize, ...]]
    time: TimeModel | None = None

    def macs(self, parts: Sequence[Part]) -> int:
        """Multiply-adds of one sample, as `cost.macs` counts them of the fused hydra."""
        trunk = self.trunk(parts)
        return self._shared(parts[0], trunk) + self._behind(parts, trunk)

    def steps(self, parts: Sequence[Part], first: int = 1) -> StepMacs:
        """Those of a cascade, the first so many members of which answer every row."""
        trunk = self.trunk(parts)
        return StepMacs(
            self._shared(parts[0], trunk) + self._behind(parts[:first], trunk), self._behind(parts[first:], trunk)
        )

    def _shared(self, part: Part, trunk: int) -> int:
        """The embedding and the trunk."""
        total = self.embedding
        for layer, row in enumerate(part.kept[self.tower][:trunk]):
            total += self._attention(layer, len(row), len(row), self.tokens)
            total += self.layers[layer].rest
        return total

    def _behind(self, parts: Sequence[Part], trunk: int) -> int:
        """What these members run behind a trunk of so many layers."""
        rows = [part.kept[self.tower] for part in parts]
        depth, members = len(self.layers), len(parts)
        if trunk == depth:
            return members * self.readout_of_all
        total = 0
        for layer in range(trunk, depth):
            last = layer == depth - 1
            tokens, rest = (self.read, self.last) if last else (self.tokens, self.layers[layer].rest)
            heads = sum(len(row[layer]) for row in rows)
            computed = heads
            if layer == trunk:
                computed = len(set().union(*(row[layer] for row in rows)))
            total += self._attention(layer, computed, heads, tokens) + members * rest
            if computed < heads:  # the union computes the queries of all tokens
                work = self.layers[layer]
                total += computed * (self.tokens - tokens) * self.width * work.head_dim
        return total + members * self.readout

    def params(self, parts: Sequence[Part]) -> int:
        """Numbers in the fused hydra's file, as `stored` counts them: heads that several members keep stand in it
        once."""
        total = self.others
        for tower, sites in self.sites.items():
            layers = [part.kept[tower] for part in parts]
            for layer, site in enumerate(sites):
                rows = [row[layer] for row in layers]
                heads = len(set().union(*rows))
                matrix, bias = site.names
                apart = _conflict(rows, [part.own.get(matrix) for part in parts])
                total += heads * site.projections
                total += (sum(map(len, rows)) if apart else heads) * site.output
                shifts = 1
                if bias is not None and len({part.own.get(bias) for part in parts}) > 1:
                    shifts = len(parts)
                total += shifts * site.bias
        return total

    def milliseconds(self, parts: Sequence[Part]) -> float:
        """Of one batch, by the hydras that were timed."""
        assert self.time is not None, "ask for `timed`"
        work = self.time.mac * self.macs(parts)
        return self.time.start + self.time.layer * self._layers_run(parts) + work

    def trunk(self, parts: Sequence[Part]) -> int:
        """Leading layers that all members have in common."""
        first = parts[0]
        rows = first.kept[self.tower]
        for layer, site in enumerate(self.sites[self.tower]):
            for other in parts[1:]:
                if other.kept[self.tower][layer] != rows[layer]:
                    return layer
                if (first.own or other.own) and any(
                    first.own.get(name) != other.own.get(name) for name in site.names if name
                ):
                    return layer
        return len(rows) if len(parts) > 1 else 0

    def _layers_run(self, parts: Sequence[Part]) -> int:
        trunk = self.trunk(parts)
        return trunk + len(parts) * (len(self.layers) - trunk)

    def _attention(self, layer: int, computed: int, heads: int, tokens: int) -> int:
        """`computed` heads of which members hand on `heads`, at so many tokens."""
        head_dim = self.layers[layer].head_dim
        inside = (tokens + 2 * self.tokens) * self.width + 2 * tokens * self.tokens
        return head_dim * (computed * inside + heads * tokens * self.width)


def stored(checkpoint: Checkpoint) -> int:
    """Numbers in the tensors of a checkpoint's members; a decision state is none of them."""
    infos = checkpoint.tensors.items()
    return sum(torch.Size(info.shape).numel() for name, info in infos if not name.startswith(DECISION_PREFIX))


def _conflict(rows: Sequence[tuple[int, ...]], digests: Sequence[str | None]) -> bool:
    """Whether members that share a head have other columns for it, so that each brings a W_O of its own."""
    if not any(digests):
        return False
    return any(
        one != other and not set(row).isdisjoint(rows[j])
        for (i, one), row in zip(enumerate(digests), rows, strict=True)
        for j, other in enumerate(digests[:i])
    )


def own_tensors(checkpoint: Checkpoint, kept: Kept, repaired: Mapping[str, Raw]) -> dict[str, str]:
    """Digests of the repaired tensors that are not what cutting alone leaves of the checkpoint's."""
    manifest, axes = single(checkpoint), head_axes(checkpoint.weights.values())
    digests = {}
    for name, raw in repaired.items():
        plain = checkpoint.tensors.read(name)
        if name in axes:
            tower, layer, axis = axes[name]
            at = positions(manifest.kept[tower][layer], kept[tower][layer])
            plain = take_heads(plain, at, spec=axis, head_dim=manifest.towers[tower].head_dim)
        sha256 = digest(raw)
        if sha256 != digest(plain):
            digests[name] = sha256
    return digests


@torch.inference_mode()
def cost_model(backbone: LoadedBackbone, inputs: Any) -> CostModel:
    """Count one sample's work in the parts of the live backbone; nothing is timed."""
    checkpoint, manifest = backbone.checkpoint, backbone.manifest
    module = backbone.module(manifest.kept)
    anatomy = checkpoint.family.anatomy(module)
    sample = first_sample(inputs)
    with MultiplyAdds() as embedding:
        stack = anatomy.embed(sample)
    hidden, works = stack.hidden, []
    for block in anatomy.blocks:
        rest = _rest(block, hidden)
        works.append(LayerWork(head_dim=block.attention.head_dim, rest=rest))
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
        manifest.towers[tower].heads * (site.projections + site.output) + site.bias
        for tower, layers in sites.items()
        for site in layers
    )
    return CostModel(
        tower=anatomy.blocks[0].attention.tower,
        width=hidden.shape[-1],
        tokens=hidden.shape[1],
        read=few.shape[1],
        embedding=embedding.count,
        layers=tuple(works),
        last=_rest(anatomy.blocks[-1], entered[:, : anatomy.reads]),
        readout=readouts[0],
        readout_of_all=readouts[1],
        others=whole - held,
        sites=sites,
    )


def _rest(block: Block, hidden: torch.Tensor) -> int:
    with MultiplyAdds() as counter:
        after_attention(block, hidden, hidden)
    return counter.count


def _sites(checkpoint: Checkpoint) -> dict[str, tuple[SiteSize, ...]]:
    weights, towers = checkpoint.weights, checkpoint.manifest.towers
    axes = head_axes(weights.values())
    sites = {}
    for tower, size in towers.items():
        made = []
        for layer in range(size.layers):
            matrix, bias = output_of(weights, tower, layer)
            heads = [n for n, place in axes.items() if place[:2] == (tower, layer) and n != matrix]
            projections = sum(torch.Size(weights[name].shape).numel() for name in heads)
            made.append(
                SiteSize(
                    projections=projections // size.heads,
                    output=torch.Size(weights[matrix].shape).numel() // size.heads,
                    bias=0 if bias is None else weights[bias].shape[0],
                    names=(matrix, bias),
                )
            )
        sites[tower] = tuple(made)
    return sites


def timed(cost: CostModel, backbone: LoadedBackbone, inputs: Any, *, runs: int) -> CostModel:
    """The same, with how long batches like `inputs` take here, from some hydras that are run in turn."""
    from hydrasurgeon.measuring.timing import interleaved

    plans = _timed_plans(backbone.manifest.kept, cost.tower)
    hydras: dict[str, nn.Module] = {
        str(at): backbone.hydra([part.kept for part in parts], trunk=cost.trunk(parts))
        for at, parts in enumerate(plans)
    }
    seconds = interleaved(hydras, inputs, runs=runs)
    time = TimeModel.fitted(
        [cost._layers_run(parts) for parts in plans],
        [cost.macs(parts) for parts in plans],
        [1000 * seconds[str(at)] for at in range(len(plans))],
    )
    return cost.model_copy(update={"time": time})


def _timed_plans(kept: Kept, tower: str) -> list[list[Part]]:
    """The single model, pruned ones, and hydras of two and three with trunks of all lengths."""
    random, depth = Random(0), len(kept[tower])

    def part(share: float, trunk: int = 0) -> Part:
        """So large a share of each layer's heads, drawn at random; behind the trunk where it is to have one."""
        rows = [
            row if layer < trunk else tuple(sorted(random.sample(row, round(share * len(row)))))
            for layer, row in enumerate(kept[tower])
        ]
        return Part({**kept, tower: tuple(rows)})

    plans = [[part(1)], [part(0.5)], [part(0.25)]]
    for members, share, trunk in (
        (2, 0.5, 0),
        (2, 0.75, depth // 2),
        (3, 0.5, 0),
        (3, 0.75, 0),
        (3, 0.5, depth // 2),
        (3, 0.25, depth * 3 // 4),
    ):
        plans.append([part(share, trunk) for _ in range(members)])
    return plans
