"""Loss, gradient and Hessian with respect to the weights of heads, and what removing some of them
changes (paper 3.2, B.1).

With L the mean loss of the model's task, θ the weights of q, k, v and W_O, and δθ = −θ
at the heads that go:

    L(θ + δθ) − L(θ) = ∇Lᵀ δθ + ½ δθᵀ H δθ + …        diag(H) = E[v ⊙ Hv] for v of random signs
    (Hutchinson)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.heads import Head
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tuning.losses import losses_of


@dataclass(frozen=True)
class Weights:
    """The weights of all heads of a live model, and which head each belongs to."""

    parameters: tuple[Tensor, ...]
    """q, k, v (in one or three) and W_O, site after site."""
    owners: tuple[Tensor, ...]
    """For each parameter, the position of the head at its site, broadcast to the parameter's shape.
    """
    sites: tuple[Attention, ...]

    @classmethod
    def of(cls, sites: Sequence[Attention]) -> Weights:
        """Return the weights of all layers that have heads left."""
        parts = []
        for site in (site for site in sites if site.heads):
            heads, out = (
                torch.arange(len(site.heads), device=site.out.weight.device),
                site.out.weight,
            )
            for project, size in zip(site.project, site.rows, strict=True):
                weight, rows = project.weight, heads.repeat_interleave(size)
                parts.append(
                    (weight, rows.repeat(len(weight) // len(rows))[:, None].expand_as(weight), site)
                )
            parts.append((out, heads.repeat_interleave(site.width)[None].expand_as(out), site))
        return cls(*(tuple(column) for column in zip(*parts, strict=True)))  # type: ignore[arg-type]

    def removal(self, heads: Iterable[Head]) -> list[Tensor]:
        """Return δθ: minus the weights of these heads, and zero elsewhere."""
        removed = set(heads)
        changes = []
        for parameter, owner, site in zip(self.parameters, self.owners, self.sites, strict=True):
            goes = torch.tensor(
                [Head(site.tower, site.layer, h) in removed for h in site.heads],
                device=owner.device,
            )
            changes.append(torch.where(goes[owner], -parameter.detach(), 0))
        return changes


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
    losses: Callable[..., Tensor] = losses_of(SINGLE).losses,
) -> Curvature:
    """Measure curvature in one pass: the graph of a batch's gradient serves all its products with
    the Hessian.

    Signs are drawn anew for each batch and draw, and alike for two data sets of as many batches:
    what their Hessians have in common cancels in the difference.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    parameters = weights.parameters
    gradient, diagonal = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    traces, loss, along, samples = [0.0] * draws, 0.0, 0.0, 0
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.requires_grad_(True)
    # Fused kernels have a first derivative only.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad():
        for inputs, labels in batches:
            batch_loss = losses(model(inputs), labels).sum()
            slopes = torch.autograd.grad(batch_loss, parameters, create_graph=True)
            loss, samples = loss + batch_loss.item(), samples + len(labels)
            for total, slope in zip(gradient, slopes, strict=True):
                total.add_(slope.detach())
            along += dot(_product(slopes, parameters, removal), removal)
            for draw in range(draws):
                signs = [
                    torch.randint(0, 2, p.shape, generator=generator).mul_(2).sub_(1).to(p)
                    for p in parameters
                ]
                for total, product, sign in zip(
                    diagonal, _product(slopes, parameters, signs), signs, strict=True
                ):
                    total.add_(product * sign, alpha=1 / draws)
                    traces[draw] += (product * sign).double().sum().item()
    for parameter in parameters:
        parameter.requires_grad_(False)
    size = max(sum(p.numel() for p in parameters), 1)
    return Curvature(
        loss / samples,
        samples,
        [g / samples for g in gradient],
        along / samples,
        [d / samples for d in diagonal],
        [trace / samples / size for trace in traces],
    )


def _product(
    slopes: Sequence[Tensor], parameters: Sequence[Tensor], vectors: Sequence[Tensor]
) -> list[Tensor]:
    """Return the Hessian times a vector: the gradient of gradient · vector."""
    total = sum((s * v).sum() for s, v in zip(slopes, vectors, strict=True))
    products = torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    return [
        torch.zeros_like(p) if m is None else m.detach()
        for m, p in zip(products, parameters, strict=True)
    ]


def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return float(sum((x.double() * y.double()).sum().item() for x, y in zip(a, b, strict=True)))


@torch.no_grad()
def loss_of(
    model: Callable[[Any], Tensor],
    batches: Iterable[tuple[Any, Tensor]],
    losses: Callable[..., Tensor] = losses_of(SINGLE).losses,
) -> float:
    """Return the mean loss."""
    total, samples = 0.0, 0
    for inputs, labels in batches:
        total += losses(model(inputs), labels).sum().item()
        samples += len(labels)
    return total / samples


def means_by_head(
    weights: Weights, values: Sequence[Tensor]
) -> Mapping[tuple[str, int], list[float]]:
    """Return (tower, layer) → the mean of `values`, one for each weight, over each remaining
    head's weights.
    """
    sums: dict[tuple[str, int], Tensor] = {}
    for value, owner, site in zip(values, weights.owners, weights.sites, strict=True):
        place = (site.tower, site.layer)
        # A row of sums, and one of counts.
        parts = sums.setdefault(place, torch.zeros(2, len(site.heads), dtype=torch.float64))
        flat = value.detach().double().reshape(-1).cpu()
        parts.index_add_(1, owner.reshape(-1).cpu(), torch.stack([flat, torch.ones_like(flat)]))
    return {
        place: (total / amounts.clamp(min=1)).tolist() for place, (total, amounts) in sums.items()
    }
