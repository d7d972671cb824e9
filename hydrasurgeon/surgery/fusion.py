"""How a hydra lies in one file: equal tensors once, shared heads once, the rest per member.

A tensor under its own name serves all members; for a head tensor it then holds the union of the heads that any member
keeps, in rising order. A member's own tensor is named `members.<i>.<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.checkpoints.layout import PREFIX, shared_layers
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.families.weights import head_axes
from hydrasurgeon.files.tensors import BLOCK_BYTES, Planned, as_float, from_float
from hydrasurgeon.heads import HeadAxis, Kept, intersect_union

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


@dataclass(frozen=True)
class FusionPlan:
    """What will be written, how many leading layers all members share, and what sharing saved."""

    planned: list[Planned]
    trunk: int
    bytes_members: int
    """Size of the members' own files taken together."""
    spreads: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each written average: mean ‖member − average‖², and ‖average‖²."""

    @property
    def bytes_stored(self) -> int:
        return sum(plan.nbytes for plan in self.planned)

    @property
    def spread(self) -> float | None:
        """How far the members' MLPs lie from what was made of them, as a share of its norm; None where all are
        equal."""
        if not self.spreads:
            return None
        apart, norm = (sum(each) for each in zip(*self.spreads.values(), strict=True))
        return math.sqrt(apart / norm) if norm else math.inf


def plan_fusion(members: Sequence[Single], digests: Sequence[Mapping[str, str]], *, average_mlp: bool) -> FusionPlan:
    """Decide for every tensor whether the members can share it."""
    first = members[0]
    axes = head_axes(first.weights.values())
    kepts: list[Kept] = [member.manifest.kept for member in members]
    both, union = intersect_union(kepts)
    planned: list[Planned] = []
    spreads: dict[str, tuple[float, float]] = {}
    apart: set[str] = set()  # tensors of which members have one of their own
    for name, weight in first.weights.items():
        place = axes.get(name)
        alike = place is None or both[place[0]][place[1]] == union[place[0]][place[1]]
        shared = None
        if len({(m.tensors[name].dtype, m.weights[name].shape) for m in members}) > 1:
            pass  # what cannot be compared is not shared
        elif alike and len({d[name] for d in digests}) == 1:
            shared = _copy(first, name, name)
        elif average_mlp and weight.part == "mlp":
            shared = _average(members, name, spreads)
        elif place is not None and not alike:
            shared = _union(members, name, kepts, union, place)
        if shared is not None:
            planned.append(shared)
            continue
        apart.add(name)
        planned += [_copy(member, name, PREFIX.format(i, name)) for i, member in enumerate(members)]
    trunk = shared_layers(first.weights, first.manifest.towers, kepts, apart)
    return FusionPlan(planned, trunk, sum(m.tensors.nbytes for m in members), spreads)


def _copy(member: Single, name: str, stored: str) -> Planned:
    info = member.tensors[name]
    return Planned(stored, info.dtype, info.shape, partial(member.tensors.blocks, name))


def _average(members: Sequence[Single], name: str, spreads: dict[str, tuple[float, float]]) -> Planned:
    """Paper section 4.2: the merged MLP is the mean of the members' weights; `spreads` gets to know how far they
    lie."""
    info = members[0].tensors[name]

    def means() -> Iterator[Raw]:
        squares = norm = 0.0
        for parts in zip(*(member.tensors.blocks(name) for member in members), strict=True):
            total = np.zeros(parts[0].shape, dtype=np.float64)
            for part in parts:
                values = as_float(part, info.dtype).astype(np.float64)
                squares += float(values @ values)
                total += values
            total /= len(members)
            norm += float(total @ total)
            yield from_float(total, info.dtype)
        # The mean square less the square of the mean; rounding must not make it negative.
        spreads[name] = max(0.0, squares / len(members) - norm), norm

    return Planned(name, info.dtype, info.shape, means)


def _union(
    members: Sequence[Single], name: str, kepts: Sequence[Kept], union: Kept, place: tuple[str, int, HeadAxis]
) -> Planned | None:
    """All heads that any member keeps, if members that share a head agree on its weights."""
    tower, layer, spec = place
    rows = [kept[tower][layer] for kept in kepts]
    heads = union[tower][layer]
    info = members[0].tensors[name]
    head_dim = members[0].manifest.towers[tower].head_dim
    shape = list(info.shape)
    shape[spec.axis] = spec.blocks * len(heads) * head_dim
    inner = head_dim * math.prod(info.shape[spec.axis + 1 :])

    def merged() -> Iterator[Raw]:
        if spec.axis == 0:
            return _merged_rows(members, name, rows, heads, blocks=spec.blocks, inner=inner)
        return _merged_columns(members, name, rows, heads, height=info.shape[0], inner=inner)

    try:
        for _ in merged():
            pass
    except _DifferError:
        return None
    return Planned(name, info.dtype, tuple(shape), merged)


class _DifferError(Exception):
    """Members that share a head have other weights for it."""


def _same(parts: Sequence[Raw]) -> Raw:
    if any(not np.array_equal(parts[0], part) for part in parts[1:]):
        raise _DifferError
    return parts[0]


def _merged_rows(
    members: Sequence[Single],
    name: str,
    rows: Sequence[tuple[int, ...]],
    heads: Sequence[int],
    *,
    blocks: int,
    inner: int,
) -> Iterator[Raw]:
    """Tensors [block, head, inner], which lie head after head: read and joined so."""
    for block, head in product(range(blocks), heads):
        sources = []
        for member, row in zip(members, rows, strict=True):
            if head in row:
                start = (block * len(row) + row.index(head)) * inner
                sources.append(member.tensors.blocks(name, start=start, stop=start + inner))
        for parts in zip(*sources, strict=True):
            yield _same(parts)


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
        count = min(step, height - top)
        joined: list[list[Raw]] = [[] for _ in heads]
        for member, row in zip(members, rows, strict=True):
            width = len(row) * inner
            if not row:
                continue
            flat = member.tensors.blocks(name, start=top * width, stop=(top + count) * width)
            part = np.concatenate(list(flat)).reshape(count, len(row), inner)
            for at, head in enumerate(row):
                joined[heads.index(head)].append(part[:, at])
        yield np.stack([_same(parts) for parts in joined], axis=1)
