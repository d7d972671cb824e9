"""The tensors that a manifest demands: their names, and the shapes that the kept heads give them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hydrasurgeon.errors import CheckpointError, Disagreement
from hydrasurgeon.families import backend
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.files.tensors import Tensors
from hydrasurgeon.heads import Kept
from hydrasurgeon.slicing import HeadTensor, sliced_shape

__all__ = ["check_dtypes", "check_single", "expected_shapes", "head_specs"]

FLOATS = ("BF16", "F16", "F32", "F64")


def head_specs(manifest: Manifest) -> dict[str, tuple[str, int, HeadTensor]]:
    """Head tensors by name, with the (tower, layer) they belong to."""
    family = backend(manifest.model.family)
    return {
        spec.name: (name, layer, spec)
        for name, tower in manifest.towers.items()
        for layer in range(tower.layers)
        for spec in family.head_tensors(manifest.model, name, layer)
    }


def expected_shapes(manifest: Manifest, kept: Kept) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a model with these heads."""
    family = backend(manifest.model.family)
    shapes = dict(family.expected(manifest.model, manifest.towers))
    for name, (tower, layer, spec) in head_specs(manifest).items():
        head_dim = manifest.towers[tower].head_dim
        heads = len(kept[tower][layer])
        shapes[name] = sliced_shape(shapes[name], heads, spec=spec, head_dim=head_dim)
    return shapes


def check_single(manifest: Manifest, tensors: Tensors, path: Path, *, recorded: bool) -> None:
    """Every tensor that the architecture needs is there, with the shape that the kept heads give it."""
    family = backend(manifest.model.family)
    source = f"{manifest.model.family}:{manifest.model.arch}"
    shapes = expected_shapes(manifest, manifest.kept or {})
    wrong = Disagreement if recorded else CheckpointError
    for name, shape in shapes.items():
        if name not in tensors:
            raise wrong(
                f"{path}: tensor {name} is missing",
                hint=f"{source} needs it: the file is incomplete.",
            )
        if tensors[name].shape != shape:
            raise wrong(
                f"{path}: tensor {name} has shape {tensors[name].shape}, {source} with these heads needs {shape}"
            )
    if recorded and family.names(manifest.model, tensors) is None:
        foreign = next((name for name in tensors if name not in shapes), None)
        if foreign is not None:
            raise wrong(f"{path}: tensor {foreign} is not part of {source}")
    check_dtypes(tensors, shapes, path)


def check_dtypes(tensors: Tensors, names: Iterable[str], path: Path) -> None:
    for name in names:
        dtype = tensors[name].dtype
        if dtype not in FLOATS:
            raise CheckpointError(
                f"{path}: tensor {name} has dtype {dtype}; weights must be one of {', '.join(FLOATS)}",
                hint="Quantised checkpoints cannot be cut: start from the floating-point one.",
            )
