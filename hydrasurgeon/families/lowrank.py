"""Low-rank pairs (LoRA, Hu et al., 2021): a matrix W [out, in] that runs as W + B A, of which a file holds W, A and B.

A [rank, in] is named `<name>.lora_a`, B [out, rank] `<name>.lora_b`; the scale alpha / rank is a factor of B. Heads lie
in B
where they are rows of W, and in A where they are columns: a pair is cut like its matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hydrasurgeon.errors import Disagreement
from hydrasurgeon.families.weights import Weight
from hydrasurgeon.slicing import HeadAxis

SUFFIXES = (".lora_a", ".lora_b")
"""What the names of a pair end in, behind the name of their matrix."""

Shape = tuple[int, ...]


def halves(name: str) -> tuple[str, str]:
    """The names of A and B of a matrix."""
    a, b = SUFFIXES
    return name + a, name + b


def is_half(name: str) -> bool:
    """Whether a tensor is A or B of some matrix."""
    return name.endswith(SUFFIXES)


def whole_of(name: str) -> str:
    """The matrix that a tensor is, or a half of a pair of."""
    return name.removesuffix(SUFFIXES[0]).removesuffix(SUFFIXES[1]) if is_half(name) else name


def changeable(weight: Weight) -> bool:
    """Whether a weight may have a pair: attention's matrices."""
    attention = weight.part in ("attention", "output")
    return attention and weight.heads is not None and len(weight.shape) == 2


def with_pairs(weights: Mapping[str, Weight], shape: Callable[[str], Shape | None], where: str) -> dict[str, Weight]:
    """The table with the pairs that a file has, by the `shape` it has of a name; Disagreement for halves that make no
    pair."""
    table = dict(weights)
    for name, weight in weights.items():
        a, b = halves(name)
        a_shape, b_shape = shape(a), shape(b)
        if a_shape is None and b_shape is None:
            continue
        if not changeable(weight):
            raise Disagreement(f"{where}: {name} has a low-rank pair, and only attention's matrices may have one")
        if a_shape is None or b_shape is None:
            missing, present = (a, b) if a_shape is None else (b, a)
            raise Disagreement(
                f"{where}: tensor {missing} is missing",
                hint=f"{present} is one half of a low-rank pair: the file is incomplete.",
            )
        if len(a_shape) != 2 or len(b_shape) != 2 or a_shape[0] != b_shape[1] or not a_shape[0]:
            raise Disagreement(
                f"{where}: {a} {list(a_shape)} and {b} {list(b_shape)} are no pair: "
                "a low-rank change has [rank, in] and [out, rank]"
            )
        table |= {half.name: half for half in _pair(weight, a_shape[0])}
    return table


def _pair(weight: Weight, rank: int) -> tuple[Weight, Weight]:
    """A and B of a matrix, as rows of the table."""
    assert weight.heads is not None
    out, into = weight.shape
    a, b = halves(weight.name)
    place, rows = (weight.tower, weight.layer), weight.heads.axis == 0
    return (
        Weight(a, (rank, into), "pair", *place, None if rows else HeadAxis(1, weight.heads.blocks)),
        Weight(b, (out, rank), "pair", *place, weight.heads if rows else None),
    )
