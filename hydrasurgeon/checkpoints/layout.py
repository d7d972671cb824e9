"""The tensors that a manifest demands, and where they lie: in a hydra, shared tensors once, heads
as a union.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import CheckpointError, Disagreement
from hydrasurgeon.families.weights import Weight, all_neurons, head_axes, rows_of
from hydrasurgeon.files.decided import PREFIX as DECISION
from hydrasurgeon.files.decided import shapes_of
from hydrasurgeon.files.manifest import HydraManifest, Manifest, Member, SingleManifest, Tower
from hydrasurgeon.files.tensors import THREADS, Look, Tensors, as_bytes, weights_sha256
from hydrasurgeon.heads import (
    NEURONS,
    HeadAxis,
    Kept,
    Layers,
    head_mask,
    intersect_union,
    masked,
    positions,
    sliced_shape,
    take_heads,
)

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw

PREFIX = "members.{}.{}"
"""Name of a tensor of one member: the member's number, then the name in a single model."""
FLOATS = ("BF16", "F16", "F32", "F64")
"""Types in which weights may be stored."""

Weights = Mapping[str, Weight]
"""A family's table for a model, unpruned."""


@dataclass(frozen=True)
class TensorSource:
    """Location of a member's tensor: a stored name, and which of its heads to take."""

    stored: str
    at: tuple[int, ...] | None = None
    spec: HeadAxis | None = None
    head_dim: int = 0

    def read(self, tensors: Tensors) -> Raw:
        array = tensors.read(self.stored)
        if self.at is None or self.spec is None:
            return array
        return take_heads(array, self.at, spec=self.spec, head_dim=self.head_dim)

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        """Return the tensor's shape after its heads are taken."""
        stored = tensors[self.stored].shape
        if self.at is None or self.spec is None:
            return stored
        return sliced_shape(stored, len(self.at), spec=self.spec, head_dim=self.head_dim)


def expected_shapes(
    weights: Weights, towers: Mapping[str, Tower], kept: Kept
) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a model with these heads."""
    shapes = {name: weight.shape for name, weight in weights.items()}
    for name, (group, layer, axis) in head_axes(weights.values()).items():
        if group in kept:
            shapes[name] = sliced_shape(
                shapes[name], len(kept[group][layer]), spec=axis, head_dim=rows_of(towers, group)
            )
    return shapes


def selection(record: SingleManifest | Member, weights: Weights) -> dict[str, Layers]:
    """Return the heads and neurons that one model keeps; no neurons if its MLPs cannot be cut."""
    neurons = all_neurons(weights.values())
    for tower, rows in (record.kept_neurons or {}).items():
        group = f"{tower}{NEURONS}"
        for layer, (row, all_rows) in enumerate(
            zip(rows, neurons.get(group, ((),) * len(rows)), strict=True)
        ):
            if row[-1] >= len(all_rows):
                raise Disagreement(
                    f"kept_neurons: {tower} layer {layer} has {len(all_rows)} neurons that can be cut"
                )
        neurons[group] = rows
    return {**record.kept, **neurons}


def check_tensors(
    manifest: Manifest,
    weights: Weights,
    tensors: Tensors,
    path: Path,
    *,
    recorded: bool,
    picked: bool,
) -> None:
    """Refuse tensors other than those that the manifest demands.

    A bare file may hold more, and so may one from which tensors are `picked`.
    """
    source = f"{manifest.model.family}:{manifest.model.arch}"
    if manifest.kind == "hydra":
        source = f"a hydra of {len(manifest.members)} members"
        shapes = _hydra_shapes(manifest, weights, tensors, path)
    else:
        shapes = expected_shapes(weights, manifest.towers, selection(manifest, weights))
    wrong = Disagreement if recorded else CheckpointError
    decision = (
        {} if manifest.decision is None else shapes_of(manifest.decision, manifest.model.choices)
    )
    for name, shape in {**shapes, **decision}.items():
        info = tensors.get(name)
        if info is None or info.shape != shape:
            fault = (
                "is missing"
                if info is None
                else f"has shape {info.shape}, {source} with these heads needs {shape}"
            )
            hint = f"{source} needs it: the file is incomplete." if info is None else None
            raise wrong(f"{path}: tensor {name} {fault}", hint=hint)
        allowed = FLOATS if name in shapes else ("F32",)
        if info.dtype not in allowed:
            raise CheckpointError(
                f"{path}: tensor {name} has dtype {info.dtype}; it must be one of {', '.join(allowed)}",
                hint="Quantised checkpoints cannot be cut: start from the floating-point one.",
            )
    more = (name for name in tensors if name not in shapes and name not in decision)
    extra_name = next(
        (name for name in more if name.startswith(DECISION) or (recorded and not picked)), None
    )
    if extra_name is not None:
        raise wrong(f"{path}: tensor {extra_name} is not part of {source}")


def _hydra_shapes(
    manifest: HydraManifest, weights: Weights, tensors: Tensors, path: Path
) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the members need.

    Refuses members that are not those that were fused, or that do not share the recorded trunk.
    """
    steps = (entry for entry in reversed(manifest.history) if entry.command in ("fuse", "finetune"))
    last = next(steps, None)
    # Members may be tuned after they are fused, and behind a mean trunk are not those that were read.
    fused = last if last and last.command == "fuse" and "mean_trunk" not in last.args else None
    hashes = [member.sha256 for member in manifest.members]
    towers, kepts = manifest.towers, [selection(member, weights) for member in manifest.members]
    shared = expected_shapes(weights, towers, intersect_union(kepts)[1])
    apart = {name for name in shared if PREFIX.format(0, name) in tensors}
    trunk, longest = manifest.fusion.trunk, shared_layers(weights, towers, kepts, apart)
    differ = fused is not None and [source.sha256 for source in fused.inputs] != hashes
    if differ or trunk > longest:
        share = f"says that all members share {trunk} leading layers; they share {longest}"
        raise Disagreement(
            f"{path}: the manifest {'lists other members than `fuse` read' if differ else share}"
        )
    shapes = {name: shape for name, shape in shared.items() if name not in apart}
    for member, kept in enumerate(kepts):
        cut = expected_shapes(weights, towers, kept)
        shapes |= {PREFIX.format(member, name): cut[name] for name in apart}
    return shapes


def shared_layers(
    weights: Weights, towers: Mapping[str, Tower], kepts: Sequence[Kept], apart: Collection[str]
) -> int:
    """Count the leading layers that are equal in all members.

    The tensors `apart` are stored for each member separately.
    """
    tower, size = next(iter(towers.items()))
    differing = [weights[name] for name in apart if weights[name].tower == tower]
    if any(weight.part == "embedding" for weight in differing):
        return 0
    broken = {weight.layer for weight in differing if weight.layer is not None}
    for group in (tower, f"{tower}{NEURONS}"):
        rows = [kept[group] for kept in kepts if group in kept]
        broken |= {layer for layer in range(size.layers) if len({row[layer] for row in rows}) > 1}
    return min(broken, default=size.layers)


def in_trunk(weights: Weights, towers: Mapping[str, Tower], trunk: int) -> Callable[[str], bool]:
    """Return a function that tells if a member's tensor belongs to the trunk of so many layers.

    The embedding belongs to any trunk but an empty one.
    """
    tower = next(iter(towers))

    def shared(name: str) -> bool:
        weight = weights[name]
        if not trunk or weight.tower != tower:
            return False
        return weight.part == "embedding" or (weight.layer is not None and weight.layer < trunk)

    return shared


def member_sources(
    manifest: HydraManifest, weights: Weights, tensors: Tensors
) -> list[dict[str, TensorSource]]:
    """Return for each member of a hydra the source of every tensor of its own file."""
    kepts = [selection(member, weights) for member in manifest.members]
    _, union = intersect_union(kepts)
    axes = head_axes(weights.values())

    def source(member: int, name: str) -> TensorSource:
        prefixed = PREFIX.format(member, name)
        if prefixed in tensors:
            return TensorSource(prefixed)
        if name not in axes:
            return TensorSource(name)
        group, layer, axis = axes[name]
        heads, row = union[group][layer], kepts[member][group][layer]
        if row == heads:
            return TensorSource(name)
        return TensorSource(
            name, tuple(positions(heads, row)), axis, rows_of(manifest.towers, group)
        )

    return [{name: source(i, name) for name in weights} for i in range(len(kepts))]


def member_hashes(
    manifest: HydraManifest, weights: Weights, tensors: Tensors, look: Look | None = None
) -> tuple[dict[str, str], list[str]]:
    """Hash every stored tensor, and for each member the weights put together for it."""
    sources = member_sources(manifest, weights, tensors)
    cuts: dict[str, set[TensorSource]] = {}
    for member in sources:
        for source in member.values():
            if source.at is not None:
                cuts.setdefault(source.stored, set()).add(source)

    def digests_of(name: str) -> dict[TensorSource, str]:
        """Hash a stored tensor, and each cut from it."""
        shape = tensors[name].shape
        masks = {
            source: head_mask(
                shape[source.spec.axis], source.at, spec=source.spec, head_dim=source.head_dim
            )
            for source in cuts.get(name, ())
            if source.at is not None and source.spec is not None
        }
        complete = hashlib.sha256()
        totals = {source: hashlib.sha256() for source in masks}
        start = 0
        for rows in tensors.rows(name):
            complete.update(as_bytes(rows))
            if look is not None:
                look(name, rows)
            for source, keep in masks.items():
                assert source.spec is not None
                totals[source].update(as_bytes(masked(rows, keep, start, spec=source.spec)))
            start += len(rows)
        return {
            TensorSource(name): complete.hexdigest(),
            **{s: t.hexdigest() for s, t in totals.items()},
        }

    with ThreadPoolExecutor(THREADS) as pool:
        digests = {
            source: sha256
            for of_one in pool.map(digests_of, tensors)
            for source, sha256 in of_one.items()
        }

    def hash_of(sources: Mapping[str, TensorSource]) -> str:
        infos = {
            n: replace(tensors[s.stored], name=n, shape=s.shape(tensors))
            for n, s in sources.items()
        }
        return weights_sha256(infos, {name: digests[source] for name, source in sources.items()})

    return {name: digests[TensorSource(name)] for name in tensors}, [
        hash_of(member) for member in sources
    ]


def check_members(manifest: HydraManifest, hashes: Sequence[str], path: Path) -> None:
    """Refuse a manifest that names other members than the file's, as far as `hashes` of
    `member_hashes` tell.
    """
    recorded = [member.sha256 for member in manifest.members]
    equal = [one == other for one, other in zip(hashes, recorded, strict=True)]
    # An average is none of its terms: either no member can be put together again, or all can.
    if all(equal) or (manifest.fusion.averaged and not any(equal)):
        return
    wrong = equal.index(False)
    raise Disagreement(
        f"{path}: member {wrong} is not the one that the manifest names (it says {recorded[wrong][:12]}…, the member's tensors hash to {hashes[wrong][:12]}…)",
        hint="The file was changed after `fuse` wrote it: fuse the members again.",
    )
