"""What a checkpoint must be, given what it was made from: made again tensor by tensor, and compared bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hydrasurgeon.checkpoints.at_hand import Found
from hydrasurgeon.checkpoints.reading import Checkpoint, single
from hydrasurgeon.families.weights import output_of
from hydrasurgeon.files.tensors import THREADS, Planned, sha256_of
from hydrasurgeon.heads import Kept
from hydrasurgeon.surgery.cut import plan_pruning
from hydrasurgeon.surgery.fusion import plan_fusion

if TYPE_CHECKING:
    from hydrasurgeon.files.tensors import Raw


@dataclass(frozen=True)
class Derived:
    """How a file compares with what surgery makes of its parents."""

    tensors: int
    differing: tuple[str, ...]
    """Tensors that are missing, superfluous, of another shape or dtype, or hold other bits."""


def compare_pruned(
    child: Found, parent: Found, *, repaired: Mapping[str, Raw] | None = None, without: Collection[str] = ()
) -> Derived:
    """The child against the parent with the child's heads cut out; `without` are tensors not to look at."""
    planned = plan_pruning(parent.checkpoint, single(child.checkpoint).kept, {}, repaired)
    return compare(child, planned, without)


def compare_fused(child: Found, members: Sequence[Found]) -> Derived:
    """A hydra against the file that `fuse` writes of its members."""
    manifest = child.checkpoint.manifest
    assert manifest.kind == "hydra"  # the step that made it is `fuse`
    fusion = manifest.fusion
    plan = plan_fusion(
        [member.checkpoint for member in members],
        [member.digests for member in members],
        average_mlp=fusion.mlp == "average",
    )
    derived = compare(child, plan.planned, ())
    if plan.trunk != fusion.trunk:
        derived = replace(derived, differing=(f"trunk of {plan.trunk} layers", *derived.differing))
    return derived


def compare(child: Found, planned: Sequence[Planned], without: Collection[str] = ()) -> Derived:
    tensors = child.checkpoint.tensors
    plans = {plan.name: plan for plan in planned if plan.name not in without}
    stored = {name for name in tensors if name not in without}
    differing = set(plans) ^ stored
    same_header = [
        name
        for name in sorted(set(plans) & stored)
        if (plans[name].dtype, plans[name].shape) == (tensors[name].dtype, tensors[name].shape)
    ]
    differing |= (set(plans) & stored) - set(same_header)
    with ThreadPoolExecutor(THREADS) as pool:
        hashes = pool.map(lambda name: sha256_of(plans[name].produce()), same_header)
        differing |= {n for n, h in zip(same_header, hashes, strict=True) if h != child.digests[n]}
    return Derived(len(stored), tuple(sorted(differing)))


def contains(parent: Kept, child: Kept) -> bool:
    """Whether the child keeps only heads that the parent has."""
    return set(parent) == set(child) and all(
        set(row) <= set(parent[tower][layer]) for tower, rows in child.items() for layer, row in enumerate(rows)
    )


def repaired_names(parent: Checkpoint, kept: Kept) -> set[str]:
    """W_O and its bias in the layers that lost heads: what `prune --compensate` writes anew."""
    return {
        name
        for tower, rows in single(parent).kept.items()
        for layer, row in enumerate(rows)
        if kept[tower][layer] != row
        for name in output_of(parent.weights, tower, layer)
        if name is not None
    }


def same_model(parent: Found, like: Checkpoint) -> Checkpoint:
    """A parent that answers for the child's classes: a CLIP's names may have been given after it was written."""
    recorded, model = parent.checkpoint.manifest, like.manifest.model
    manifest = recorded.model_copy(update={"model": model})
    return replace(parent.checkpoint, manifest=manifest, recorded=True)
