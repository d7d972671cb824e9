"""Criteria by name; each is imported when it is first used. Adding one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hydrasurgeon.criteria.base import HeadScores, Removal, Subject, Verdict
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean, imported

__all__ = ["CIRCUIT", "CRITERIA", "OBJECTIVES", "WITHOUT_DATA", "criterion", "score_key"]

CRITERIA = {
    "taylor": "hydrasurgeon.criteria.taylor:score",
    "fisher": "hydrasurgeon.criteria.fisher:score",
    "magnitude": "hydrasurgeon.criteria.magnitude:score",
    "random": "hydrasurgeon.criteria.random:score",
    "circuit": "hydrasurgeon.criteria.circuits.criterion:score",
    "cahp": "hydrasurgeon.criteria.cahp.criterion:score",
}
"""Name → where the criterion stands."""
CIRCUIT = "circuit"
"""The criterion that ranks heads by removing them."""
OBJECTIVES = ("acc", "ood", "avg")
"""What a circuit can keep."""
# These look at the weights, or at nothing; the others need labelled data.
WITHOUT_DATA = {"magnitude", "random"}


def score_key(method: str, objective: str | None = None, *, recorded: Collection[str] = ()) -> str:
    """Under which name scores stand in the manifest: each objective of `circuit` under its own, `circuit-avg`.

    Without an objective it is the only one recorded, or else avg.
    """
    if method.partition("-")[0] != CIRCUIT:
        if objective is not None:
            raise UsageError(f"--objective {objective}: --method {method} has none")
        return method
    _, dash, named = method.partition("-")
    if dash and objective not in (None, named):
        raise UsageError(f"--objective {objective}: --method {method} names another")
    wanted = named if dash else objective
    if wanted is None:
        circuits = [key for key in recorded if key.startswith(f"{CIRCUIT}-")]
        if len(circuits) > 1:
            raise UsageError(
                f"--method circuit: the manifest has {' and '.join(sorted(circuits))}",
                hint="Name one with --objective.",
            )
        return circuits[0] if circuits else f"{CIRCUIT}-avg"
    if wanted not in OBJECTIVES:
        raise UsageError(
            f"--objective {wanted}: no such objective", hint=f"Available: {', '.join(OBJECTIVES)}."
        )
    return f"{CIRCUIT}-{wanted}"


def criterion(name: str) -> Callable[[Subject], HeadScores | Verdict | Removal]:
    """The criterion behind a method's name or a score's key (`circuit-avg`)."""
    if name.startswith(f"{CIRCUIT}-"):
        name = CIRCUIT
    if name not in CRITERIA:
        raise UsageError(
            f"--method {name}: no such criterion{did_you_mean(name, CRITERIA)}",
            hint=f"Available: {', '.join(CRITERIA)}.",
        )
    judge: Callable[[Subject], HeadScores | Verdict | Removal] = imported(CRITERIA[name])
    return judge
