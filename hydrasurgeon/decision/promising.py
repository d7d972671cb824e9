"""Take thresholds by samples that certify; or say what these could promise instead."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hydrasurgeon.decision.split import certified
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.decided import Abstention, Limits
from hydrasurgeon.lookup import percent
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.statistics.abstain import (
    Unpromised,
    least_risk,
    rows_needed,
    samples_needed,
    two_digits,
)
from hydrasurgeon.tasks.base import Certifying, Task

RISKS = [per_mille / 1000 for per_mille in (*range(1, 10), *range(10, 1000, 10))]
"""Risks that are tried in place of one that cannot be promised."""
MOSTLY = 0.9
"""The fraction of familiar samples of which fewer answered are worth a note."""


def promised(task: Task, by: Certifying, rows: int) -> dict[str, Any]:
    """Take the thresholds, as fields of a `Decision`; `rows` are those of VAL."""
    try:
        return task.promised(by)
    except Unpromised as error:
        risk = by.promise.risk
        assert risk is not None
        smallest = next((more for more in RISKS if more > risk and _keeps(task, by, more)), None)
        share = max(float(by.parts[0].familiar.mean()), 1e-9)
        needed = None if error.needed is None else int(error.needed / share)
        raise DataError(
            f"--risk {risk:g}: {rows:,} rows cannot promise it",
            hint=" ".join([_possible(rows, smallest), _more(risk, rows, needed)]),
        ) from error


def _keeps(task: Task, by: Certifying, risk: float) -> bool:
    try:
        task.promised(replace(by, promise=by.promise.but(risk=risk)))
    except Unpromised:
        return False
    return True


def check_risk(rows: int, promise: CalibrateOptions, *, certifying: int | None = None) -> None:
    """Refuse a risk that so many rows cannot promise even of a model that is never wrong; two thirds
    of them certify, or as many as is said.
    """
    assert promise.risk is not None
    certifying = certified(rows) if certifying is None else certifying
    familiar = round(certifying * (1 - promise.id_flagged))
    if familiar >= samples_needed(promise.risk):
        return
    needed = rows_needed(promise.risk, 1.0, promise.id_flagged)
    smallest = math.ceil(1000 * least_risk(familiar)) / 1000
    raise DataError(
        f"--risk {promise.risk:g}: {rows:,} rows cannot promise it, even if no answer is wrong",
        hint=(
            f"With these {rows:,} rows at best {percent(smallest)} can be promised, if no answer is wrong. "
            f"{_more(promise.risk, rows, needed)}"
        ),
    )


def _possible(rows: int, smallest: float | None) -> str:
    if smallest is None:
        return f"With these {rows:,} rows no risk can be promised."
    return (
        f"With these {rows:,} rows the smallest risk that can be promised is {percent(smallest)}."
    )


def _more(risk: float, rows: int, needed: int | None) -> str:
    if needed is None:
        return f"More rows do not help: even the surest answers are wrong in about {percent(risk)} of cases or more."
    return f"A risk of {percent(risk)} needs about {two_digits(max(needed, rows + rows // 5))} such rows."


def set_aside(task: Task, by: Certifying, abstain: Abstention) -> str | None:
    """Say how many rows of VAL would leave none unanswered, where more than a tenth is."""
    flagged = by.promise.id_flagged
    if abstain.coverage >= MOSTLY * (1 - flagged):
        return None
    left = f"--risk {abstain.risk:g} leaves {100 * (1 - abstain.coverage):.0f} % of the rows unanswered"
    right = task.graded(by.fitting).joined(task.graded(by.parts[0])).right
    accuracy = float(right.mean())
    needed = rows_needed(abstain.risk, accuracy, flagged)
    if needed is None:
        wrong = 1 - float(task.graded(by.parts[0]).right.mean())
        than = "more than" if wrong > abstain.risk else "nearly"
        return (
            f"{left}: if it answered all that are familiar, {percent(wrong)} would be wrong, {than} "
            f"the {percent(abstain.risk)} that you allow"
        )
    return f"{left}: give about {two_digits(needed)} rows in all to answer nearly all of them"


NAMED = {
    "conformal": "sets",
    "abstain": "abstention",
    "limits": "limits of yes and no",
    "cover": "entities that are covered",
}
"""Names of the thresholds of a `Decision` in notes."""


def with_copies(
    task: Task, by: Certifying, thresholds: dict[str, Any], copies: int, rows: int
) -> str:
    """Say that thresholds hold with and without copies, and which are stricter with them."""
    note = f"{copies:,} of these {rows:,} rows are copies of others; the promises hold with and without them"
    stricter = {}
    for kind, part in zip(("without", "with"), by.parts, strict=True):
        looser = _differing(task, replace(by, parts=[part]), thresholds)
        if looser:
            stricter[kind] = ", ".join(NAMED[name] for name in looser)
    reasons = "; ".join(f"stricter {kind} them: {names}" for kind, names in stricter.items())
    return f"{note} ({reasons})" if reasons else note


def _differing(task: Task, by: Certifying, thresholds: dict[str, Any]) -> list[str]:
    """List the thresholds that these parts alone would take otherwise."""
    try:
        alone = task.promised(by)
    except Unpromised:
        return []
    return [name for name in NAMED if _threshold(alone, name) != _threshold(thresholds, name)]


def _threshold(thresholds: dict[str, Any], name: str) -> Any:
    rule = thresholds.get(name)
    return (rule.yes, rule.no) if isinstance(rule, Limits) else getattr(rule, "threshold", None)
