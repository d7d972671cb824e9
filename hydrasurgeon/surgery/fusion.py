"""Layout of a hydra in one file: equal tensors once, shared heads once, the rest per member.

A tensor under its own name serves all members; for a head tensor it then holds the union of the
heads that any member keeps, in rising order. A member's own tensor is named `members.<i>.<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.checkpoints.layout import PREFIX, shared_layers
from hydrasurgeon.families.weights import Weight, head_axes, rows_of
from hydrasurgeon.files.manifest import Fusion
from hydrasurgeon.files.tensors import Planned
from hydrasurgeon.heads import HeadAxis, Kept, intersect_union, positions
from hydrasurgeon.surgery.means import averaged

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


def names_to_average(weights: Mapping[str, Weight], fusion: Fusion) -> set[str]:
    """Return the tensors that members run the average of, where theirs differ."""
    parts = ({"mlp"} if fusion.mlp == "average" else set()) | (
        {"norm", "scale"} if fusion.norms == "average" else set()
    )
    names = {name for name, weight in weights.items() if weight.part in parts}
    if fusion.norms == "average":
        names |= {name for name, weight in weights.items() if is_last_norm(name, weights)}
    return names


def is_last_norm(name: str, weights: Mapping[str, Weight]) -> bool:
    """Return True for the norm before the classifier: a part of the readout whose weight is a vector."""
    module = name.rpartition(".")[0]
    scale = weights.get(f"{module}.weight")
    return weights[name].part == "readout" and scale is not None and len(scale.shape) == 1


@dataclass(frozen=True)
class FusionPlan:
    """Tensors to write, number of leading layers that all members share, and sizes."""

    planned: list[Planned]
    trunk: int
    bytes_members: int
    """Size of the members' own files taken together."""

    @property
    def bytes_stored(self) -> int:
        return sum(plan.nbytes for plan in self.planned)


def plan_fusion(
    members: Sequence[Single],
    digests: Sequence[Mapping[str, str]],
    *,
    averaged_names: Collection[str],
) -> FusionPlan:
    """Decide for every tensor whether the members can share it, or its average (`averaged_names`)."""
    first = members[0]
    axes = head_axes(first.weights.values())
    kepts: list[Kept] = [member.kept for member in members]
    common, union = intersect_union(kepts)
    planned: list[Planned] = []
    averages = averaged(first, members, averaged_names)
    apart: set[str] = set()  # tensors of which members have one of their own
    for name in first.weights:
        place = axes.get(name)
        alike = place is None or common[place[0]][place[1]] == union[place[0]][place[1]]
        shared = None
        if len({(m.tensors[name].dtype, m.weights[name].shape) for m in members}) > 1:
            pass  # what cannot be compared is not shared
        elif alike and len({d[name] for d in digests}) == 1:
            shared = _copy(first, name, name)
        elif name in averaged_names and alike:
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
    """Plan one model of the members' mean weights."""
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
    """Plan one tensor of all heads that any member keeps; None if members differ in a shared head."""
    tower, layer, spec = place
    heads, info = union[tower][layer], members[0].tensors[name]
    size = spec.size(rows_of(members[0].manifest.towers, tower))
    before, after = info.shape[: spec.axis], info.shape[spec.axis + 1 :]
    shape = (*before, spec.blocks * len(heads) * size, *after)
    lead, inner = math.prod(before), size * math.prod(after)

    def merged() -> list[Raw]:
        """Join the members' heads; return nothing if they differ."""
        there = np.zeros(len(heads), dtype=bool)
        values: Raw | None = None
        for member, kept in zip(members, kepts, strict=True):
            row = kept[tower][layer]
            part = member.tensors.read(name).reshape(lead, spec.blocks, len(row), inner)
            if values is None:
                values = np.empty((lead, spec.blocks, len(heads), inner), part.dtype)
            at = np.array(positions(heads, row), dtype=int)
            filled = there[at]
            if not np.array_equal(values[:, :, at[filled]], part[:, :, filled]):
                return []
            values[:, :, at], there[at] = part, True
        assert values is not None
        return [values.reshape(shape)]

    return Planned(name, info.dtype, shape, merged) if merged() else None
