"""Labels that do not fit the model's answers: `calibrate` refuses them.

The agreement of answers and labels is Σ_i a_i·y_i of centred answers a and centred labels y, in
standard deviations of the same sum over all orders of the labels: √(Σ (AᵀA ∘ YᵀY) / (n − 1)),
exactly. It needs no fit, and so few samples suffice.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray

from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.probabilities import Labels, falling, of_labels
from hydrasurgeon.statistics.temperature import HIGH, LOW

ORDER = (
    "Check that the classes of the data stand in the model's order, and that each label belongs to "
    "its row."
)
"""Hint for labels that do not fit."""
FAR_BETTER = 0.1
"""Minimum gain in accuracy by which another order of the classes shows that labels do not fit
...
"""
BY_CHANCE = 3.0
"""... and minimum gain in standard errors."""
LITTLE_LEARNT = (
    "models of other folds answer no better than by chance: the rows are too few to learn from, or "
    "their labels are wrong"
)
"""Note where rows answer for models that have not seen them."""
AGREEMENT = 2.0
"""Minimum agreement of labels with answers, in standard deviations over random orders."""
ROUNDING = 1e-4
"""Minimum difference in nats for a loss to count as lower."""
AT_BOUND = 0.999
"""Fraction of a bound from which on a temperature counts as being at the bound."""
CONSTANT = 1e-6
"""Maximum norm of a column that counts as constant."""


def best_order(answers: Labels, labels: Labels, weights: ndarray, classes: int) -> Labels:
    """Return the label that each answered class stands for, by the largest weights, each label
    once; -1 for none.
    """
    order, assigned = np.full((classes,), -1), set()
    for pair in falling(weights).tolist():
        answer, label = int(answers[pair]), int(labels[pair])
        if order[answer] < 0 and label not in assigned:
            order[answer] = label
            assigned.add(label)
    return order


def check_order(
    suggesting: tuple[Labels, Labels], judging: tuple[Labels, Labels], classes: int
) -> None:
    """Refuse labels that fit far better, by more than chance, with the classes in the order that
    other answers and labels suggest.
    """
    pairs, counts = np.unique(suggesting[0] * classes + suggesting[1], return_counts=True)
    order = best_order(pairs // classes, pairs % classes, counts, classes)
    predicted, truth = judging
    reordered, right = order[predicted] == truth, predicted == truth
    gained = int(reordered.sum() - right.sum())
    differing = int((reordered != right).sum())
    if gained > max(FAR_BETTER * len(truth), BY_CHANCE * math.sqrt(differing)):
        raise DataError(
            f"the labels do not fit the model's answers: accuracy {right.astype(np.float64).mean():.3f}, and "
            f"{reordered.astype(np.float64).mean():.3f} with the classes in another order",
            hint=ORDER,
        )


def correlations(answers: ndarray, labels: ndarray) -> ndarray:
    """Return the correlation of each column of answers with each column of labels; 0 for a constant
    column.
    """
    return _directions(answers).T @ _directions(labels)


def _directions(columns: ndarray) -> ndarray:
    """Return the columns, centred and of length 1."""
    centred = columns.astype(np.float64) - columns.astype(np.float64).mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    return np.where(lengths > CONSTANT, centred / np.maximum(lengths, CONSTANT), 0.0)


def check_columns(answers: ndarray, labels: ndarray, order: Labels) -> None:
    """Refuse labels of a model with many labels if its answers fit another order far better.

    `order` holds the column of labels that each column of answers stands for.
    """
    pairs = correlations(answers, labels)
    moved = np.flatnonzero((order != np.arange(len(order))) & (order >= 0))
    same, other = (float(pairs[moved, of].sum()) for of in (moved, order[moved]))
    chance = BY_CHANCE * math.sqrt(2 * len(moved) / (len(labels) - 1))
    if other - same > max(FAR_BETTER * len(moved), chance):
        count = len(moved)
        raise DataError(
            f"the labels do not fit the model's answers: {count} of them are correlated with them by "
            f"{same / count:.3f} on average, and by {other / count:.3f} in another order",
            hint=ORDER,
        )


def agreement_with_classes(answers: ndarray, truth: Labels) -> float:
    """Return `agreement` with labels of one class each, without building a column for each
    class.
    """
    lengths = np.sqrt(answers.astype(np.float64).var(axis=0) * len(answers))
    varies = lengths > CONSTANT
    scale = np.where(varies, 1 / np.maximum(lengths, CONSTANT), 0.0)
    mean = answers.mean(axis=0)
    shares = np.bincount(truth, minlength=len(mean)) / len(truth)
    expected = answers @ (shares * scale) - mean @ (shares * scale)
    spread = float(np.sqrt(np.maximum(shares[varies].sum() - np.square(expected).sum(), 0)))
    if spread == 0:
        return 0.0
    of_truth = (of_labels(answers, truth) - mean[truth]) * scale[truth]
    return float(of_truth.sum()) * math.sqrt((len(truth) - 1) / len(truth)) / spread


def agreement(answers: ndarray, labels: ndarray) -> float:
    """Return the agreement of answers with labels, in standard deviations over random orders of the
    rows.
    """
    a, y = _directions(answers), labels.astype(np.float64) - labels.astype(np.float64).mean(axis=0)
    spread = float(np.sqrt(np.maximum(((a.T @ a) * (y.T @ y)).sum(), 0)))
    if spread == 0:
        return 0.0
    return float((a * y).sum()) * math.sqrt(len(a) - 1) / spread


def check_fit(
    loss: float,
    guessing: float,
    accuracy: float,
    temperature: float,
    *,
    agreement: float,
    separated: bool,
) -> None:
    """Refuse labels that answers predict no better than class frequencies do, or no better than
    shuffled labels: often the classes are in another order.

    Also refuse logits that no temperature calibrates, unless they are `separated`: where all
    answers are right, no temperature is low enough.
    """
    facts = (
        f"accuracy {accuracy:.3f}, calibrated NLL {loss:.4f} (guessing by the class frequencies: "
        f"{guessing:.4f}), temperature {temperature:.3f}"
    )
    agrees, coolest = agreement >= AGREEMENT, LOW / AT_BOUND
    if agrees and (temperature > HIGH * AT_BOUND or (temperature < coolest and not separated)):
        raise DataError(
            f"the logits are too large or too small to be calibrated: {facts}",
            hint="Is this the data that the model was trained on? Else multiply similarities by the model's scale, and divide large logits by theirs; "
            "probabilities go into `probabilities`, not `logits`.",
        )
    if not agrees or loss >= guessing - ROUNDING:
        raise DataError(
            f"the labels do not fit the model's answers: {facts}; they agree by {agreement:.1f} "
            "standard deviations of shuffled labels",
            hint=ORDER,
        )
