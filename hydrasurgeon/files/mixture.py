"""The members' weights in a hydra's mean, p = Σ_m w_m p_m: positive numbers of sum 1; None where all members count
alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hydrasurgeon.errors import UsageError

Mixture = tuple[float, ...]
"""A weight for each member, as the file numbers them."""
CLOSE = 1e-9
"""How far the sum of a file's weights may be from 1: rounding is smaller."""


def check_mixture(weights: Mixture) -> Mixture:
    """ValueError unless a file's weights are positive, finite and of sum 1."""
    for number, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"member {number} has the weight {weight:g}, which is not positive")
    # fsum raises where the sum is beyond float64's range.
    if not abs(sum(weights) - 1) <= CLOSE:
        raise ValueError(f"the members' weights add up to {sum(weights):.6g}, not to 1")
    return weights


def mixture_of(weights: Sequence[float]) -> Mixture | None:
    """Positive numbers brought to the sum 1; None where they are all alike."""
    total = math.fsum(weights)
    return None if len(set(weights)) == 1 else tuple(weight / total for weight in weights)


def parse_mixture(text: str | Sequence[float], members: int) -> Mixture | None:
    """`--weights W1,W2,…`, a positive number for each member; only their proportions count."""
    words = text.split(",") if isinstance(text, str) else [str(weight) for weight in text]
    shown = f"--weights {','.join(words)[:80]}"
    try:
        weights = [float(word) for word in words]
    except ValueError as error:
        raise UsageError(f"{shown}: not numbers with commas between them", hint="Such as --weights 2,1,1.") from error
    if len(weights) != members:
        raise UsageError(
            f"{shown}: {len(weights)} weights for {members} members", hint="Give one for each, in their order."
        )
    wrong = next((w for w in weights if not (math.isfinite(w) and w > 0)), None)
    if wrong is not None:
        raise UsageError(
            f"{shown}: {wrong:g} is not a positive number",
            hint="A member that is not to count is left out of the hydra.",
        )
    if math.isinf(sum(weights)):
        raise UsageError(
            f"{shown}: are too large to be added up", hint="Only their proportions count: give smaller ones."
        )
    made = mixture_of(weights)
    if made is not None and not all(weight > 0 for weight in made):
        raise UsageError(f"{shown}: are too far apart: one would be 0 beside the others")
    return made


def as_given(weights: str | Sequence[float] | None) -> str | None:
    """Weights as `--weights` takes them, to be recorded."""
    if weights is None or isinstance(weights, str):
        return weights
    return ",".join(map(str, weights))


def shown(mixture: Mixture) -> str:
    """For people."""
    return ", ".join(f"{weight:.3g}" for weight in mixture)


def among(mixture: Mixture | None, members: Sequence[int]) -> Mixture | None:
    """The weights of some members, in this order, brought to the sum 1 again."""
    if mixture is None or tuple(members) == tuple(range(len(mixture))):
        return mixture
    return mixture_of([mixture[member] for member in members])


def joined(parts: Sequence[tuple[int, Mixture | None]]) -> Mixture | None:
    """Of several models as one ensemble, each of so many members: every member counts as a model of one does, on
    average."""
    if all(mixture is None for _, mixture in parts):
        return None
    return mixture_of([weight * count for count, mixture in parts for weight in mixture or [1 / count] * count])
