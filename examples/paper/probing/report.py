"""Results of `probe`, hydrasurgeon.probe/1: frozen records."""

from __future__ import annotations

from typing import Any, Literal

from hydrasurgeon.files.decided import Record

PerHead = dict[str, tuple[tuple[float | None, ...], ...]]
"""tower → [layer][head] of the original model; None for heads that are gone, or were not looked at.
"""
Heads = tuple[tuple[str, int, int], ...]
"""(tower, layer, head)."""


class Losses(Record):
    """Mean cross-entropy with all heads, and without those that go."""

    clean: float
    noisy: float
    clean_pruned: float
    noisy_pruned: float
    gap: float
    """noisy − clean."""
    gap_pruned: float
    widens: bool
    """True if the gap is at least as wide without the heads: the conclusion of Proposition 1."""


class Gradient(Record):
    """First condition: ∇L of the noisy data does not point against the removal."""

    noisy: float
    """∇L_noisyᵀ δθ."""
    clean: float
    """∇L_cleanᵀ δθ; Assumption 1 says that ∇L_clean is zero."""
    noisy_norm: float
    clean_norm: float
    removal_norm: float
    holds: bool


class Hessian(Record):
    """Second condition: H_noisy − H_clean is positive definite; its diagonal by Hutchinson."""

    mean: float
    """Mean difference of the diagonals, over all weights."""
    error: float | None
    """Standard error of that mean, over draws; None of one draw, which shows none."""
    positive_weights: float
    """The share of weights whose (noisy) estimate is positive; definite matrices have no others."""
    positive_heads: float
    """The same of heads, each by its mean."""
    along: float
    """δθᵀ (H_noisy − H_clean) δθ, exactly: what enters the loss to second order."""
    heads: PerHead
    mean_holds: bool
    """mean > 0: the check of the paper."""
    along_holds: bool


class Proposition(Record):
    """Proposition 1 on clean and noisy data, for one removal of heads."""

    method: str
    removed: Heads
    clean: str
    noisy: str
    samples: int
    draws: int
    losses: Losses
    gradient: Gradient
    hessian: Hessian


class Separation(Record):
    """Distance of one OOD set from the ID data, for each head."""

    name: str
    samples: int
    euclidean: PerHead
    mahalanobis: PerHead
    last_layer: dict[Literal["euclidean", "mahalanobis"], float]
    """Means over the heads of the last layer: the paper's numbers."""


class Pictured(Record):
    """The heads of the picture, by a criterion."""

    method: str
    most: Heads
    least: Heads
    explained: dict[str, tuple[float, ...]]
    """OOD set → for each of these heads, most before least, the share of variance in the picture's
    plane.
    """


class ProbeReport(Record):
    format: Literal["hydrasurgeon.probe/1"] = "hydrasurgeon.probe/1"
    name: str
    settings: dict[str, Any]
    proposition: Proposition
    separation: tuple[Separation, ...] = ()
    pictured: Pictured | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"
