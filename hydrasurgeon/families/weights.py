"""A family's weights as a table: name and shape of every tensor of the unpruned model, and what it is there for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from hydrasurgeon.heads import HeadAxis

Part = Literal["embedding", "norm", "attention", "output", "mlp", "scale", "readout", "classifier"]
"""In front of the layers: embedding. In a layer: norm, attention (projections to q, k and v, and what normalises
them), output (W_O and its bias), mlp, scale (of a residual branch). Behind the layers: readout, classifier."""

QUERIES = HeadAxis(0)
"""Where q, k or v have their heads: rows."""
PACKED = HeadAxis(0, 3)
"""All three in one matrix."""
OUT = HeadAxis(1)
"""W_O: columns."""


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
    """Where it holds heads that can be cut out."""

    def within(self, place: str, tower: str | None, layer: int | None = None) -> Weight:
        """The same, named from `place` on."""
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


def by_name(weights: Iterable[Weight]) -> dict[str, Weight]:
    return {weight.name: weight for weight in weights}


def shapes_of(weights: Iterable[Weight]) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights}


def head_axes(weights: Iterable[Weight]) -> dict[str, tuple[str, int, HeadAxis]]:
    """For each tensor that holds heads: its tower, its layer, and where the heads lie."""
    return {
        weight.name: (weight.tower, weight.layer, weight.heads)
        for weight in weights
        if weight.tower is not None and weight.layer is not None and weight.heads is not None
    }


def output_of(weights: Mapping[str, Weight], tower: str, layer: int) -> tuple[str, str | None]:
    """The names of one layer's W_O and of its bias, where it has one."""
    output = [w for w in weights.values() if (w.part, w.tower, w.layer) == ("output", tower, layer)]
    (matrix,) = (weight.name for weight in output if weight.heads is not None)
    return matrix, next((weight.name for weight in output if weight.heads is None), None)
