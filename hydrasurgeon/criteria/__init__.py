"""Criteria by name; each is imported when it is first used. Adding one is a file here and a line below."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module

from hydrasurgeon.criteria.base import HeadScores, Subject, Verdict
from hydrasurgeon.errors import UsageError

__all__ = ["CRITERIA", "WITHOUT_DATA", "criterion"]

CRITERIA = {
    "taylor": "hydrasurgeon.criteria.taylor:score",
    "fisher": "hydrasurgeon.criteria.fisher:score",
    "magnitude": "hydrasurgeon.criteria.magnitude:score",
    "random": "hydrasurgeon.criteria.random:score",
    "cahp": "hydrasurgeon.criteria.cahp:score",
}
# These look at the weights, or at nothing; the others need labelled data.
WITHOUT_DATA = {"magnitude", "random"}


def criterion(name: str) -> Callable[[Subject], HeadScores | Verdict]:
    if name not in CRITERIA:
        near = difflib.get_close_matches(name, CRITERIA, n=1)
        raise UsageError(
            f"--method {name}: no such criterion" + (f" (did you mean {near[0]}?)" if near else ""),
            hint=f"Available: {', '.join(CRITERIA)}.",
        )
    module, function = CRITERIA[name].split(":")
    found: Callable[[Subject], HeadScores | Verdict] = getattr(import_module(module), function)
    return found
