"""How a hydra lies in its file: shared tensors once, a member's own under its prefix, heads as a union."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Checkpoint, head_shapes
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families import backend
from hydrasurgeon.heads import intersect_union, positions
from hydrasurgeon.slicing import HeadTensor, take_heads

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

__all__ = ["PREFIX", "Source", "check_shape", "head_specs", "member_sources"]

PREFIX = "members.{}.{}"


@dataclass(frozen=True)
class Source:
    """Where a member finds one of its tensors: a stored name, and which of its heads to take."""

    stored: str
    at: tuple[int, ...] | None = None
    spec: HeadTensor | None = None
    head_dim: int = 0

    def cut(self, array: Raw) -> Raw:
        if self.at is None or self.spec is None:
            return array
        return take_heads(array, self.at, spec=self.spec, head_dim=self.head_dim)


def member_sources(checkpoint: Checkpoint) -> list[dict[str, Source]]:
    """For each member of a hydra, where each of its tensors comes from."""
    manifest = checkpoint.manifest
    members = manifest.members or ()
    family = backend(manifest.model.family)
    full = family.expected(manifest.model, manifest.towers)
    _, union = intersect_union([member.kept for member in members])
    specs = head_specs(checkpoint)
    found: list[dict[str, Source]] = []
    for i, member in enumerate(members):
        shapes = {**full, **head_shapes(manifest, full, member.kept)}
        sources = {}
        for name in full:
            own = PREFIX.format(i, name)
            source = Source(own if own in checkpoint.tensors else name)
            if source.stored not in checkpoint.tensors:
                raise CheckpointError(f"{checkpoint.path}: tensor {name} of member {i} is missing")
            if source.stored == name and name in specs:
                tower, layer, spec = specs[name]
                at = tuple(positions(union[tower][layer], member.kept[tower][layer]))
                if len(at) != len(union[tower][layer]):
                    source = Source(name, at, spec, manifest.towers[tower].head_dim)
            check_shape(checkpoint, source, shapes[name], i)
            sources[name] = source
        found.append(sources)
    return found


def check_shape(
    checkpoint: Checkpoint, source: Source, shape: tuple[int, ...], member: int
) -> None:
    stored = checkpoint.tensors[source.stored].shape
    if source.at is not None and source.spec is not None:
        axis = source.spec.axis
        stored = (*stored[:axis], shape[axis], *stored[axis + 1 :])
    if stored != shape:
        raise CheckpointError(
            f"{checkpoint.path}: tensor {source.stored} has shape {stored}, member {member} needs {shape}"
        )


def head_specs(checkpoint: Checkpoint) -> dict[str, tuple[str, int, HeadTensor]]:
    """Head tensors by name, with the (tower, layer) they belong to."""
    manifest = checkpoint.manifest
    family = backend(manifest.model.family)
    return {
        spec.name: (name, layer, spec)
        for name, tower in manifest.towers.items()
        for layer in range(tower.layers)
        for spec in family.head_tensors(manifest.model, name, layer)
    }
