"""Calibration by one number, or by two for an ensemble: temperature, and JUCAL (Heiss et al., arXiv 2602.20153).

    temperature   p ∝ (1/M Σ_m softmax(z_m))^(1/T)                       pool, then calibrate
    joint         p = 1/M Σ_m softmax((z̄ + e (z_m − z̄)) / a)             z̄ = 1/M Σ_m z_m

`a` scales the aleatoric part, each member's own doubt; `e` the epistemic part, how far the members are apart.
Both are chosen by the NLL on labelled data that the members have not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.decision.probabilities import TINY, Labels, Logits, Probs, by_pieces, in_pieces, mean_probs, nll

# Between what every calibration constant is sought: beyond, one class has it all, or all have the same.
LOW, HIGH = 0.05, 20.0
# How close, in its logarithm, a constant comes to the best.
CLOSE = 1e-6
# Samples that are calibrated at a time: in float64 all of them would be held several times over.
ROWS = 4096
# Numbers that are worked on at a time: so many stay in a processor's cache.
ELEMENTS = 1 << 17


@dataclass(frozen=True)
class Joint:
    """The two constants of the joint calibration."""

    aleatoric: float
    epistemic: float

    def members(self, logits: Logits) -> Float[Tensor, "sample member klass"]:
        """What each member says, calibrated."""
        z = logits.double()
        mean = z.mean(dim=1, keepdim=True)
        return ((mean + self.epistemic * (z - mean)) / self.aleatoric).softmax(dim=-1)

    def __call__(self, logits: Logits) -> Probs:
        return self.members(logits).mean(dim=1)


def calibrated(logits: Logits, temperature: float = 1.0, joint: Joint | None = None) -> Probs:
    """Probabilities by the joint calibration where there is one, else by temperature."""

    def one(rows: Logits) -> Probs:
        return mean_probs(rows, temperature) if joint is None else joint(rows)

    return by_pieces(one, logits, ROWS)


def nll_of(logits: Logits, labels: Labels, temperature: float = 1.0, joint: Joint | None = None) -> float:
    """`nll` of what is calibrated, without all of it at once."""
    pieces = zip(in_pieces(logits, ROWS), in_pieces(labels, ROWS), strict=True)
    of_truth = [calibrated(rows, temperature, joint).gather(1, truth[:, None]) for rows, truth in pieces]
    return nll(torch.cat(of_truth), torch.zeros_like(labels))


def fit_temperature(probs: Probs, labels: Labels) -> float:
    """The T in [0.05, 20] with the smallest NLL, by golden-section search over ln T (NLL is unimodal in it)."""
    return _temperature(probs.clamp_min(TINY).log_(), labels)


def temperature_of(logits: Logits, labels: Labels) -> float:
    """`fit_temperature` of what logits make, of which only the logarithms are held."""

    def logs(rows: Logits) -> Probs:
        return mean_probs(rows).clamp_min_(TINY).log_()

    return _temperature(by_pieces(logs, logits, ROWS), labels)


def _temperature(logs: Probs, labels: Labels) -> float:
    """−ln softmax(ln p / T)_y = ln Σ_c exp(ln p_c / T) − ln p_y / T, some rows at a time, each less its largest."""
    for piece in in_pieces(logs, ROWS):
        piece -= piece.amax(dim=-1, keepdim=True)
    of_truth = logs.gather(1, labels[:, None])[:, 0]
    pieces = logs.split(max(1, ELEMENTS // logs.shape[-1]))
    least = math.log(TINY)

    def loss(t: float) -> float:
        norm = torch.cat([(piece / t).exp_().sum(dim=-1) for piece in pieces]).log_()
        return -float((of_truth / t - norm).clamp_min(least).mean())

    return _golden(loss)


def _golden(loss: Callable[[float], float]) -> float:
    low, high = math.log(LOW), math.log(HIGH)
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = loss(math.exp(left)), loss(math.exp(right))
    while high - low > CLOSE:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = loss(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = loss(math.exp(right))
    return math.exp((low + high) / 2)


# Logits that the two constants are fitted on, at most: 1,400 samples of three members and 1,000 classes.
MOST = 1 << 22
# Where the search for the two constants starts: the NLL of a mixture may have more than one valley.
STARTS = ((1.0, 1.0), (1.0, 0.2), (1.0, 3.0), (0.4, 1.0), (2.5, 1.0))


def fit_joint(logits: Logits, labels: Labels) -> Joint:
    """The constants in [0.05, 20] with the smallest NLL, by LBFGS over their logarithms from several starts.

    Of more samples than `MOST` logits stand for, a random part tells: two numbers need no more.
    """
    count = max(1, MOST // logits[0].numel())
    if len(logits) > count:
        rows = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))[:count]
        logits, labels = logits[rows], labels[rows]
    descended = (_descend(logits, labels, Joint(*start)) for start in STARTS)
    return min((Joint(1.0, 1.0), *descended), key=lambda joint: nll(joint(logits), labels))


def _descend(logits: Logits, labels: Labels, start: Joint) -> Joint:
    z = logits.detach().double()
    mean = z.mean(dim=1, keepdim=True)
    apart = z - mean
    bounds = math.log(LOW), math.log(HIGH)
    with torch.inference_mode(False), torch.enable_grad():
        mean, apart, truth = mean.clone(), apart.clone(), labels.clone()
        point = torch.tensor([start.aleatoric, start.epistemic], dtype=torch.float64).log()
        point.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [point], max_iter=100, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            aleatoric, epistemic = point.clamp(*bounds).exp()
            each = ((mean + epistemic * apart) / aleatoric).softmax(dim=-1)
            value = -each.mean(dim=1).gather(1, truth[:, None]).clamp_min(TINY).log().mean()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(loss)  # type: ignore[arg-type]
        aleatoric, epistemic = point.detach().clamp(*bounds).exp().tolist()
    return Joint(aleatoric, epistemic)
