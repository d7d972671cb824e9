"""Calibration by one number, the temperature; by two for one logit: Platt (1999).

    temperature   p ∝ (1/M Σ_m softmax(z_m))^(1/T)
    Platt         p = σ(ℓ / T),   ℓ = the log-odds of 1/M Σ_m σ(z_m + b T)

Temperature pools first, then calibrates. Platt's, of one model, is σ(z / T + b).

They are chosen by the NLL on labelled data that the members have not seen. Where all of
that is answered rightly no constant is low enough: then one more sample is as if of every class alike
(after Platt's own targets), so that few samples
do not make answers sure, and none is above 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Float
from hydrasurgeon.statistics.minimum import minimize
from hydrasurgeon.statistics.probabilities import (
    TINY,
    YES,
    Labels,
    Logits,
    Probs,
    Scores,
    by_pieces,
    entropy,
    in_pieces,
    log_softmax,
    logsumexp,
    mean_probs,
    of_labels,
    softmax,
)

LOW, HIGH = 0.05, 20.0
"""Range of every calibration constant: beyond it one class is certain, or all are equally likely.
"""
CLOSE = 1e-6
"""Tolerance of a constant's logarithm."""
CALIBRATED = 4096
"""Samples that are calibrated at a time: float64 copies of all would need several times the memory.
"""
ELEMENTS = 1 << 17
"""Numbers that are worked on at a time: so many stay in a processor's cache."""
FURTHEST = 50.0
"""Largest shift of one logit: where all labels are alike, no bias is large enough."""


def shifted(logits: Logits, temperature: float | ndarray, bias: float | None) -> Logits:
    """Return the logits with Platt's bias added to yes.

    A member's answer is then sigmoid(z / temperature + bias).
    """
    if not bias:
        return logits
    return np.concatenate(
        [logits[..., :1], logits[..., 1:].astype(np.float64) + bias * temperature], axis=-1
    )


def calibrated(
    logits: Logits, temperature: float | ndarray = 1.0, bias: float | None = None
) -> Probs:
    """Return calibrated probabilities.

    There may be a temperature for each label; `bias` is for a single logit.
    """
    return by_pieces(
        lambda rows: mean_probs(shifted(rows, temperature, bias), temperature), logits, CALIBRATED
    )


def uncertainties(
    logits: Logits, temperature: float | ndarray = 1.0, bias: float | None = None
) -> tuple[Scores, Scores]:
    """Return H(mean q_m) and mean H(q_m) of the calibrated members q_m.

    Each member has the temperature of the average.
    """
    calibrated_members = softmax(
        shifted(logits, temperature, bias).astype(np.float64) / temperature
    )
    return entropy(calibrated_members.mean(axis=1)), entropy(calibrated_members).mean(axis=1)


def nll_of(logits: Logits, labels: Labels, temperature: float = 1.0) -> float:
    """Return `nll` after calibration, piece by piece to save memory."""
    pieces = zip(in_pieces(logits, CALIBRATED), in_pieces(labels, CALIBRATED), strict=True)
    of_truth = [of_labels(calibrated(rows, temperature), truth) for rows, truth in pieces]
    return float(-np.log(np.maximum(np.concatenate(of_truth), TINY)).mean())


def temperature_of(logits: Logits, labels: Labels) -> float:
    """Return the T in [0.05, 20] with the smallest NLL."""
    return _temperature(mean_logs(logits), labels)


def mean_logs(logits: Logits) -> Probs:
    """Return ln of the members' mean probabilities."""
    return by_pieces(lambda rows: np.log(np.maximum(mean_probs(rows), TINY)), logits, CALIBRATED)


def _temperature(logs: Probs, labels: Labels) -> float:
    """Search ln T by golden sections for the smallest NLL, which is unimodal in it.

    NLL = ln Σ_c exp(ln p_c / T) − ln p_y / T.
    """
    for piece in in_pieces(logs, CALIBRATED):
        piece -= piece.max(axis=-1, keepdims=True)
    of_truth, separated = of_labels(logs, labels), (logs.argmax(axis=-1) == labels).all()
    doubt = float(separated) / len(labels)
    pieces = in_pieces(logs, max(1, ELEMENTS // logs.shape[-1]))
    least = math.log(TINY)

    def loss(t: float) -> float:
        norm = np.log(np.concatenate([np.exp(piece / t).sum(axis=-1) for piece in pieces]))
        loss = -np.maximum(of_truth / t - norm, least).mean()
        if doubt:
            loss += doubt * (norm.mean() - logs.mean() / t)
        return float(loss)

    low, high = _bounds(doubt)
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


def _bounds(doubt: float) -> tuple[float, float]:
    """Return the bounds of a constant's logarithm.

    If all answers are right, no constant exceeds 1.
    """
    return math.log(LOW), 0.0 if doubt else math.log(HIGH)


def log_odds(logits: Logits) -> Scores:
    """Return ln p − ln (1 − p) of the members' mean probability of yes."""
    logs = logsumexp(log_softmax(logits.astype(np.float64)), axis=1)
    return logs[:, 1] - logs[:, 0]


def nll_of_shares(
    logits: Logits, shares: Scores, temperature: float = 1.0, bias: float = 0.0
) -> float:
    """Return the mean of −s ln p − (1 − s) ln (1 − p) after calibration."""
    odds = log_odds(shifted(logits, temperature, bias)) / temperature
    return _loss(odds, shares.astype(np.float64))


def _loss(odds: Scores, shares: Scores) -> float:
    return float((np.logaddexp(0.0, odds) - shares * odds).mean())


def platt(logits: Logits, shares: Float[ndarray, " sample"]) -> tuple[float, float]:
    """Fit the temperature in [0.05, 20] and the bias with the smallest NLL, by L-BFGS."""
    plain, holds = log_odds(logits), shares >= YES
    mixed = holds.any() and not holds.all() and plain[holds].min() <= plain[~holds].max()
    doubt = float(not mixed) / len(shares)  # where a threshold tells all answers
    apart = np.diff(logits.astype(np.float64), axis=-1)[..., 0]
    truth = (shares.astype(np.float64) + doubt / 2) / (1 + doubt)

    def loss(point: ndarray) -> tuple[float, ndarray]:
        """Return the loss and its slope."""
        moved, cool = apart + point[1], math.exp(-point[0])
        yes, no = -np.logaddexp(0.0, -moved), -np.logaddexp(0.0, moved)
        of_yes, of_no = logsumexp(yes, axis=1), logsumexp(no, axis=1)
        odds = (of_yes - of_no) * cool
        slope = (np.exp(-np.logaddexp(0.0, -odds)) - truth) / len(truth)
        # d ln σ(z) = σ(−z), d ln σ(−z) = −σ(z); each member counts by its fraction of the sum.
        by_bias = (np.exp(yes - of_yes[:, None] + no) + np.exp(no - of_no[:, None] + yes)).sum(
            axis=1
        )
        return _loss(odds, truth), np.array([-(slope @ odds), cool * (slope @ by_bias)])

    bounds = [_bounds(doubt), (-FURTHEST, FURTHEST)]
    logarithm, offset = minimize(loss, np.zeros(2), bounds=bounds, change=0, slope=1e-10)
    temperature = math.exp(logarithm)
    return temperature, float(offset) / temperature
