"""Distance of ID and OOD data in each head's input to W_O (paper B.2).

    d_Eucl = ‖c_ID − c_OOD‖        d_Mah = √((c_ID − c_OOD)ᵀ Σ⁻¹ (c_ID − c_OOD)),  Σ the covariance
    of ID

at the token that the classifier reads, or the mean over real tokens where it reads them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from hydrasurgeon.anatomy.hooks import removed
from hydrasurgeon.anatomy.parts import Anatomy, Attention

MASK = "attention_mask"
"""Under which name texts say which of their tokens are real."""
Doubles = NDArray[np.float64]


@dataclass
class Moments:
    """Running moments of the vectors of one layer's heads."""

    count: int = 0
    shift: Doubles | None = None
    """Mean of the first batch, which is subtracted before squares are summed to limit rounding
    errors.
    """
    total: Doubles | float = 0.0
    squares: Doubles | float = 0.0
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    """Vectors of the samples that a picture shows, [head, head_dim] each."""

    def add(
        self, vectors: Float[Tensor, "batch head head_dim"], pictured: NDArray[np.bool_]
    ) -> None:
        values = vectors.double().cpu().numpy()
        if self.shift is None:
            self.shift = values.mean(axis=0)
        centred = values - self.shift
        self.count += len(values)
        self.total = self.total + centred.sum(axis=0)
        self.squares = self.squares + np.einsum("nhi,nhj->hij", centred, centred)
        self.rows += list(values[pictured].astype(np.float32))

    @property
    def centroid(self) -> Doubles:
        """[head, head_dim]."""
        assert self.shift is not None
        return self.shift + np.asarray(self.total) / self.count

    @property
    def covariance(self) -> Doubles:
        """[head, head_dim, head_dim], unbiased."""
        mean = np.asarray(self.total) / self.count
        spread: Doubles = np.asarray(self.squares) - self.count * mean[:, :, None] * mean[:, None]
        return spread / (self.count - 1)


@torch.inference_mode()
def head_moments(
    model: Any, anatomy: Anatomy, batches: Iterable[tuple[Any, Tensor]], pictured: NDArray[np.bool_]
) -> dict[tuple[str, int], Moments]:
    """Return (tower, layer) → the moments of its heads, in one pass of (inputs, positions of the
    samples).
    """
    sites = [block.attention for block in anatomy.blocks if block.attention.heads]
    seen: dict[tuple[str, int], Tensor] = {}

    def noted(site: Attention) -> Any:
        def note(_: Any, arguments: tuple[Tensor, ...]) -> None:
            heads = arguments[0].unflatten(-1, (len(site.heads), site.width))
            seen[site.tower, site.layer] = heads

        return note

    moments = {(site.tower, site.layer): Moments() for site in sites}
    with removed(*(site.out.register_forward_pre_hook(noted(site)) for site in sites)):
        for inputs, positions in batches:
            seen.clear()
            model(inputs)
            shown = pictured[positions.numpy()]
            for place, heads in seen.items():
                moments[place].add(_read(heads, inputs, anatomy.reads), shown)
    return moments


def _read(
    heads: Float[Tensor, "batch token head head_dim"], inputs: Any, reads: int | None
) -> Float[Tensor, "batch head head_dim"]:
    """Return the classifier's input from a layer: its first token, or the mean over the real ones."""
    if reads is not None:
        return heads[:, 0]
    mask = inputs.get(MASK) if isinstance(inputs, Mapping) else None
    if mask is None:
        return heads.double().mean(dim=1)
    real = mask.ne(0)[:, :, None, None]
    return torch.where(real, heads, 0).double().sum(dim=1) / real.sum(dim=1).clamp(min=1)


def distances(inside: Moments, outside: Moments) -> tuple[list[float], list[float]]:
    """Return the Euclidean and Mahalanobis distance of the centroids, for each head."""
    apart = inside.centroid - outside.centroid
    euclidean = np.linalg.norm(apart, axis=-1)
    # Of a head whose vectors fill no space of full dimension, within the space that they fill.
    precision = np.linalg.pinv(inside.covariance, hermitian=True, rcond=1e-10)
    squared = np.einsum("hi,hij,hj->h", apart, precision, apart)
    return euclidean.tolist(), np.sqrt(np.maximum(squared, 0)).tolist()


def plane(
    inside: NDArray[np.float32], outside: NDArray[np.float32]
) -> tuple[Doubles, Doubles, float]:
    """Return the vectors of the two sets on the first two principal components of all, and the
    explained share of variance.
    """
    vectors = np.concatenate([inside, outside]).astype(np.float64)
    vectors -= vectors.mean(axis=0)
    _, sizes, axes = np.linalg.svd(vectors, full_matrices=False)
    # Which way an axis points is nobody's choice: its largest entry is positive.
    tops = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
    points = vectors @ (axes * np.where(tops < 0, -1, 1)[:, None])[:2].T
    if points.shape[1] < 2:
        points = np.hstack([points, np.zeros((len(points), 1))])
    share = float((sizes[:2] ** 2).sum() / max(float((sizes**2).sum()), 1e-300))
    return points[: len(inside)], points[len(inside) :], share
