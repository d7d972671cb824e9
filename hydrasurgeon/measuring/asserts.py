"""`eval --assert`: limits that numbers of the report must keep, so that CI can hold a model to
them.

    [RESULT:]PATH OPERATOR NUMBER     id.ece<=0.02     ood.mnist.auroc>=0.9     hydra:cost.macs<2e9

A path is the way to a number through a result of the JSON report; in lists it goes by name, in
shifts by NAME:SEVERITY.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hydrasurgeon.errors import CheckFailed, UsageError
from hydrasurgeon.lookup import format_number, nearest
from hydrasurgeon.measuring.results import Asserted, Result

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
"""How a number is held to a limit, by the operator as it is typed."""
ROOTS = [name for name in Result.model_fields if name not in ("name", "kind")]
"""The parts of a result that hold numbers."""
FORM = re.compile(
    rf"(?:(?P<result>.+?):)?(?P<path>(?:{'|'.join(ROOTS)})(?:\.[^<>=]+?)?)"
    rf"\s*(?P<operator>{'|'.join(OPERATORS)})\s*(?P<number>[^<>=\s]+)"
)
"""A limit as it is typed: [NAME:]PATH OPERATOR NUMBER."""


@dataclass(frozen=True)
class Assertion:
    """One limit, as it was typed and as it was read."""

    text: str
    result: str | None
    path: str
    operator: str
    limit: float

    def holds(self, value: float | None) -> bool:
        """What was not measured, or is not a number, keeps no limit."""
        return value is not None and OPERATORS[self.operator](value, self.limit)


def parse_assertion(text: str) -> Assertion:
    match = FORM.fullmatch(text.strip())
    try:
        limit = float(match["number"]) if match else math.nan
    except ValueError:
        limit = math.nan
    if match is None or not math.isfinite(limit):
        raise UsageError(
            f"--assert {text}: not [NAME:]PATH, one of {' '.join(OPERATORS)}, and a number",
            hint='Such as --assert "id.ece<=0.02" or --assert "hydra:ood_average.all.auroc>=0.85", in quotes.',
        )
    return Assertion(text.strip(), match["result"], match["path"], match["operator"], limit)


def paths_of(result: Result) -> dict[str, float | None]:
    """Every number of a result, by its path; where there is no record at all, there is no path."""
    parts = result.model_dump(exclude={"name", "kind"})
    return dict(_numbers({key: part for key, part in parts.items() if part is not None}, ()))


def _numbers(value: Any, way: tuple[str, ...]) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _numbers(entry, (*way, str(key)))
    elif isinstance(value, list | tuple):
        for at, entry in enumerate(value):
            name = entry.get("name", at) if isinstance(entry, dict) else at
            severity = entry.get("severity") if isinstance(entry, dict) else None
            step = str(name) if severity is None else f"{name}:{severity}"
            yield from _numbers(entry, (*way, step))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield ".".join(way), value


def check_names(assertions: Sequence[Assertion], names: Sequence[str]) -> None:
    """Refuse a limit of a result that there is not."""
    for each in assertions:
        if each.result not in (None, *names):
            raise UsageError(
                f"--assert {each.text}: no result named {each.result}",
                hint=_choice(str(each.result), names),
            )


def _choice(word: str, words: Sequence[str]) -> str:
    near = "".join(f"Did you mean {each}? " for each in nearest(word, words))
    return f"{near}There are {', '.join(words)}."


def judged(assertions: Sequence[Assertion], results: Sequence[Result]) -> tuple[Asserted, ...]:
    """Each limit on each result it is about."""
    asserted = []
    for each in assertions:
        for result in results:
            if each.result in (None, result.name):
                value = paths_of(result).get(each.path)
                holds = each.holds(value)
                asserted.append(
                    Asserted(assertion=each.text, result=result.name, value=value, holds=holds)
                )
    return tuple(asserted)


def require(asserted: Sequence[Asserted], results: Sequence[Result]) -> None:
    """A failed check that names each broken limit and the value that broke it; a wrong usage where no
    result has the number.
    """
    for text in dict.fromkeys(each.assertion for each in asserted):
        if all(each.value is None for each in asserted if each.assertion == text):
            raise _unmeasured(parse_assertion(text), results)
    broken = [each for each in asserted if not each.holds]
    details = []
    for each in broken:
        named = "" if each.assertion.startswith(f"{each.result}:") else f"{each.result}: "
        value = (
            "it was not measured" if each.value is None else f"it is {format_number(each.value, 6)}"
        )
        details.append(f"{named}{each.assertion}, but {value}")
    if broken:
        verb = "does" if len(broken) == 1 else "do"
        raise CheckFailed(
            f"{len(broken)} of {len(asserted)} assertions {verb} not hold", details=details
        )


def _unmeasured(assertion: Assertion, results: Sequence[Result]) -> UsageError:
    """It says what the results have, of the same part where they have that."""
    paths = {
        path: None
        for result in results
        if assertion.result in (None, result.name)
        for path, value in paths_of(result).items()
        if value is not None and ".ci." not in path
    }
    if assertion.path == "cost.latency_ms":
        return UsageError(f"--assert {assertion.text}: no time was measured", hint="Give --time.")
    part = assertion.path.split(".")[0] + "."
    alike = [path for path in paths if path.startswith(part)]
    return UsageError(
        f"--assert {assertion.text}: the report has no {assertion.path}",
        hint=_choice(assertion.path, alike or [*paths]),
    )
