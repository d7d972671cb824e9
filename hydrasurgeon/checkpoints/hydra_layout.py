"""How a hydra lies in its file: shared tensors once, a member's own under its prefix, heads as a union."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.expected import check_dtypes, decision_shapes, expected_shapes
from hydrasurgeon.errors import Disagreement
from hydrasurgeon.families.weights import Weight, head_axes
from hydrasurgeon.files.manifest import HydraManifest, Tower
from hydrasurgeon.files.tensors import THREADS, TensorInfo, Tensors, as_bytes, weights_sha256
from hydrasurgeon.heads import HeadAxis, Kept, head_mask, intersect_union, masked, positions, sliced_shape, take_heads

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.reading import Checkpoint
    from hydrasurgeon.files.tensors import Raw

PREFIX = "members.{}.{}"
"""What a tensor is called that a member has for itself: its number, then its name in a single model."""


@dataclass(frozen=True)
class Source:
    """Where a member finds one of its tensors: a stored name, and which of its heads to take."""

    stored: str
    at: tuple[int, ...] | None = None
    spec: HeadAxis | None = None
    head_dim: int = 0

    def cut(self, array: Raw) -> Raw:
        if self.at is None or self.spec is None:
            return array
        return take_heads(array, self.at, spec=self.spec, head_dim=self.head_dim)

    def read(self, tensors: Tensors) -> Raw:
        return self.cut(tensors.read(self.stored))

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        """Of what is left of the stored tensor."""
        stored = tensors[self.stored].shape
        if self.at is None or self.spec is None:
            return stored
        return sliced_shape(stored, len(self.at), spec=self.spec, head_dim=self.head_dim)


def member_sources(checkpoint: Checkpoint, manifest: HydraManifest) -> list[dict[str, Source]]:
    """For each member of a hydra, where each tensor of its own file comes from."""
    tensors = checkpoint.tensors
    kepts = [member.kept for member in manifest.members]
    _, union = intersect_union(kepts)
    axes = head_axes(checkpoint.weights.values())

    def source(member: int, name: str) -> Source:
        prefixed = PREFIX.format(member, name)
        if prefixed in tensors:
            return Source(prefixed)
        if name not in axes:
            return Source(name)
        tower, layer, axis = axes[name]
        heads, row = union[tower][layer], kepts[member][tower][layer]
        if row == heads:
            return Source(name)
        at = tuple(positions(heads, row))
        return Source(name, at, axis, manifest.towers[tower].head_dim)

    return [{name: source(i, name) for name in checkpoint.weights} for i in range(len(kepts))]


def check_hydra(checkpoint: Checkpoint, manifest: HydraManifest) -> None:
    """The tensors are those of the members that were fused, no more and no fewer, and the trunk is really shared."""
    tensors, path = checkpoint.tensors, checkpoint.path
    weights, towers = checkpoint.weights, manifest.towers
    fused = next((entry for entry in reversed(manifest.history) if entry.command == "fuse"), None)
    hashes = [member.sha256 for member in manifest.members]
    if fused is not None and [each.sha256 for each in fused.inputs] != hashes:
        raise Disagreement(f"{path}: the manifest lists other members than `fuse` read")
    kepts = [member.kept for member in manifest.members]
    _, union = intersect_union(kepts)
    shared = expected_shapes(weights, towers, union)
    apart = {name for name in shared if PREFIX.format(0, name) in tensors}
    shapes = {name: shape for name, shape in shared.items() if name not in apart}
    for member, kept in enumerate(kepts):
        cut = expected_shapes(weights, towers, kept)
        shapes |= {PREFIX.format(member, name): cut[name] for name in apart}
    for name, shape in shapes.items():
        if name not in tensors:
            raise Disagreement(f"{path}: tensor {name} is missing")
        if tensors[name].shape != shape:
            raise Disagreement(f"{path}: tensor {name} has shape {tensors[name].shape}, the members need {shape}")
    listed = {*shapes, *decision_shapes(manifest)}
    foreign = next((name for name in tensors if name not in listed), None)
    if foreign is not None:
        raise Disagreement(f"{path}: tensor {foreign} belongs to none of {len(kepts)} members")
    check_dtypes(tensors, shapes, path)
    longest = shared_layers(weights, towers, kepts, apart)
    if manifest.fusion.trunk > longest:
        raise Disagreement(
            f"{path}: the manifest says that all members share {manifest.fusion.trunk} leading layers; they share"
            f" {longest}"
        )


def shared_layers(
    weights: Mapping[str, Weight], towers: Mapping[str, Tower], kepts: Sequence[Kept], apart: Collection[str]
) -> int:
    """Leading layers whose tensors and kept heads are equal in all members, in the tower that inputs run through.

    `apart` are the tensors of which members have one of their own.
    """
    tower, size = next(iter(towers.items()))
    differing = [each for name in apart if (each := weights[name]).tower == tower]
    if any(weight.part == "embedding" for weight in differing):
        return 0
    broken = {weight.layer for weight in differing if weight.layer is not None}
    rows = [kept[tower] for kept in kepts]
    broken |= {layer for layer in range(size.layers) if len({row[layer] for row in rows}) > 1}
    return min(broken, default=size.layers)


def hydra_digests(
    checkpoint: Checkpoint, manifest: HydraManifest, look: Callable[[str, Raw], None] | None = None
) -> tuple[dict[str, str], list[str]]:
    """sha256 of every stored tensor, and for each member the weights' hash of what can be put together for it again.

    All of it in one pass over the file, at which `look` may look on. Where MLPs were averaged, what comes together
    is not what was fused.
    """
    tensors, sources = checkpoint.tensors, member_sources(checkpoint, manifest)
    cuts: dict[str, set[Source]] = {}
    for each in sources:
        for source in each.values():
            if source.at is not None:
                cuts.setdefault(source.stored, set()).add(source)

    def digests_of(name: str) -> dict[Source, str]:
        return _digests_of(tensors, name, cuts.get(name, ()), look)

    names = list(tensors)
    with ThreadPoolExecutor(THREADS) as pool:
        digests = {source: sha256 for of_one in pool.map(digests_of, names) for source, sha256 in of_one.items()}
    return {name: digests[Source(name)] for name in names}, [_hash_of(tensors, each, digests) for each in sources]


def check_members(manifest: HydraManifest, hashes: Sequence[str], path: Path) -> None:
    """Refuse a manifest that names other members than the file's, as far as `hashes` of `hydra_digests` tell."""
    recorded = [member.sha256 for member in manifest.members]
    equal = [one == other for one, other in zip(hashes, recorded, strict=True)]
    # An average of MLPs is none of its terms: either no member can be put together again, or all can.
    if all(equal) or (manifest.fusion.mlp == "average" and not any(equal)):
        return
    wrong = equal.index(False)
    raise Disagreement(
        f"{path}: member {wrong} is not the one that the manifest names (it says {recorded[wrong][:12]}…, "
        f"the member's tensors hash to {hashes[wrong][:12]}…)",
        hint="The file was changed after `fuse` wrote it: fuse the members again.",
    )


def _digests_of(
    tensors: Tensors, name: str, cuts: Collection[Source], look: Callable[[str, Raw], None] | None
) -> dict[Source, str]:
    """sha256 of a stored tensor, and of what its heads make for each of `cuts`."""
    shape = tensors[name].shape
    masks = {
        source: head_mask(shape[source.spec.axis], source.at, spec=source.spec, head_dim=source.head_dim)
        for source in cuts
        if source.at is not None and source.spec is not None
    }
    whole = hashlib.sha256()
    totals = {source: hashlib.sha256() for source in masks}
    start = 0
    for rows in tensors.rows(name):
        whole.update(as_bytes(rows))
        if look is not None:
            look(name, rows)
        for source, keep in masks.items():
            assert source.spec is not None
            totals[source].update(as_bytes(masked(rows, keep, start, spec=source.spec)))
        start += len(rows)
    return {Source(name): whole.hexdigest(), **{s: t.hexdigest() for s, t in totals.items()}}


def _hash_of(tensors: Tensors, sources: Mapping[str, Source], digests: Mapping[Source, str]) -> str:
    """The weights' hash of a member, from the digests of its tensors."""

    def info(name: str, source: Source) -> TensorInfo:
        return replace(tensors[source.stored], name=name, shape=source.shape(tensors))

    infos = {name: info(name, source) for name, source in sources.items()}
    return weights_sha256(infos, {name: digests[source] for name, source in sources.items()})
