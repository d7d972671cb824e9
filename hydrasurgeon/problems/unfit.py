"""Labels that do not fit what the model answers: `calibrate` refuses them."""

from __future__ import annotations

import math

import torch

from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.probabilities import Labels
from hydrasurgeon.statistics.temperature import HIGH, LOW

ORDER = (
    "Check that the classes of the data stand in the model's order, and that each label belongs to "
    "its row."
)
"""What to do about labels that do not fit."""
FAR_BETTER = 0.1
"""How much more accurate another order of the classes must be to show that labels do not fit ..."""
BY_CHANCE = 3.0
"""... and how many standard errors."""
ROUNDING = 1e-4
"""Nats by which one loss must lie below another to be a lower one."""
AT_BOUND = 0.999
"""A temperature this close to its bound, as a share of it, would go further if it could."""


def best_order(predicted: Labels, truth: Labels, classes: int) -> Labels:
    """Predicted class → the label that it most often stands for, each label once."""
    pairs, counts = (predicted * classes + truth).unique(return_counts=True)
    order = torch.full((classes,), -1)
    for pair in pairs[counts.argsort(descending=True, stable=True)].tolist():
        answer, label = divmod(pair, classes)
        if order[answer] < 0 and not (order == label).any():
            order[answer] = label
    return order


def check_order(predicted: Labels, truth: Labels, order: Labels) -> None:
    """Refuse labels that fit far better, by more than chance, with the classes in another `order`."""
    reordered, right = order[predicted] == truth, predicted == truth
    gained = int(reordered.sum() - right.sum())
    differing = int((reordered != right).sum())
    if gained > max(FAR_BETTER * len(truth), BY_CHANCE * math.sqrt(differing)):
        raise DataError(
            f"the labels do not fit the model's answers: accuracy {right.double().mean():.3f}, and "
            f"{reordered.double().mean():.3f} with the classes in another order",
            hint=ORDER,
        )


def check_fit(
    loss: float, guessing: float, accuracy: float, temperature: float, *, separated: bool
) -> None:
    """Refuse labels of which the answers know no more than the shares of the classes: often those of
    classes in another order. And logits that no temperature calibrates, unless they are `separated`:
    where all that fitted was answered rightly, none is low enough.
    """
    facts = f"accuracy {accuracy:.3f}, calibrated NLL {loss:.4f}, temperature {temperature:.3f}"
    if loss >= guessing - ROUNDING or temperature > HIGH * AT_BOUND:
        raise DataError(
            f"the labels do not fit the model's answers: {facts}; guessing by the shares of the "
            f"classes has NLL {guessing:.4f}",
            hint=ORDER,
        )
    if temperature < LOW / AT_BOUND and not separated:
        raise DataError(
            f"the logits are too small to be calibrated: {facts}, its lowest",
            hint="Multiply similarities by the model's scale; probabilities go into "
            "`probabilities`, not `logits`.",
        )
