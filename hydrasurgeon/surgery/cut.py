"""Cut heads out of a checkpoint's tensors: q, k and v rows, W_O columns; everything else is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.families.weights import head_axes
from hydrasurgeon.files.tensors import Planned, as_bytes, digest, hashed, sha256_of, sound
from hydrasurgeon.heads import HeadAxis, Kept, head_mask, masked, positions, sliced_shape

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Parts, Raw


def plan_pruning(
    opened: Single, kept: Kept, inputs: dict[str, str], repaired: Mapping[str, Raw] | None = None
) -> list[Planned]:
    """Each tensor as it will be written; `inputs` fills with the digests of what was read.

    `repaired` tensors are written instead of the ones in the file.
    """
    repaired = repaired or {}
    tensors, cuts = opened.tensors, _cuts(opened, kept)

    def checked(name: str, blocks: Iterator[Raw]) -> Iterator[Raw]:
        return sound(blocks, tensors[name].dtype, name=name, path=opened.path)

    def copied(name: str) -> Parts:
        inputs[name] = yield from hashed(checked(name, tensors.blocks(name)))
        return inputs[name]

    def mended(name: str) -> Parts:
        sha256_of(copied(name))
        yield repaired[name]
        return digest(repaired[name])

    def cut(name: str) -> Parts:
        original = hashlib.sha256()

        def parts() -> Iterator[Raw]:
            spec, at, head_dim = cuts[name]
            keep = head_mask(tensors[name].shape[spec.axis], at, spec=spec, head_dim=head_dim)
            start = 0
            for rows in tensors.rows(name):
                original.update(as_bytes(rows))
                yield masked(rows, keep, start, spec=spec)
                start += len(rows)

        # What is cut away may be unsound.
        sha256 = yield from hashed(checked(name, parts()))
        inputs[name] = original.hexdigest()
        return sha256

    def plan(name: str) -> Planned:
        info = tensors[name]
        if name in repaired:
            return Planned(name, info.dtype, repaired[name].shape, lambda: mended(name))
        if name not in cuts:
            return Planned(name, info.dtype, info.shape, lambda: copied(name))
        spec, at, head_dim = cuts[name]
        shape = sliced_shape(info.shape, len(at), spec=spec, head_dim=head_dim)
        return Planned(name, info.dtype, shape, lambda: cut(name))

    return [plan(name) for name in tensors]


def _cuts(opened: Single, kept: Kept) -> dict[str, tuple[HeadAxis, list[int], int]]:
    """The tensors that lose heads: where they keep them, which positions stay, and how wide a head is."""
    manifest = opened.manifest
    return {
        name: (axis, positions(row, kept[tower][layer]), manifest.towers[tower].head_dim)
        for name, (tower, layer, axis) in head_axes(opened.weights.values()).items()
        if kept[tower][layer] != (row := manifest.kept[tower][layer])
    }
