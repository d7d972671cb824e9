"""How a hydra lies in one file: equal tensors once, shared heads once, the rest per member (DESIGN section 3).

A tensor under its own name serves all members; for a head tensor it then holds the union of the heads
that any member keeps, in rising order. A member's own tensor is named `members.<i>.<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.checkpoints.hydra_layout import PREFIX, head_specs
from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.families import backend
from hydrasurgeon.files.tensors import Planned, as_float, digest, from_float
from hydrasurgeon.heads import Kept, intersect_union, positions
from hydrasurgeon.slicing import HeadTensor, take_heads

__all__ = ["FusionPlan", "plan_fusion"]

Raw = NDArray[Any]


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
    members: Sequence[Checkpoint], digests: Sequence[Mapping[str, str]], *, average_mlp: bool
) -> FusionPlan:
    """Decide for every tensor whether the members can share it."""
    first = members[0]
    family = backend(first.manifest.model.family)
    specs = head_specs(first)
    kepts: list[Kept] = [m.manifest.kept or {} for m in members]
    both, union = intersect_union(kepts)
    planned: list[Planned] = []
    apart: set[str] = set()  # tensors that members do not share in one whole
    for name in family.expected(first.manifest.model, first.manifest.towers):
        tower_layer = specs.get(name)
        alike = (
            tower_layer is None
            or both[tower_layer[0]][tower_layer[1]] == union[tower_layer[0]][tower_layer[1]]
        )
        infos = {m.tensors[name].dtype for m in members}
        if alike and len(infos) == 1 and len({d[name] for d in digests}) == 1:
            planned.append(_copy(first, name, name, digests[0][name]))
            continue
        if average_mlp and family.is_mlp(name) and len(infos) == 1:
            planned.append(_average(members, name))
            continue
        apart.add(name)
        shared = None
        if tower_layer is not None and not alike and len(infos) == 1:
            shared = _union(members, name, kepts, union, tower_layer)
        if shared is not None:
            planned.append(shared)
        else:
            planned += [
                _copy(m, name, PREFIX.format(i, name), digests[i][name])
                for i, m in enumerate(members)
            ]
    return FusionPlan(
        planned, _trunk(first, apart, specs, both, union), sum(m.tensors.nbytes for m in members)
    )


def _trunk(
    first: Checkpoint, apart: set[str], specs: Mapping[str, Any], both: Kept, union: Kept
) -> int:
    """Leading layers whose tensors and kept heads are equal in all members, in the tower that inputs run through."""
    family = backend(first.manifest.model.family)
    tower, rows = next(iter(both.items()))
    if any(family.embedding_of(name) == tower for name in apart):
        return 0
    places = [place for name in apart if (place := family.layer_of(name)) is not None]
    broken = {layer for where, layer in places if where == tower}
    broken |= {layer for layer, row in enumerate(rows) if row != union[tower][layer]}
    return min(broken, default=len(rows))


def _copy(member: Checkpoint, name: str, stored: str, known: str) -> Planned:
    info = member.tensors[name]
    return Planned(stored, info.dtype, info.shape, lambda: (member.tensors.read(name), known))


def _average(members: Sequence[Checkpoint], name: str) -> Planned:
    """Paper section 4.2: the merged MLP is the mean of the members' weights."""
    info = members[0].tensors[name]

    def produce() -> tuple[Raw, str]:
        total = np.zeros(info.shape, dtype=np.float64)
        for member in members:
            total += as_float(member.tensors.read(name), info.dtype)
        mean = from_float(total / len(members), info.dtype)
        return mean, digest(mean)

    return Planned(name, info.dtype, info.shape, produce)


def _union(
    members: Sequence[Checkpoint],
    name: str,
    kepts: Sequence[Kept],
    union: Kept,
    place: tuple[str, int, HeadTensor],
) -> Planned | None:
    """All heads that any member keeps, if members that share a head agree on its weights."""
    tower, layer, spec = place
    heads = union[tower][layer]
    head_dim = members[0].manifest.towers[tower].head_dim

    def head(member: int, array: Raw, index: int) -> Raw:
        return take_heads(
            array, positions(kepts[member][tower][layer], [index]), spec=spec, head_dim=head_dim
        )

    def gather() -> dict[int, Raw] | None:
        found: dict[int, Raw] = {}
        for i, member in enumerate(members):
            array = member.tensors.read(name)
            for index in kepts[i][tower][layer]:
                rows = head(i, array, index)
                if index in found and not np.array_equal(found[index], rows):
                    return None
                found.setdefault(index, rows)
        return found

    if gather() is None:
        return None
    info = members[0].tensors[name]
    width = spec.blocks * len(heads) * head_dim
    shape = (*info.shape[: spec.axis], width, *info.shape[spec.axis + 1 :])

    def produce() -> tuple[Raw, str]:
        found = gather()
        assert found is not None
        grouped = [_grouped(found[index], spec) for index in heads]
        joined = np.concatenate(grouped, axis=spec.axis + 1).reshape(shape)
        return joined, digest(joined)

    return Planned(name, info.dtype, shape, produce)


def _grouped(rows: Raw, spec: HeadTensor) -> Raw:
    return rows.reshape((*rows.shape[: spec.axis], spec.blocks, -1, *rows.shape[spec.axis + 1 :]))
