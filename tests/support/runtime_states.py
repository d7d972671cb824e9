"""Decision states made by hand, for models that nobody has calibrated."""

from __future__ import annotations

from hydrasurgeon.decision.conformal import Conformal
from hydrasurgeon.decision.gate import Cascade, Gate
from hydrasurgeon.decision.state import OodRule, State


def open_gate(order: tuple[int, ...], low: float = -1.0) -> State:
    """A cascade in this order; every row goes on whose msp is at least `low`."""
    lac = Conformal("lac", 0.9, 0.5)
    cascade = Cascade(order, 1, Gate("msp", low=low), 1.0, 0.5, lac, None)
    return State(1.0, None, OodRule("msp", 0.5, 0.05), lac, None, cascade)
