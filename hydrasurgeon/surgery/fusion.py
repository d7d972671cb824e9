"""How a hydra lies in one file: equal tensors once, shared heads once, the rest per member.

A tensor under its own name serves all members; for a head tensor it then holds the union of the
heads that any member keeps, in rising order. A member's own tensor is named `members.<i>.<name>`.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.checkpoints.layout import PREFIX, shared_layers
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.families.weights import head_axes, rows_of
from hydrasurgeon.files.tensors import BLOCK_BYTES, Planned
from hydrasurgeon.heads import HeadAxis, Kept, intersect_union, positions
from hydrasurgeon.surgery.means import averaged

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


@dataclass(frozen=True)
class FusionPlan:
    """What will be written, how many leading layers all members share, and what sharing saved."""

    planned: list[Planned]
    trunk: int
    bytes_members: int
    """Size of the members' own files taken together."""

    @property
    def bytes_stored(self) -> int:
        return sum(plan.nbytes for plan in self.planned)


def plan_fusion(
    members: Sequence[Single], digests: Sequence[Mapping[str, str]], *, average_mlp: bool
) -> FusionPlan:
    """Decide for every tensor whether the members can share it."""
    first = members[0]
    axes = head_axes(first.weights.values())
    kepts: list[Kept] = [member.kept for member in members]
    both, union = intersect_union(kepts)
    planned: list[Planned] = []
    averages = averaged(first, members, [n for n, w in first.weights.items() if w.part == "mlp"])
    apart: set[str] = set()  # tensors of which members have one of their own
    for name, weight in first.weights.items():
        place = axes.get(name)
        alike = place is None or both[place[0]][place[1]] == union[place[0]][place[1]]
        shared = None
        if len({(m.tensors[name].dtype, m.weights[name].shape) for m in members}) > 1:
            pass  # what cannot be compared is not shared
        elif alike and len({d[name] for d in digests}) == 1:
            shared = _copy(first, name, name)
        elif average_mlp and weight.part == "mlp" and alike:
            shared = _copy(averages, name, name)
        elif place is not None and not alike:
            shared = _union(members, name, kepts, union, place)
        if shared is not None:
            planned.append(shared)
            continue
        apart.add(name)
        planned += [_copy(member, name, PREFIX.format(i, name)) for i, member in enumerate(members)]
    trunk = shared_layers(first.weights, first.manifest.towers, kepts, apart)
    return FusionPlan(planned, trunk, sum(m.tensors.nbytes for m in members))


def plan_mean(mean: Single, members: Sequence[Single]) -> FusionPlan:
    """One model of the members' mean weights."""
    planned = [_copy(mean, name, name) for name in mean.weights]
    return FusionPlan(planned, 0, sum(m.tensors.nbytes for m in members))


def _copy(member: Single, name: str, stored: str) -> Planned:
    info = member.tensors[name]
    return Planned(stored, info.dtype, info.shape, partial(member.tensors.blocks, name))


def _union(
    members: Sequence[Single],
    name: str,
    kepts: Sequence[Kept],
    union: Kept,
    place: tuple[str, int, HeadAxis],
) -> Planned | None:
    """All heads that any member keeps, if members that share a head agree on its weights."""
    tower, layer, spec = place
    rows = [kept[tower][layer] for kept in kepts]
    heads = union[tower][layer]
    info, size = members[0].tensors[name], spec.size(rows_of(members[0].manifest.towers, tower))
    shape = (
        *info.shape[: spec.axis],
        spec.blocks * len(heads) * size,
        *info.shape[spec.axis + 1 :],
    )
    inner = size * math.prod(info.shape[spec.axis + 1 :])

    def merged() -> Iterator[Raw]:
        if spec.axis == 0:
            return _merged_rows(members, name, rows, heads, blocks=spec.blocks, inner=inner)
        return _merged_columns(members, name, rows, heads, height=info.shape[0], inner=inner)

    try:
        for _ in merged():
            pass
    except _DifferError:
        return None
    return Planned(name, info.dtype, shape, merged)


class _DifferError(Exception):
    """Members that share a head or a neuron have other weights for it."""


class _Union:
    """[head, …] of all heads, put together from those of members, which must agree."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads, self.there = heads, np.zeros(len(heads), dtype=bool)
        self.made: Raw | None = None

    def put(self, row: Sequence[int], part: Raw) -> None:
        if self.made is None:
            self.made = np.empty((len(self.heads), *part.shape[1:]), part.dtype)
        at = np.array(positions(self.heads, row), dtype=int)
        old = self.there[at]
        if not np.array_equal(self.made[at[old]], part[old]):
            raise _DifferError
        self.made[at], self.there[at] = part, True


def _merged_rows(
    members: Sequence[Single],
    name: str,
    rows: Sequence[tuple[int, ...]],
    heads: Sequence[int],
    *,
    blocks: int,
    inner: int,
) -> Iterator[Raw]:
    """Tensors [block, head, inner], which lie head after head: read and joined a few heads at a
    time.
    """
    step = max(1, BLOCK_BYTES // (8 * inner))
    for block, first in product(range(blocks), range(0, len(heads), step)):
        union = _Union(some := heads[first : first + step])
        for member, row in zip(members, rows, strict=True):
            low, high = bisect_left(row, some[0]), bisect_right(row, some[-1])
            if low < high:
                at = block * len(row)
                flat = member.tensors.blocks(
                    name, start=(at + low) * inner, stop=(at + high) * inner
                )
                union.put(row[low:high], np.concatenate(list(flat)).reshape(high - low, inner))
        assert union.made is not None
        yield union.made


def _merged_columns(
    members: Sequence[Single],
    name: str,
    rows: Sequence[tuple[int, ...]],
    heads: Sequence[int],
    *,
    height: int,
    inner: int,
) -> Iterator[Raw]:
    """Tensors [height, head, inner]: read and joined a few of the first at a time."""
    widest = max(len(row) for row in rows) * inner * 8
    step = max(1, BLOCK_BYTES // widest)
    for top in range(0, height, step):
        count, union = min(step, height - top), _Union(heads)
        for member, row in zip(members, rows, strict=True):
            width = len(row) * inner
            if row:
                flat = member.tensors.blocks(name, start=top * width, stop=(top + count) * width)
                part = np.concatenate(list(flat)).reshape(count, len(row), inner)
                union.put(row, part.swapaxes(0, 1))
        assert union.made is not None
        yield np.ascontiguousarray(union.made.swapaxes(0, 1))
