"""Means of several models' weights: of all of them, or of their leading layers alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.checkpoints.checkpoint import Single
from hydrasurgeon.checkpoints.layout import in_trunk
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import head_axes
from hydrasurgeon.files.header import ITEMSIZE
from hydrasurgeon.files.tensors import BLOCK_BYTES, Tensors, as_float, from_float, sha256_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hydrasurgeon.files.tensors import Raw

    Values = NDArray[np.float64]

FAR = 0.5
"""Spread beyond which models share no start. Independent weights lie √(M − 1) of their mean's norm
from it, 1 for two of them, members that were tuned from one start some hundredths.
"""
PARTS = ("attention", "output", "mlp")
"""Parts whose matrices tell separate trainings; norms and biases begin alike."""


class Averaged(Tensors):
    """A model's tensors, of which `names` are the mean of several models', computed when read."""

    def __init__(
        self,
        tensors: Tensors,
        models: Sequence[Tensors],
        names: Collection[str],
    ) -> None:
        super().__init__(tensors.files, {name: tensors.stored(name) for name in tensors})
        self.models, self.names = models, frozenset(names)

    def read(self, name: str) -> Raw:
        if name not in self.names:
            return super().read(name)
        return np.concatenate([*self.blocks(name)]).reshape(self[name].shape)

    def blocks(self, name: str, *, most: int | None = None) -> Iterator[Raw]:
        if name not in self.names:
            yield from super().blocks(name, most=most)
            return
        dtype = self[name].dtype
        for values in values_of(self.models, name, most):
            yield from_float(mean_of(values), dtype)


def values_of(
    sources: Sequence[Tensors],
    name: str,
    most: int | None = None,
) -> Iterator[list[Values]]:
    """Yield one tensor of several files, in blocks of equally many numbers."""
    dtypes = [source[name].dtype for source in sources]
    count = (most or BLOCK_BYTES) // ITEMSIZE[dtypes[0]]
    blocks = [
        source.blocks(name, most=count * ITEMSIZE[dtype])
        for source, dtype in zip(sources, dtypes, strict=True)
    ]
    for raw in zip(*blocks, strict=True):
        yield [as_float(part, dtype) for part, dtype in zip(raw, dtypes, strict=True)]


def mean_of(values: Sequence[Values]) -> Values:
    """Return the mean, summed in float64 one after another."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for value in values:
        total += value
    return total / len(values)


def averaged(model: Single, models: Sequence[Single], names: Collection[str]) -> Single:
    """Return a model with the mean of several for these tensors."""
    tensors = [other.tensors for other in models]
    return replace(model, tensors=Averaged(model.tensors, tensors, names))


def differing(names: Iterable[str], digests: Sequence[Mapping[str, str]]) -> list[str]:
    """List the tensors that are not the same in all models."""
    return [name for name in names if len({hashes.get(name) for hashes in digests}) > 1]


def spread(models: Sequence[Single], names: Collection[str]) -> float:
    """Return how far the models' weights lie from their mean, as a fraction of its norm."""
    squares = norm = 0.0
    for name in names:
        for values in values_of([model.tensors for model in models], name):
            mean = mean_of(values)
            squares += sum(float((value - mean) @ (value - mean)) for value in values)
            norm += float(mean @ mean)
    if not squares:
        return 0.0
    return math.sqrt(squares / len(models) / norm) if norm else math.inf


def check_common_start(models: Sequence[Single], names: Collection[str], option: str) -> None:
    """Refuse models whose mean of these tensors would be like none of them."""
    first, *rest = models
    axes, kinds = head_axes(first.weights[name] for name in names), first.weights
    places = {(group, layer) for group, layer, _ in axes.values()}
    matrices = [n for n in names if kinds[n].part in PARTS and len(kinds[n].shape) == 2]
    for other in rest:
        fit = all(_shape(other, name) == _shape(first, name) for name in matrices)
        if not fit or any(other.kept[g][layer] != first.kept[g][layer] for g, layer in places):
            raise SurgeryError(
                f"{option}: {first.name} and {other.name} differ in the heads, neurons or sizes that "
                "would be averaged",
                hint="Prune their mean instead, or only the layers behind the mean trunk (prune --layers).",
            )
    for part in PARTS:
        some = [name for name in matrices if kinds[name].part == part]
        distance = spread(models, some)
        if distance > FAR:
            raise SurgeryError(
                f"{option}: their {part} weights differ from their mean by {100 * distance:.0f} % of its "
                "norm, as in models that were trained separately",
                hint="The mean of such models is useless: fuse them into a hydra.",
            )


def have_one_shape(models: Sequence[Single], name: str) -> bool:
    """Return True if a tensor has the same shape in all models."""
    return len({_shape(model, name) for model in models}) == 1


def _shape(model: Single, name: str) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None if the model lacks it."""
    if name in model.tensors:
        return model.tensors[name].shape
    return None


def behind_mean_trunk(
    models: Sequence[Single], digests: Sequence[Mapping[str, str]], layers: int
) -> tuple[list[Single], list[dict[str, str]]]:
    """Return the models with a mean trunk, and their hashes.

    Their embeddings and leading layers are the mean of all.
    """
    first = models[0]
    most = max(tower.layers for tower in first.manifest.towers.values())
    if layers > most:
        raise SurgeryError(
            f"--mean-trunk {layers}: the model has {most} layers", hint=f"Give at most {most}."
        )
    names = [*filter(in_trunk(first.weights, first.manifest.towers, layers), first.weights)]
    check_common_start(models, names, "--mean-trunk")
    names = differing(names, digests)
    behind = [averaged(model, models, names) for model in models]
    mean = {name: sha256_of(behind[0].tensors.blocks(name)) for name in names}
    return behind, [{**hashes, **mean} for hashes in digests]
