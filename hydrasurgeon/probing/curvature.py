"""Loss, gradient and Hessian with respect to the weights of heads, and what removing some of them changes (paper 3.2,
B.1).

With L the mean cross-entropy, θ the weights of q, k, v and W_O, and δθ = −θ at the heads that go:

    L(θ + δθ) − L(θ) = ∇Lᵀ δθ + ½ δθᵀ H δθ + …        diag(H) = E[v ⊙ Hv] for v of random signs (Hutchinson)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.heads import Head

Batched = Callable[[], Iterable[tuple[Any, Tensor]]]
"""One pass over (inputs, labels), the same each time."""


@dataclass(frozen=True)
class Weights:
    """The weights of all heads of a live model, and which head each belongs to."""

    sites: tuple[Attention, ...]
    parameters: tuple[Tensor, ...]
    """q, k, v (in one or three) and W_O, site after site."""
    owners: tuple[Tensor, ...]
    """For each parameter, the position of the head at its site, broadcast to the parameter's shape."""
    places: tuple[int, ...]
    """For each parameter, the number of its site."""

    @classmethod
    def of(cls, sites: Sequence[Attention]) -> Weights:
        """Layers that have no heads left have no weights either."""
        sites = [site for site in sites if site.heads]
        parameters, owners, places = [], [], []
        for number, site in enumerate(sites):
            heads = torch.arange(len(site.heads), device=site.out.weight.device)
            each = heads.repeat_interleave(site.head_dim)
            for project in site.project:
                parts = len(project.weight) // len(each)
                parameters.append(project.weight)
                owners.append(each.repeat(parts)[:, None].expand_as(project.weight))
                places.append(number)
            parameters.append(site.out.weight)
            owners.append(each[None].expand_as(site.out.weight))
            places.append(number)
        return cls(tuple(sites), tuple(parameters), tuple(owners), tuple(places))

    def removal(self, heads: Iterable[Head]) -> list[Tensor]:
        """δθ: minus the weights of these heads, nothing elsewhere."""
        gone = set(heads)
        changes = []
        for parameter, owner, place in zip(self.parameters, self.owners, self.places, strict=True):
            site = self.sites[place]
            goes = torch.tensor([Head(site.tower, site.layer, h) in gone for h in site.heads], device=owner.device)
            changes.append(torch.where(goes[owner], -parameter.detach(), 0))
        return changes

    def signs(self, generator: torch.Generator) -> list[Tensor]:
        """Random signs for each weight, alike on any device."""
        return [torch.randint(0, 2, p.shape, generator=generator).mul_(2).sub_(1).to(p) for p in self.parameters]


@dataclass(frozen=True)
class Curvature:
    """Curvature of the mean loss over one data set."""

    loss: float
    samples: int
    gradient: list[Tensor]
    along: float
    """δθᵀ H δθ."""
    diagonal: list[Tensor]
    """Hutchinson's estimate of the Hessian's diagonal."""
    means: list[float]
    """Its mean over all weights, by each draw alone."""


def curvature(
    model: Callable[[Any], Tensor],
    weights: Weights,
    batches: Iterable[tuple[Any, Tensor]],
    removal: Sequence[Tensor],
    *,
    draws: int,
    seed: int,
) -> Curvature:
    """One pass: the graph of each batch's gradient serves every product with its Hessian.

    Signs are drawn anew for each batch and draw, and alike for two data sets of as many batches: what their
    Hessians have in common cancels in the difference.
    """
    parameters = weights.parameters
    gradient = [torch.zeros_like(p) for p in parameters]
    diagonal = [torch.zeros_like(p) for p in parameters]
    traces = [0.0] * draws
    loss = along = 0.0
    samples = 0
    generator = torch.Generator().manual_seed(seed)
    with twice_differentiable(parameters):
        for inputs, labels in batches:
            each = cross_entropy(model(inputs), labels, reduction="sum")
            slopes = torch.autograd.grad(each, parameters, create_graph=True)
            loss, samples = loss + each.item(), samples + len(labels)
            _add(gradient, [slope.detach() for slope in slopes])
            products = _product(slopes, parameters, removal)
            along += sum(_dot(a, b) for a, b in zip(products, removal, strict=True))
            for draw in range(draws):
                signs = weights.signs(generator)
                products = _product(slopes, parameters, signs)
                parts = [p * s for p, s in zip(products, signs, strict=True)]
                _add(diagonal, parts, 1 / draws)
                traces[draw] += sum(part.double().sum().item() for part in parts)
    size = max(sum(p.numel() for p in parameters), 1)
    return Curvature(
        loss / samples,
        samples,
        [g / samples for g in gradient],
        along / samples,
        [d / samples for d in diagonal],
        [trace / samples / size for trace in traces],
    )


def _product(slopes: Sequence[Tensor], parameters: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
    """The Hessian times a vector: the gradient of gradient · vector."""
    total = sum((s * v).sum() for s, v in zip(slopes, vectors, strict=True))
    made = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(p) if m is None else m.detach() for m, p in zip(made, parameters, strict=True)]


def _add(totals: Sequence[Tensor], parts: Sequence[Tensor], share: float = 1.0) -> None:
    for total, part in zip(totals, parts, strict=True):
        total.add_(part, alpha=share)


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum().item())


@contextlib.contextmanager
def twice_differentiable(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within the block these parameters, and no others of the model, have gradients, and attention has second ones."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    before = [p.requires_grad for p in parameters]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        # Fused kernels have a first derivative only.
        with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
            yield
    finally:
        for parameter, wanted in zip(parameters, before, strict=True):
            parameter.requires_grad_(wanted)


@torch.no_grad()
def loss_of(model: Callable[[Any], Tensor], batches: Iterable[tuple[Any, Tensor]]) -> float:
    """The mean cross-entropy."""
    total, samples = 0.0, 0
    for inputs, labels in batches:
        total += cross_entropy(model(inputs), labels, reduction="sum").item()
        samples += len(labels)
    return total / samples


def means_by_head(weights: Weights, values: Sequence[Tensor]) -> Mapping[tuple[str, int], list[float]]:
    """(tower, layer) → the mean of `values`, one for each weight, over the weights of each head present."""
    sums: dict[int, Tensor] = {}
    counts: dict[int, Tensor] = {}
    for value, owner, place in zip(values, weights.owners, weights.places, strict=True):
        heads = len(weights.sites[place].heads)
        index = owner.reshape(-1).cpu()
        part = torch.zeros(heads, dtype=torch.float64)
        part.index_add_(0, index, value.detach().double().reshape(-1).cpu())
        sums[place] = sums.get(place, 0) + part
        counts[place] = counts.get(place, 0) + torch.bincount(index, minlength=heads)
    return {
        (site.tower, site.layer): (sums[n] / counts[n].clamp(min=1)).tolist() for n, site in enumerate(weights.sites)
    }
