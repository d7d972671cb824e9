"""Means of several models' weights: of all of them, or of their leading layers alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hydrasurgeon.checkpoints.layout import in_trunk
from hydrasurgeon.checkpoints.reading import Single
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.weights import head_axes
from hydrasurgeon.files.tensors import Tensors, as_float, from_float, sha256_of

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

    def __init__(self, own: Tensors, models: Sequence[Single], names: Collection[str]) -> None:
        super().__init__(own.files, {name: own.stored(name) for name in own})
        self.models, self.names = models, frozenset(names)

    def read(self, name: str) -> Raw:
        if name not in self.names:
            return super().read(name)
        return np.concatenate([*self.blocks(name)]).reshape(self[name].shape)

    def blocks(
        self, name: str, *, start: int = 0, stop: int | None = None, most: int | None = None
    ) -> Iterator[Raw]:
        if name not in self.names:
            yield from super().blocks(name, start=start, stop=stop, most=most)
            return
        dtype = self[name].dtype
        parts = [m.tensors.blocks(name, start=start, stop=stop, most=most) for m in self.models]
        for raw in zip(*parts, strict=True):
            yield from_float(mean_of([as_float(one, dtype) for one in raw]), dtype)


def mean_of(values: Sequence[Values]) -> Values:
    """Their mean, summed in float64 one after another."""
    total = np.zeros(values[0].shape, dtype=np.float64)
    for value in values:
        total += value
    return total / len(values)


def averaged(model: Single, models: Sequence[Single], names: Collection[str]) -> Single:
    """A model with the mean of several for these tensors."""
    return replace(model, tensors=Averaged(model.tensors, models, names))


def differing(names: Iterable[str], digests: Sequence[Mapping[str, str]]) -> list[str]:
    """Tensors that are not the same in all models."""
    return [name for name in names if len({each[name] for each in digests}) > 1]


def spread(models: Sequence[Single], names: Collection[str]) -> float:
    """How far the models' weights lie from their mean, as a fraction of its norm."""
    squares = norm = 0.0
    for name in names:
        dtype = models[0].tensors[name].dtype
        for raw in zip(*(model.tensors.blocks(name) for model in models), strict=True):
            values = [as_float(part, dtype) for part in raw]
            mean = mean_of(values)
            squares += sum(float((value - mean) @ (value - mean)) for value in values)
            norm += float(mean @ mean)
    if not squares:
        return 0.0
    return math.sqrt(squares / len(models) / norm) if norm else math.inf


def check_common_start(models: Sequence[Single], names: Collection[str], option: str) -> None:
    """Refuse models whose mean of these tensors would be like none of them."""
    first, *others = models
    axes = head_axes(first.weights[name] for name in names)
    places = {(group, layer) for group, layer, _ in axes.values()}
    for other in others:
        cut_alike = all(other.kept[g][layer] == first.kept[g][layer] for g, layer in places)
        if not cut_alike or any(other.tensors[n].dtype != first.tensors[n].dtype for n in names):
            raise SurgeryError(
                f"{option}: {first.name} and {other.name} differ in heads, neurons or dtypes of "
                "what would be averaged",
                hint="Prune their mean, or behind the mean trunk (prune --layers).",
            )
    for part in PARTS:
        matrices = [
            name
            for name in names
            if first.weights[name].part == part and len(first.weights[name].shape) == 2
        ]
        distance = spread(models, matrices)
        if distance > FAR:
            raise SurgeryError(
                f"{option}: their {part} weights lie {100 * distance:.0f} % of its norm from their "
                "mean, as those of separate trainings do",
                hint="Their mean is like none of them: fuse them into a hydra.",
            )


def behind_mean_trunk(
    models: Sequence[Single], digests: Sequence[Mapping[str, str]], layers: int
) -> tuple[list[Single], list[dict[str, str]]]:
    """The models with the mean of all as their embeddings and leading layers, and their hashes."""
    first = models[0]
    names = [*filter(in_trunk(first.weights, first.manifest.towers, layers), first.weights)]
    check_common_start(models, names, "--mean-trunk")
    names = differing(names, digests)
    behind = [averaged(model, models, names) for model in models]
    mean = {name: sha256_of(behind[0].tensors.blocks(name)) for name in names}
    return behind, [{**each, **mean} for each in digests]
