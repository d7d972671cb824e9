"""The inverse of a covariance as a factor W with Σ⁻¹ = W Wᵀ, shrunk by Ledoit and Wolf where it is singular.

Ledoit, Wolf 2004:  Σ* = (1 − ρ) S + ρ μ I,  μ = tr S / d,  ρ = min(b², d²)/d²,
b² = 1/n² Σ_i |x_i x_iᵀ − S|²,  d² = |S − μ I|²  (Frobenius, x centred).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# A covariance is singular when its smallest eigenvalue is below this share of its largest: features behind a
# LayerNorm have such a direction, and few samples have many.
SINGULAR = 1e-10


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
