"""Minimise a loss in numpy: of bag-of-words models, Platt scaling, deviations of numbers and blends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy import ndarray

from hydrasurgeon.deadline import check_deadline
from hydrasurgeon.run.shapes import Float


def minimize(
    loss: Callable[[Float[ndarray, " part"]], Any],
    start: Float[ndarray, " part"],
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    gradient: bool = True,
    steps: int = 500,
    change: float = 2.2e-9,
    slope: float = 1e-5,
) -> Float[ndarray, " part"]:
    """Return the point at which a smooth function is least, by L-BFGS.

    The loss returns its value and its gradient, or the value alone without `gradient`. The search ends
    after so many steps, where a step changes the loss by less than `change` of it, or where no part of
    the gradient is larger than `slope`.
    """
    from scipy import optimize

    def checked(point: Float[ndarray, " part"]) -> Any:
        check_deadline()
        return loss(point)

    solution = optimize.minimize(
        checked,
        start,
        jac=gradient,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps, "ftol": change, "gtol": slope},
    )
    point: ndarray = solution.x
    return point
