"""Class means and covariances of features, in one pass in float64; and Σ⁻¹ = W Wᵀ, shrunk where Σ is singular.

Ledoit, Wolf 2004:  Σ* = (1 − ρ) S + ρ μ I,  μ = tr S / d,  ρ = min(b², d²)/d²,
b² = 1/n² Σ_i |x_i x_iᵀ − S|²,  d² = |S − μ I|²  (Frobenius, x centred).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Features in one product: many small ones cost more than a few large, and much larger ones cost memory.
ROWS = 2048


@dataclass(frozen=True)
class Moments:
    """First and second moments of features, by class and over all."""

    counts: Int[Tensor, " klass"]
    means: Float[Tensor, "klass width"]
    """Means of each class; zeros for a class that never occurs."""
    mean: Float[Tensor, " width"]
    within: Float[Tensor, "width width"]
    """Covariance about the class means: 1/n Σ (x − μ_y)(x − μ_y)ᵀ."""
    total: Float[Tensor, "width width"]
    """Covariance about the mean."""

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def about(self, origin: Float[Tensor, " width"]) -> Float[Tensor, "width width"]:
        """1/n Σ (x − o)(x − o)ᵀ."""
        apart = self.mean - origin
        return self.total + torch.outer(apart, apart)


class Accumulator:
    """Sums that moments are made of; about the first batch's mean, so that little is lost to cancellation."""

    def __init__(self, classes: int, width: int) -> None:
        self._counts = torch.zeros(classes, dtype=torch.int64)
        self._sums = torch.zeros(classes, width, dtype=torch.float64)
        self._squares = torch.zeros(width, width, dtype=torch.float64)
        self._origin: Tensor | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, features: Float[Tensor, "sample width"], labels: Int[Tensor, " sample"]) -> None:
        self._waiting += zip(features.split(ROWS), labels.split(ROWS), strict=True)
        if sum(len(classes) for _, classes in self._waiting) >= ROWS:
            self._sum_up()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        features, labels = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting = []
        for rows, classes in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            wide = rows.double()
            if self._origin is None:
                self._origin = wide.mean(dim=0)
            wide = wide - self._origin
            self._counts += torch.bincount(classes, minlength=len(self._counts))
            self._sums.index_add_(0, classes, wide)
            self._squares.addmm_(wide.T, wide)

    def moments(self) -> Moments:
        self._sum_up()
        assert self._origin is not None
        count = self._counts.sum()
        means = self._sums / self._counts.clamp_min(1)[:, None]
        mean = self._sums.sum(dim=0) / count
        second = self._squares / count
        between = (means * self._counts[:, None]).T @ means / count
        present = (self._counts > 0)[:, None]
        return Moments(
            counts=self._counts,
            means=torch.where(present, means + self._origin, 0.0),
            mean=mean + self._origin,
            within=_symmetric(second - between),
            total=_symmetric(second - torch.outer(mean, mean)),
        )


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


SINGULAR = 1e-10
"""A covariance is singular when its smallest eigenvalue is below this fraction of its largest: features behind a
LayerNorm have such a direction, and few samples have many."""


@dataclass(frozen=True)
class Whitening:
    """x W has the identity as covariance."""

    factor: Float[Tensor, "width width"]
    shrunk: float | None
    """The share of the identity that was mixed in, where it had to be."""


def whitening(covariance: Float[Tensor, "width width"], centred: Float[Tensor, "sample width"]) -> Whitening:
    """`centred` are samples that the covariance is of: they tell how far to shrink it if it is singular."""
    values, vectors = torch.linalg.eigh(covariance)
    shrunk = None
    if values[0] <= SINGULAR * values[-1]:
        shrunk = shrinkage(covariance, centred)
        values = (1 - shrunk) * values.clamp_min(0.0) + shrunk * values.mean()
        # Samples that are all alike have no covariance at all.
        values = values.clamp_min(SINGULAR * values[-1]).clamp_min(torch.finfo(values.dtype).tiny)
    return Whitening(vectors / values.sqrt(), shrunk)


def shrinkage(covariance: Float[Tensor, "width width"], centred: Float[Tensor, "sample width"]) -> float:
    """Ledoit and Wolf's ρ, in (0, 1]."""
    x = centred.double()
    count, width = x.shape
    identity = torch.eye(width, dtype=torch.float64) * covariance.trace() / width
    distance = (covariance - identity).square().sum()
    norms = x.square().sum(dim=1).square().sum()
    # Σ_i |x_i x_iᵀ − S|² = Σ_i |x_i|⁴ − 2 Σ_i x_iᵀ S x_i + n |S|²
    error = norms - 2 * ((x @ covariance) * x).sum() + count * covariance.square().sum()
    if float(distance) <= 0:
        return 1.0
    return min(max(float(error / count**2 / distance), SINGULAR), 1.0)
