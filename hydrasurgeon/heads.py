"""Kept heads, masks and removal orders; and how whole heads are cut out of weight tensors and put
together again.

Heads are always numbered as in the original model. `Kept` maps a tower to its layers, each a sorted
tuple of surviving indices; an empty tuple is a layer that keeps no head. The neurons of a tower's
MLPs may stand beside them, under the tower's name and `NEURONS`: to surgery a neuron is a head of
one row.

A head tensor holds heads along one axis, as `blocks` packed groups (3 for q, k, v in one matrix),
each `head × head_dim` long; `head × queries × head_dim` where several queries share a key, which
makes them one head. What works on them takes numpy arrays and torch tensors alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from hydrasurgeon.errors import SurgeryError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# One layer, or the first and the last of several.
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

NEURONS = ".mlp"
"""Stands behind a tower's name where `Kept` speaks of its neurons."""

Array = TypeVar("Array", bound=Any)
Layers = tuple[tuple[int, ...], ...]
Kept = Mapping[str, Layers]
Scores = Mapping[str, Sequence[Sequence[float]]]


class Head(NamedTuple):
    """One attention head, numbered in the original model."""

    tower: str
    layer: int
    number: int


def all_heads(kept: Kept) -> list[Head]:
    """Return every surviving head, in (tower, layer, index) order."""
    return [
        Head(t, layer, h) for t, rows in kept.items() for layer, row in enumerate(rows) for h in row
    ]


def even(rows: Layers) -> int | None:
    """Return the number of heads that every layer keeps; None if layers differ."""
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        return None
    return counts.pop()


def count(kept: Kept) -> int:
    """Count the heads, without neurons."""
    return sum(
        len(row) for name, rows in kept.items() if not name.endswith(NEURONS) for row in rows
    )


def kept_from_mask(mask: NDArray[np.bool_]) -> Layers:
    """Convert a mask [layer, head], True = kept, to the kept heads of each layer."""
    return tuple(tuple(h for h, kept in enumerate(row) if kept) for row in mask.tolist())


def positions(present: Sequence[int], heads: Iterable[int]) -> list[int]:
    """Return the indices of `heads` among the `present` heads, for slicing a pruned
    tensor.
    """
    where = {head: i for i, head in enumerate(present)}
    return [where[head] for head in heads]


def drop(kept: Kept, removed: Iterable[Head]) -> dict[str, Layers]:
    """Return `kept` without the `removed` heads."""
    removed_set = set(removed)
    return {
        tower: tuple(
            tuple(h for h in row if Head(tower, layer, h) not in removed_set)
            for layer, row in enumerate(rows)
        )
        for tower, rows in kept.items()
    }


def intersect_union(members: Sequence[Kept]) -> tuple[dict[str, Layers], dict[str, Layers]]:
    """Return, for each layer, the heads that every member keeps and the heads that any member
    keeps.
    """
    towers = members[0]

    def merged(tower: str, layer: int) -> tuple[set[int], set[int]]:
        rows = [set(member[tower][layer]) for member in members]
        return set.intersection(*rows), set.union(*rows)

    pairs = {t: [merged(t, layer) for layer in range(len(rows))] for t, rows in towers.items()}
    shared = {t: tuple(tuple(sorted(inner)) for inner, _ in rows) for t, rows in pairs.items()}
    either = {t: tuple(tuple(sorted(outer)) for _, outer in rows) for t, rows in pairs.items()}
    return shared, either


def removal_order(scores: Scores, candidates: Iterable[Head]) -> list[Head]:
    """Sort candidates by rising score, ties by (tower, layer, head)."""
    return sorted(candidates, key=lambda head: scores[head.tower][head.layer][head.number])


def parse_towers(text: str | None, towers: Collection[str]) -> tuple[str, ...]:
    """Return the towers from which heads may be removed: `vision`, `text`, or both (None means
    both).
    """
    if text in (None, "both"):
        return tuple(towers)
    if text not in towers:
        raise SurgeryError(
            f"--tower {text}: the model has {' and '.join(towers)}",
            hint=f"Use {', '.join((*towers, 'both'))}.",
        )
    return (text,)


def parse_layers(text: str | None, layers: int) -> frozenset[int]:
    """Return the layers from which heads may be removed: `6-11`, `0,2,5-7` or None (all)."""
    if text is None:
        return frozenset(range(layers))
    chosen: set[int] = set()
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            raise SurgeryError(
                f"--layers {text}: {part!r} is not a layer or a range of layers",
                hint="Write 6-11 or 0,2,5-7.",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        # One too many says as much as a billion.
        chosen.update(range(min(first, layers), min(last, layers) + 1))
    beyond = sorted(layer for layer in chosen if layer >= layers)
    if beyond or not chosen:
        raise SurgeryError(
            f"--layers {text}: the model has layers 0-{layers - 1}", hint="Count layers from 0."
        )
    return frozenset(chosen)


@dataclass(frozen=True)
class HeadAxis:
    """The axis of an attention tensor along which its heads lie."""

    axis: int
    blocks: int = 1
    queries: int = 1
    """Number of query heads for each head: those that share its key and its value."""

    def size(self, head_dim: int) -> int:
        """Return the number of rows or columns that one head has in each block."""
        return self.queries * head_dim


def take_heads(array: Array, at: Sequence[int], *, spec: HeadAxis, head_dim: int) -> Array:
    """Return the heads at positions `at`, in that order; every other axis is untouched."""
    shape = tuple(array.shape)
    lead, tail = shape[: spec.axis], shape[spec.axis + 1 :]
    size = spec.size(head_dim)
    heads = shape[spec.axis] // (spec.blocks * size)
    grouped = array.reshape((*lead, spec.blocks, heads, size, *tail))
    chosen = grouped[(slice(None),) * (spec.axis + 1) + (list(at),)]
    return chosen.reshape(sliced_shape(shape, len(at), spec=spec, head_dim=head_dim))


def sliced_shape(
    shape: Sequence[int], heads: int, *, spec: HeadAxis, head_dim: int
) -> tuple[int, ...]:
    """Return the shape that `take_heads` gives for `heads` heads."""
    return (*shape[: spec.axis], spec.blocks * heads * spec.size(head_dim), *shape[spec.axis + 1 :])


def head_mask(
    length: int, at: Sequence[int], *, spec: HeadAxis, head_dim: int
) -> NDArray[np.bool_]:
    """Return a mask of the `length` rows (or columns) along the heads' axis: True for those of the
    heads at positions `at`.
    """
    import numpy as np

    size = spec.size(head_dim)
    mask = np.zeros((spec.blocks, length // (spec.blocks * size), size), dtype=bool)
    mask[:, list(at)] = True
    return mask.reshape(-1)


def masked(rows: Array, mask: NDArray[np.bool_], start: int, *, spec: HeadAxis) -> Array:
    """Apply the part of a `head_mask` from `start` on to some rows of a tensor."""
    kept: Array = rows[mask[start : start + len(rows)]] if spec.axis == 0 else rows[:, mask]
    return kept
