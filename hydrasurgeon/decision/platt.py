"""Calibration of one logit by a temperature T and a bias b (Platt, 1999), after averaging over the members.

    p = σ(ℓ / T),   ℓ = the log-odds of 1/M Σ_m σ(z_m + b T)

Of one model that is σ(z / T + b). Both are chosen by the NLL, labels counting by how true yes is.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.decision.probabilities import Logits, Scores
from hydrasurgeon.decision.temperature import HIGH, LOW, shifted

MOST = 50.0
"""How far a logit is moved at most: where all labels are alike, no bias is large enough."""


def log_odds(logits: Logits) -> Scores:
    """ln p − ln (1 − p) of the members' mean probability of yes."""
    each = logits.double().log_softmax(dim=-1).logsumexp(dim=1)
    return each[:, 1] - each[:, 0]


def nll_of_shares(logits: Logits, shares: Scores, temperature: float = 1.0, bias: float = 0.0) -> float:
    """Mean −s ln p − (1 − s) ln (1 − p) of what is calibrated."""
    odds = log_odds(shifted(logits, temperature, bias)) / temperature
    return float(_loss(odds, shares.double()))


def _loss(odds: Tensor, shares: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(odds, shares)


def platt(logits: Logits, shares: Float[Tensor, " sample"]) -> tuple[float, float]:
    """The temperature in [0.05, 20] and the bias with the smallest NLL, by LBFGS."""
    bounds = math.log(LOW), math.log(HIGH)
    with torch.inference_mode(False), torch.enable_grad():
        z, truth = logits.detach().double().clone(), shares.double().clone()
        point = torch.zeros(2, dtype=torch.float64).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [point], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            moved = torch.cat([z[..., :1], z[..., 1:] + point[1].clamp(-MOST, MOST)], dim=-1)
            value = _loss(log_odds(moved) / point[0].clamp(*bounds).exp(), truth)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[arg-type]
        temperature = float(point[0].detach().clamp(*bounds).exp())
        return temperature, float(point[1].detach().clamp(-MOST, MOST)) / temperature
