"""Cut heads out of a checkpoint's tensors: q, k and v rows, W_O columns; everything else is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Checkpoint
from hydrasurgeon.families import backend
from hydrasurgeon.files.tensors import Planned, digest
from hydrasurgeon.heads import Kept, positions
from hydrasurgeon.slicing import HeadTensor, sliced_shape, take_heads

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

__all__ = ["plan_pruning"]


def plan_pruning(
    opened: Checkpoint,
    kept: Kept,
    inputs: dict[str, str],
    repaired: Mapping[str, Raw] | None = None,
) -> list[Planned]:
    """Each tensor as it will be written; `inputs` fills with the digests of what was read.

    `repaired` tensors are written instead of the ones in the file.
    """
    repaired = repaired or {}
    manifest = opened.manifest
    assert manifest.kept is not None
    family = backend(manifest.model.family)
    cuts: dict[str, tuple[HeadTensor, list[int], int]] = {}
    for tower, rows in manifest.kept.items():
        for layer, row in enumerate(rows):
            if kept[tower][layer] == row:
                continue
            for spec in family.head_tensors(manifest.model, tower, layer):
                cuts[spec.name] = (
                    spec,
                    positions(row, kept[tower][layer]),
                    manifest.towers[tower].head_dim,
                )

    def plan(name: str) -> Planned:
        info = opened.tensors[name]

        def whole() -> tuple[Raw, str]:
            array = opened.tensors.read(name)
            inputs[name] = digest(array)
            return array, inputs[name]

        def cut() -> tuple[Raw, str]:
            array = opened.tensors.read(name)
            inputs[name] = digest(array)
            spec, at, head_dim = cuts[name]
            part = take_heads(array, at, spec=spec, head_dim=head_dim)
            return part, digest(part)

        def mended() -> tuple[Raw, str]:
            inputs[name] = digest(opened.tensors.read(name))
            return repaired[name], digest(repaired[name])

        if name in repaired:
            return Planned(name, info.dtype, repaired[name].shape, mended)
        if name not in cuts:
            return Planned(name, info.dtype, info.shape, whole)
        spec, at, head_dim = cuts[name]
        return Planned(
            name, info.dtype, sliced_shape(info.shape, len(at), spec=spec, head_dim=head_dim), cut
        )

    return [plan(name) for name in opened.tensors]
