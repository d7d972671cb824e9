"""`eval --assert`: limits that numbers of the report must keep, so that CI can hold a model to them.

    [RESULT:]PATH OPERATOR NUMBER                       id.ece<=0.02     hydra:cost.macs<2e9
    [RESULT:]PATH OPERATOR OTHER[:PATH][+NUMBER]        next:id.accuracy>=base-0.01

A path is the way to a number through a result of the JSON report; in lists it goes by name, in
shifts by NAME:SEVERITY. OTHER is another result of the same report. `differences.METRIC.low`,
`.high` and `.difference` are those of a result from the reference.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydrasurgeon.errors import CheckFailed, UsageError
from hydrasurgeon.lookup import format_number, nearest
from hydrasurgeon.measuring.results import Asserted, Report, Result

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
"""Comparison functions, by the operator as it is typed."""
DIFFERENCES = "differences"
"""First part of the path of a paired difference."""
ROOTS = [*(name for name in Result.model_fields if name not in ("name", "kind")), DIFFERENCES]
"""The parts of a result that hold numbers."""
PATH = rf"(?:{'|'.join(ROOTS)})(?:\.[^<>=]+?)?"
FORM = re.compile(
    rf"(?:(?P<result>.+?):)?(?P<path>{PATH})\s*(?P<operator>{'|'.join(OPERATORS)})\s*(?P<limit>[^<>=]+)"
)
"""A limit as it is typed."""
BEHIND_NAME = re.compile(
    rf"(?::(?P<path>{PATH}))?\s*(?P<offset>[+-]\s*[0-9.]+(?:[eE][+-]?[0-9]+)?)?"
)
"""Pattern of the text after OTHER."""


@dataclass(frozen=True)
class Bound:
    """A limit that is a number of another result, and what is added to it."""

    result: str
    path: str
    offset: float = 0.0


@dataclass(frozen=True)
class Assertion:
    """One limit, as it was typed and as it was read."""

    text: str
    result: str | None
    path: str
    operator: str
    limit: float | str | Bound
    """A number, or a text until names of results are known."""

    def holds(self, value: float | None, limit: float | None) -> bool:
        """Return False for what was not measured or is not a number."""
        if value is None or limit is None:
            return False
        return OPERATORS[self.operator](value, limit)


def parse_assertion(text: str) -> Assertion:
    """Read a limit; UsageError where it has another form."""
    match = FORM.fullmatch(text.strip())
    if match is None:
        raise _misread(text)
    limit: float | str = match["limit"].strip()
    try:
        limit = float(limit)
    except ValueError:
        return Assertion(text.strip(), match["result"], match["path"], match["operator"], limit)
    if not math.isfinite(limit):
        raise _misread(text)
    return Assertion(text.strip(), match["result"], match["path"], match["operator"], limit)


def _misread(text: str) -> UsageError:
    return UsageError(
        f"--assert {text}: not [NAME:]PATH, one of {' '.join(OPERATORS)}, and a number or a result",
        hint='Such as --assert "id.ece<=0.02" or --assert "next:id.accuracy>=base-0.01", in quotes.',
    )


def with_bounds(assertions: Sequence[Assertion], names: Sequence[str]) -> list[Assertion]:
    """Return the limits with the results that they name; UsageError where there is no such result."""
    resolved = []
    for assertion in assertions:
        if assertion.result not in (None, *names):
            raise UsageError(
                f"--assert {assertion.text}: no result named {assertion.result}",
                hint=_choice(str(assertion.result), names),
            )
        limit = assertion.limit
        if isinstance(limit, str):
            bounds = (_bound(limit, name, assertion.path) for name in sorted(names, key=len)[::-1])
            bound = next(filter(None, bounds), None)
            if bound is None:
                raise UsageError(
                    f"--assert {assertion.text}: {limit} is neither a number nor a result",
                    hint=f"{_choice(limit, names)} Such as {names[0]}, {names[0]}-0.01.",
                )
            limit = bound
        resolved.append(replace(assertion, limit=limit))
    return resolved


def _bound(text: str, name: str, path: str) -> Bound | None:
    """Read a limit as a number of this result, of the same path if none is given."""
    match = BEHIND_NAME.fullmatch(text.removeprefix(name))
    if not text.startswith(name) or match is None:
        return None
    try:
        offset = float((match["offset"] or "0").replace(" ", ""))
    except ValueError:
        return None
    return Bound(name, match["path"] or path, offset)


def paths_of(result: Result) -> dict[str, float | None]:
    """Return every number of a result by its path; records that are absent have no paths."""
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


def _choice(word: str, words: Sequence[str]) -> str:
    near = "".join(f"Did you mean {candidate}? " for candidate in nearest(word, words))
    return f"{near}There are {', '.join(words)}."


def judged(assertions: Sequence[Assertion], report: Report) -> tuple[Asserted, ...]:
    """Hold each limit against each result it is about."""
    numbers = {result.name: _numbers_of(result, report) for result in report.results}
    references = {difference.reference for difference in report.differences or ()}
    asserted = []
    for assertion in assertions:
        limit = _limit_of(assertion, numbers)
        for name in numbers:
            compares = assertion.path.startswith(f"{DIFFERENCES}.")
            if assertion.result not in (None, name) or (compares and name in references):
                continue
            value = numbers[name].get(assertion.path)
            record = Asserted(
                assertion=assertion.text,
                result=name,
                value=value,
                limit=limit if isinstance(assertion.limit, Bound) else None,
                holds=assertion.holds(value, limit),
            )
            asserted.append(record)
    return tuple(asserted)


def _limit_of(
    assertion: Assertion, numbers: Mapping[str, Mapping[str, float | None]]
) -> float | None:
    """Return the number that a limit stands for; None where the other result has none."""
    bound = assertion.limit
    if isinstance(bound, Bound):
        other = numbers[bound.result].get(bound.path)
        return None if other is None else other + bound.offset
    return float(bound)


def _numbers_of(result: Result, report: Report) -> dict[str, float | None]:
    """Return the numbers of a result and its differences from the reference, by path."""
    differences = {
        f"{DIFFERENCES}.{difference.metric}.{end}": getattr(difference, end)
        for difference in report.differences or ()
        if difference.name == result.name
        for end in ("difference", "low", "high")
    }
    return paths_of(result) | differences


def require(asserted: Sequence[Asserted], report: Report) -> None:
    """Raise CheckFailed with each broken limit and the value that broke it; UsageError where no
    result has the number.
    """
    names = [result.name for result in report.results]
    for text in dict.fromkeys(record.assertion for record in asserted):
        (assertion,) = with_bounds([parse_assertion(text)], names)
        records = [record for record in asserted if record.assertion == text]
        if all(record.value is None for record in records):
            raise _unmeasured(assertion, assertion.result, assertion.path, report)
        bound = assertion.limit
        if isinstance(bound, Bound) and all(record.limit is None for record in records):
            raise _unmeasured(assertion, bound.result, bound.path, report)
    broken = [record for record in asserted if not record.holds]
    details = []
    for record in broken:
        named = "" if record.assertion.startswith(f"{record.result}:") else f"{record.result}: "
        value = "it was not measured"
        if record.value is not None:
            value = f"it is {format_number(record.value, 6)}"
        if record.limit is not None:
            value += f" and the limit {format_number(record.limit, 6)}"
        details.append(f"{named}{record.assertion}, but {value}")
    if broken:
        verb = "does" if len(broken) == 1 else "do"
        raise CheckFailed(
            f"{len(broken)} of {len(asserted)} assertions {verb} not hold", details=details
        )


def _unmeasured(assertion: Assertion, name: str | None, path: str, report: Report) -> UsageError:
    """Say what the results have, of the same part where they have that."""
    if path == "cost.latency_ms":
        return UsageError(f"--assert {assertion.text}: no time was measured", hint="Give --time.")
    paths = {
        key: None
        for result in report.results
        if name in (None, result.name)
        for key, value in _numbers_of(result, report).items()
        if value is not None and ".ci." not in key
    }
    part = path.split(".")[0] + "."
    alike = [key for key in paths if key.startswith(part)]
    return UsageError(
        f"--assert {assertion.text}: the report has no {path}",
        hint=_choice(path, alike or [*paths]),
    )
