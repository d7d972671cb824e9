"""A family's weights as a table: name and shape of every tensor of the unpruned model, and what it
is there for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hydrasurgeon.heads import NEURONS, HeadAxis, Layers

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Tower

Part = Literal["embedding", "norm", "attention", "output", "mlp", "scale", "readout", "classifier"]
"""A layer has norm, attention (q, k, v and their norms), output (W_O and its bias), mlp, and scale
(LayerScale).
"""

ROWS = HeadAxis(0)
"""Axis of the heads in q, k or v, and of the neurons in W_1: rows."""
PACKED = HeadAxis(0, 3)
"""Rows of q, k and v, stacked in one matrix."""
GATED = HeadAxis(0, 2)
"""Rows of W_1 and of the gate, stacked in one matrix."""
OUT = HeadAxis(1)
"""W_O and W_2: columns."""


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    part: Part
    tower: str | None = None
    """The tower it is a part of; None for what lies behind the layers."""
    layer: int | None = None
    heads: HeadAxis | None = None
    """Axis of the heads, or of an MLP's neurons, that can be cut out."""

    @property
    def group(self) -> str:
        """Name in `Kept` of the heads or neurons that it holds."""
        return f"{self.tower}{NEURONS if self.part == 'mlp' else ''}"

    def within(self, place: str, tower: str | None, layer: int | None = None) -> Weight:
        """Return the tensor under a name that begins with `place`."""
        return Weight(f"{place}.{self.name}", self.shape, self.part, tower, layer, self.heads)


def linear(
    name: str, out: int, into: int, part: Part, *, bias: bool = True, heads: HeadAxis | None = None
) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (out, into), part, heads=heads)
    if bias:
        # The output bias belongs to the layer, not to a head.
        rows = heads if heads is not None and heads.axis == 0 else None
        yield Weight(f"{name}.bias", (out,), part, heads=rows)


def norm(name: str, size: int, part: Part = "norm", *, bias: bool = True) -> Iterator[Weight]:
    yield Weight(f"{name}.weight", (size,), part)
    if bias:
        yield Weight(f"{name}.bias", (size,), part)


def stack(place: str, tower: str, layers: int, parts: Iterable[Weight]) -> Iterator[Weight]:
    """Yield the same tensors for each layer; `{}` in `place` stands for its number."""
    parts = list(parts)
    for layer in range(layers):
        yield from (part.within(place.format(layer), tower, layer) for part in parts)


def by_name(weights: Iterable[Weight]) -> dict[str, Weight]:
    return {weight.name: weight for weight in weights}


def shapes_of(weights: Iterable[Weight]) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights}


def head_axes(weights: Iterable[Weight]) -> dict[str, tuple[str, int, HeadAxis]]:
    """Return group, layer and axis of each tensor that holds heads or neurons."""
    return {
        weight.name: (weight.group, weight.layer, weight.heads)
        for weight in weights
        if weight.tower is not None and weight.layer is not None and weight.heads is not None
    }


def rows_of(towers: Mapping[str, Tower], group: str) -> int:
    """Return the number of rows of a head, or of a neuron."""
    return 1 if group.endswith(NEURONS) else towers[group].head_dim


def output_of(weights: Mapping[str, Weight], group: str, layer: int) -> tuple[str, str | None]:
    """Return the names of one layer's W_O (W_2 for a group of neurons) and of its bias, if any."""
    (matrix,) = (
        w.name
        for w in weights.values()
        if (w.group, w.layer) == (group, layer)
        and w.part in ("output", "mlp")
        and w.heads
        and w.heads.axis == OUT.axis
    )
    bias = matrix.removesuffix("weight") + "bias"
    return matrix, bias if bias in weights else None


def all_neurons(weights: Iterable[Weight]) -> dict[str, Layers]:
    """Return all neurons of the unpruned model, by group; none if MLPs cannot be cut."""
    layers: dict[str, list[tuple[int, ...]]] = {}
    for weight in sorted(weights, key=lambda w: w.layer or 0):
        if weight.part == "mlp" and weight.heads == OUT:
            layers.setdefault(weight.group, []).append(tuple(range(weight.shape[1])))
    return {group: tuple(rows) for group, rows in layers.items()}


def neuron_sizes(weights: Iterable[Weight]) -> dict[str, list[dict[str, int]]]:
    """Return the sizes of one neuron, by group and layer: in multiplied matrices, and in all."""
    weights = list(weights)
    neurons = all_neurons(weights)
    sizes = {group: [{"macs": 0, "params": 0} for _ in rows] for group, rows in neurons.items()}
    for weight in weights:
        if weight.group in neurons and weight.layer is not None and weight.heads is not None:
            numbers = math.prod(weight.shape) // len(neurons[weight.group][weight.layer])
            sizes[weight.group][weight.layer]["params"] += numbers
            sizes[weight.group][weight.layer]["macs"] += numbers if len(weight.shape) > 1 else 0
    return sizes
