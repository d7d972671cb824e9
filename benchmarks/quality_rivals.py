"""Cheap rivals of a hydra in benchmarks/quality.py: a last-layer Laplace approximation, and an Asymmetric Duo.

Laplace (Daxberger et al., 2021): posterior of the classifier's weights N(W, H⁻¹), H = Σ_n (diag(p) − p pᵀ) ⊗ φ φᵀ + λ 1
with φ the features
and a constant; predictions by samples of the logits, each a member; λ is the one of a grid with the lowest NLL on
validation data.
Duo (Zhou et al., 2025, arXiv 2505.18636): logits a·z₁ + b·z₂ of a model and a much smaller sidekick, a and b fitted on
validation data.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

PRECISIONS = tuple(10.0**k for k in range(-2, 5))
"""Prior precisions λ to choose from."""
SAMPLES = 30
"""Draws of the logits."""


class Laplace:
    """Fitted on features and logits of training data; keeps the eigenvectors of the curvature, so that λ costs
    nothing."""

    def __init__(self, features: Tensor, logits: Tensor) -> None:
        phi = self._extended(features)
        probs = logits.double().softmax(dim=-1)
        classes, width = probs.shape[1], phi.shape[1]
        curvature = torch.zeros(classes, width, classes, width, dtype=torch.float64)
        for i in range(classes):
            for j in range(classes):
                weight = probs[:, i] * (float(i == j) - probs[:, j])
                curvature[i, :, j] = (phi * weight[:, None]).T @ phi
        flat = curvature.reshape(classes * width, classes * width)
        self.values, self.vectors = torch.linalg.eigh(flat)
        self.classes = classes

    @staticmethod
    def _extended(features: Tensor) -> Tensor:
        return torch.cat([features.double(), torch.ones(len(features), 1).double()], dim=1)

    def covariance(self, features: Tensor, precision: float) -> Tensor:
        """Covariance of each sample's logits, [sample, class, class]."""
        phi = self._extended(features)
        width = phi.shape[1]
        scale = 1 / (self.values.clamp_min(0) + precision)
        blocks = self.vectors.reshape(self.classes, width, -1)
        projected = torch.einsum("nd,cdk->nck", phi, blocks)
        return torch.einsum("nck,k,nek->nce", projected, scale, projected)

    def draws(self, features: Tensor, logits: Tensor, precision: float, seed: int) -> Tensor:
        """Logits [sample, draw, class]."""
        parts = []
        generator = torch.Generator().manual_seed(seed)
        for some, mean in zip(features.split(200), logits.double().split(200), strict=True):
            covariance = self.covariance(some, precision)
            jitter = 1e-9 * torch.eye(self.classes, dtype=torch.float64)
            root = torch.linalg.cholesky(covariance + jitter)
            noise = torch.randn(len(mean), SAMPLES, self.classes, generator=generator).double()
            parts.append(mean[:, None] + torch.einsum("nce,nse->nsc", root, noise))
        return torch.cat(parts)

    def best(self, features: Tensor, logits: Tensor, labels: Tensor, seed: int) -> float:
        """The prior precision under which validation data is likeliest."""

        def loss(precision: float) -> float:
            probs = self.draws(features, logits, precision, seed).softmax(dim=-1).mean(dim=1)
            return float(-probs.gather(1, labels[:, None]).clamp_min(1e-300).log().mean())

        return min(PRECISIONS, key=loss)


def duo(large: Tensor, small: Tensor, labels: Tensor) -> tuple[float, float]:
    """The two weights that suit validation data."""
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(weights[0] * large.double() + weights[1] * small.double(), labels)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[arg-type]
    first, second = weights.detach().tolist()
    return first, second
