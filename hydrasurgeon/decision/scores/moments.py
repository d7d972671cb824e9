"""Class means and covariances of features, accumulated batch by batch in one pass, in float64."""

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
