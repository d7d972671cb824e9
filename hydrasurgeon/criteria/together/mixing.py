"""Weights of the chosen members, fitted to validation data and taken only where samples that did not fit them say so.

    p = Σ_m w_m p_m        w on the simplex with the smallest NLL, by expectation maximisation (the problem is convex)

NLL stands in for the objective, which may have no gradient. Each half of the samples judges, by the objective itself,
the weights
that the other half fitted; weights that do not beat equal ones by more than a standard error are not taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.criteria.together.choice import Pool
from hydrasurgeon.criteria.together.objective import Answers, Objective
from hydrasurgeon.files.mixture import Mixture, parse_mixture

ROUNDS = 10_000
"""Of expectation maximisation, at most."""
SETTLED = 1e-7
"""Weights that move less in a round are done."""
SMALLEST = 1e-4
"""The weight of a member that is of no use, and the digits of all: more of them say nothing."""
RESAMPLES = 200
"""Draws of the samples by which the standard error is told."""

OfTruth = Float[Tensor, "sample member"]
"""Each member's probability of the true class."""


@dataclass(frozen=True)
class Weighed:
    """Weights of some members, and what they are worth on samples that did not fit them."""

    text: str
    """Fitted to all samples, as `fuse --weights` takes them."""
    gain: float
    """How much more than equal weights the objective gets, each half of the samples judging the other half's
    weights."""
    error: float
    """The standard error of that, by resampling."""

    @property
    def taken(self) -> bool:
        return self.gain > self.error

    def to_json(self) -> dict[str, Any]:
        return {
            "fitted": [float(weight) for weight in self.text.split(",")],
            "gain": self.gain,
            "se": self.error,
            "taken": self.taken,
        }


def weigh(objective: Objective, members: Sequence[Answers]) -> Weighed:
    """Fit to all samples, and judge by halves."""
    gain, drawn = 0.0, torch.zeros(RESAMPLES, dtype=torch.float64)
    halves = list(zip(*(each.halves() for each in members), strict=True))
    for seed, (fitting, judging) in enumerate((halves, halves[::-1])):
        pool = Pool.gathered(objective, iter(judging), len(members))
        mixture = mixture_for(fitting)
        ours, equal = (pool.sums(range(len(members)), each) for each in (mixture, None))
        values = [objective.value(sums, len(members), pool.labels) for sums in (ours, equal)]
        gain += (values[0] - values[1]) / 2
        counts = len(members), len(members)
        drawn += pool.redrawn((ours, equal), counts, repeats=RESAMPLES, seed=seed) / 2
    return Weighed(text_of(fitted(of_truth(members))), gain, float(drawn.std()))


def mixture_for(members: Sequence[Answers]) -> Mixture | None:
    """What is fitted to these answers, as a file would hold it."""
    return parse_mixture(text_of(fitted(of_truth(members))), len(members))


def of_truth(members: Sequence[Answers]) -> OfTruth:
    each = [member.val.double().softmax(dim=-1).gather(-1, member.labels[:, None])[:, 0] for member in members]
    return torch.stack(each, dim=1)


def fitted(of_truth: OfTruth) -> Tensor:
    """w ← mean over samples of w_m p_m / Σ_k w_k p_k, from equal weights until they settle."""
    members = of_truth.shape[1]
    weights = torch.full((members,), 1 / members, dtype=torch.float64)
    for _ in range(ROUNDS):
        shares = of_truth.clamp_min(1e-300) * weights
        new = (shares / shares.sum(dim=1, keepdim=True)).mean(dim=0)
        moved = float((new - weights).abs().max())
        weights = new
        if moved < SETTLED:
            break
    return weights


def text_of(weights: Tensor) -> str:
    """As `fuse --weights` takes them: positive, with four digits."""
    return ",".join(f"{max(weight, SMALLEST):.4f}" for weight in weights.tolist())
