"""How much a reader of words counts beside a model.

    outputs = a · model + b · reader,    a, b ≥ 0 of least loss on the half of VAL that fits

The reader is kept where the loss of the other half falls by more than its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.decision.words import Kind
from hydrasurgeon.run.words import Floats

LARGEST = 1e3
"""Of a weight."""


@dataclass(frozen=True)
class Beside:
    """The two weights, and the loss on samples that fitted none of them."""

    weights: tuple[float, float]
    fitted: float
    """The loss on the samples that fitted them."""
    alone: float
    """By which the model's outputs count where there is no reader."""
    without: float
    together: float
    error: float
    """Standard error of their difference."""

    @property
    def pays(self) -> bool:
        """Whether the loss falls by more than its standard error."""
        return self.without - self.together > self.error


def means(kind: Kind, outputs: Floats) -> Floats:
    """The members' mean probabilities, or numbers; outputs are [sample, member, output]."""
    if kind == "softmax":
        outputs = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        outputs /= outputs.sum(axis=2, keepdims=True)
    elif kind == "sigmoid":
        outputs = 1 / (1 + np.exp(-outputs.clip(-500, 500)))
    result: Floats = outputs.mean(axis=1)
    return result


def losses(kind: Kind, outputs: Floats, targets: Floats) -> Floats:
    """Of each sample, by the members' mean; outputs are [sample, member, output]."""
    chances = means(kind, outputs)
    if kind == "square":
        result: Floats = ((chances - targets) ** 2).mean(axis=1)
        return result
    chances = chances.clip(1e-12, 1 - 1e-12)
    if kind == "softmax":
        result = -(targets * np.log(chances)).sum(axis=1)
        return result
    each = targets * np.log(chances) + (1 - targets) * np.log(1 - chances)
    result = -each.mean(axis=1)
    return result


def scaled(kind: Kind, outputs: Floats, targets: Floats) -> float:
    """The factor of least loss: one over a temperature; of numbers, none."""
    if kind == "square":
        return 1.0

    def loss(at: Floats) -> float:
        return float(losses(kind, at[0] * outputs, targets).mean())

    return float(_least(loss, [1.0])[0])


def fit_beside(
    kind: Kind,
    model: Floats,
    reader: Floats,
    targets: Floats,
    fitting: NDArray[np.int64],
    certifying: NDArray[np.int64],
) -> Beside:
    """The weights that one half fits, and what they are worth on the other; the model's outputs
    are [sample, member, output], the reader's and the targets [sample, output].
    """

    def mixed(at: Floats, rows: NDArray[np.int64]) -> Floats:
        result: Floats = at[0] * model[rows] + at[1] * reader[rows][:, None]
        return result

    alone = scaled(kind, model[fitting], targets[fitting])

    def loss(at: Floats) -> float:
        return float(losses(kind, mixed(at, fitting), targets[fitting]).mean())

    fitted = _least(loss, [alone, 0.3 * alone])
    without = losses(kind, alone * model[certifying], targets[certifying])
    together = losses(kind, mixed(fitted, certifying), targets[certifying])
    apart = without - together
    return Beside(
        (float(fitted[0]), float(fitted[1])),
        loss(fitted),
        alone,
        float(without.mean()),
        float(together.mean()),
        float(apart.std(ddof=1) / np.sqrt(len(apart))),
    )


def _least(loss: Callable[[Floats], float], start: Sequence[float]) -> Floats:
    """Where a smooth function of one or two weights is least."""
    from scipy.optimize import minimize

    bounds = [(0.0, LARGEST)] * len(start)
    found = minimize(loss, np.array(start), method="L-BFGS-B", bounds=bounds)
    result: Floats = found.x
    return result
