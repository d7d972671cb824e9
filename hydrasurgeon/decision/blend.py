"""Weights of a blend: the shares of a model and of the bag-of-words model beside it.

    outputs = a · model + b · reader,    a, b ≥ 0
    a = α · (scale of the model alone),  b = β · (scale of the reader alone)

α and β have the highest posterior on the part of VAL that fits: both have a normal prior around the
model alone (α = 1, β = 0), and one more sample is as if of its two likeliest classes by halves, so
that few samples neither weigh the reader too high nor make answers too sure. The reader is kept if
the loss is lower with it. The loss is estimated on all of VAL: weights that one part fits are judged
on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.decision.bag_of_words_fit import Kind
from hydrasurgeon.run.bag_of_words import Floats
from hydrasurgeon.statistics.minimum import minimize

LARGEST = 1e3
"""Upper bound of a weight."""
PRIOR = 0.5
"""Standard deviation of the prior of α and β."""
SMALLEST = 1e-12
"""Lower bound of a probability and of a mean square whose logarithm is taken."""


@dataclass(frozen=True)
class Blend:
    """The two weights, and the loss on samples that fitted none of them."""

    weights: tuple[float, float]
    fitted: float
    """The loss on the samples that fitted them."""
    alone: float
    """Scale of the model's outputs without a bag-of-words model."""
    without: float
    """The loss of the model alone, on all of VAL."""
    together: float
    """The loss of both, on all of VAL."""
    error: float
    """Standard error of their difference."""

    @property
    def pays(self) -> bool:
        """True if the loss is lower with the bag-of-words model."""
        return self.together < self.without


def means(kind: Kind, outputs: Floats) -> Floats:
    """Return the members' mean probabilities, or mean numbers, [sample, output].

    `outputs` are [sample, member, output].
    """
    if kind == "softmax":
        outputs = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        outputs /= outputs.sum(axis=2, keepdims=True)
    elif kind == "sigmoid":
        outputs = 1 / (1 + np.exp(-outputs.clip(-500, 500)))
    result: Floats = outputs.mean(axis=1)
    return result


def losses(kind: Kind, outputs: Floats, targets: Floats) -> Floats:
    """Return the loss of each sample for the members' mean; outputs are [sample, member, output]."""
    chances = means(kind, outputs)
    if kind == "square":
        result: Floats = ((chances - targets) ** 2).mean(axis=1)
        return result
    chances = chances.clip(SMALLEST, 1 - SMALLEST)
    if kind == "softmax":
        result = -(targets * np.log(chances)).sum(axis=1)
        return result
    losses_by_label = targets * np.log(chances) + (1 - targets) * np.log(1 - chances)
    result = -losses_by_label.mean(axis=1)
    return result


def surprise(kind: Kind, outputs: Floats, targets: Floats) -> float:
    """Return minus the logarithm of the probability of all targets and of one more sample, which is
    by halves of its two likeliest classes, or true and false; of numbers, of normal errors of
    whatever deviation fits best.
    """
    sample_losses = losses(kind, outputs, targets)
    if kind == "square":
        return 0.5 * len(sample_losses) * float(np.log(max(sample_losses.mean(), SMALLEST)))
    chances = means(kind, outputs)
    if kind == "sigmoid":
        chances = np.stack([chances, 1 - chances], axis=-1)
    doubt = -np.log(np.sort(chances, axis=-1)[..., -2:].clip(SMALLEST)).mean()
    labels = targets.shape[1] if kind == "sigmoid" else 1
    return labels * float(sample_losses.sum() + doubt)


def scaled(kind: Kind, outputs: Floats, targets: Floats) -> float:
    """Return the factor on the outputs with the highest posterior, 1 / temperature; 1 for numbers."""
    if kind == "square":
        return 1.0
    return float(_least(lambda at: surprise(kind, at[0] * outputs, targets), [1.0])[0])


def fit_blend(
    kind: Kind,
    model: Floats,
    reader: Floats,
    targets: Floats,
    fitting: NDArray[np.int64],
    certifying: NDArray[np.int64],
) -> Blend:
    """Fit the two weights on one part of VAL and estimate their worth on all of VAL.

    Each part is judged with weights that were fitted on the other. The model's outputs are [sample,
    member, output], the reader's and the targets [sample, output].
    """
    reader = reader[:, None]

    def fitted(rows: NDArray[np.int64]) -> tuple[float, tuple[float, float]]:
        """Fit the scale of the model alone, and the weights of model and reader."""
        truth = targets[rows]
        scales = [scaled(kind, outputs[rows], truth) for outputs in (model, reader)]
        parts = [
            scale * outputs[rows] for scale, outputs in zip(scales, (model, reader), strict=True)
        ]

        def loss(at: Floats) -> float:
            unlikely = ((at[0] - 1) ** 2 + at[1] ** 2) / (2 * PRIOR**2)
            return surprise(kind, at[0] * parts[0] + at[1] * parts[1], truth) + float(unlikely)

        shares = _least(loss, [1.0, 0.0])
        return scales[0], (float(shares[0]) * scales[0], float(shares[1]) * scales[1])

    def losses_on(rows: NDArray[np.int64], weights: tuple[float, float]) -> Floats:
        mixed = weights[0] * model[rows] + weights[1] * reader[rows]
        return losses(kind, mixed, targets[rows])

    alone, weights = fitted(fitting)
    its_alone, its_weights = fitted(certifying)
    without = [losses_on(certifying, (alone, 0.0)), losses_on(fitting, (its_alone, 0.0))]
    together = [losses_on(certifying, weights), losses_on(fitting, its_weights)]
    gains = np.concatenate(without) - np.concatenate(together)
    return Blend(
        weights,
        float(losses_on(fitting, weights).mean()),
        alone,
        float(np.concatenate(without).mean()),
        float(np.concatenate(together).mean()),
        float(gains.std(ddof=1) / np.sqrt(len(gains))),
    )


def _least(loss: Callable[[Floats], float], start: Sequence[float]) -> Floats:
    """Minimize a smooth function of one or two weights that are not negative."""
    bounds = [(0.0, LARGEST)] * len(start)
    return minimize(loss, np.array(start), bounds=bounds, gradient=False)
