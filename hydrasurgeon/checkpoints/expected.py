"""The tensors that a manifest demands: their names, and the shapes that the kept heads give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hydrasurgeon.errors import CheckpointError, Disagreement
from hydrasurgeon.families.weights import Weight, head_axes
from hydrasurgeon.files.decided import PREFIX, shapes_of
from hydrasurgeon.files.manifest import Manifest, SingleManifest, Tower
from hydrasurgeon.files.tensors import Tensors
from hydrasurgeon.heads import Kept, sliced_shape

if TYPE_CHECKING:
    from hydrasurgeon.checkpoints.reading import Checkpoint

FLOATS = ("BF16", "F16", "F32", "F64")
"""What weights may be stored as."""


def expected_shapes(
    weights: Mapping[str, Weight], towers: Mapping[str, Tower], kept: Kept
) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model with these heads."""
    shapes = {name: weight.shape for name, weight in weights.items()}
    for name, (tower, layer, axis) in head_axes(weights.values()).items():
        heads, head_dim = len(kept[tower][layer]), towers[tower].head_dim
        shapes[name] = sliced_shape(shapes[name], heads, spec=axis, head_dim=head_dim)
    return shapes


def check_single(checkpoint: Checkpoint, manifest: SingleManifest) -> None:
    """Every tensor that the architecture needs is there, with the shape that the kept heads give it."""
    tensors, path = checkpoint.tensors, checkpoint.path
    source = f"{manifest.model.family}:{manifest.model.arch}"
    shapes = expected_shapes(checkpoint.weights, manifest.towers, manifest.kept)
    wrong = Disagreement if checkpoint.recorded else CheckpointError
    for name, shape in shapes.items():
        if name not in tensors:
            raise wrong(f"{path}: tensor {name} is missing", hint=f"{source} needs it: the file is incomplete.")
        if tensors[name].shape != shape:
            raise wrong(
                f"{path}: tensor {name} has shape {tensors[name].shape}, {source} with these heads needs {shape}"
            )
    listed = {*shapes, *decision_shapes(manifest)}
    # What a family picks out of a file by name leaves the rest of it lying.
    lies = checkpoint.family.names(manifest.model, tensors) is not None or not checkpoint.recorded
    foreign = next((n for n in tensors if n not in listed), None)
    if foreign is not None and not lies:
        raise wrong(f"{path}: tensor {foreign} is not part of {source}")
    check_dtypes(tensors, shapes, path)


def decision_shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the decision state's tensors."""
    if manifest.decision is None:
        return {}
    return shapes_of(manifest.decision, manifest.model.num_classes)


def check_decision(manifest: Manifest, tensors: Tensors, path: Path) -> None:
    """The decision state's tensors are those that its record speaks of, in float32."""
    shapes = decision_shapes(manifest)
    foreign = next((n for n in tensors if n.startswith(PREFIX) and n not in shapes), None)
    if foreign is not None:
        raise Disagreement(f"{path}: tensor {foreign} is no part of the decision state")
    for name, shape in shapes.items():
        if name not in tensors:
            raise Disagreement(f"{path}: tensor {name} of the decision state is missing")
        info = tensors[name]
        if (info.dtype, info.shape) != ("F32", shape):
            raise Disagreement(
                f"{path}: tensor {name} is {info.dtype} {info.shape}, the decision state needs F32 {shape}"
            )


def check_dtypes(tensors: Tensors, names: Iterable[str], path: Path) -> None:
    for name in names:
        dtype = tensors[name].dtype
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{path}: tensor {name} has dtype {dtype}; weights must be one of {', '.join(FLOATS)}",
                hint="Quantised checkpoints cannot be cut: start from the floating-point one.",
            )
