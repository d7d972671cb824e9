"""Shifted sets: data corrupted on the way, averages by severity (paper, Tables 13 and 14), errors beside the first
row's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hydrasurgeon.errors import UsageError
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.measuring.reading import Reading
from hydrasurgeon.measuring.report import Result, ShiftAverage, ShiftLevel, ShiftResult
from hydrasurgeon.visible import visible

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.data.corruptions import Corruption
    from hydrasurgeon.measuring.sets import DataSets

DIGITS = 12
"""Of a share of errors: what lies behind is left of sums of accuracies, and would make a share of it boundless."""
MOST_SHOWN = 4
"""Names that a note lists."""


def kind_read(manifest: Manifest) -> Literal["image", "text"]:
    """What the model's inputs are."""
    return "image" if "vision" in manifest.towers else "text"


def as_shifts(corruptions: Sequence[Corruption], shift: Sequence[str], spec: str) -> list[str]:
    """Corruptions of the data as `--shift` would name them, all of one name and severity but once."""
    entries = [f"{each.name}:{each.severity}={spec}" for each in corruptions]
    names = {entry.partition("=")[0] for entry in shift}
    for entry in entries:
        name = entry.partition("=")[0]
        if name in names:
            raise UsageError(f"--corrupt {name}: --shift {name} is given too", hint="Call that one otherwise.")
    return entries


def shifted(name: str, severity: int | None, logits: Tensor, labels: Tensor, reading: Reading) -> ShiftResult:
    """What is left under one shift."""
    from hydrasurgeon.measuring import metrics
    from hydrasurgeon.measuring.answers import in_pieces

    accuracy = brier = 0.0
    for rows, truth in in_pieces(logits, labels):
        probs, share = reading.probs(rows), len(rows) / len(labels)
        accuracy += share * metrics.accuracy(probs, truth)
        brier += share * metrics.brier(probs, truth)
    return ShiftResult(name=name, severity=severity, accuracy=accuracy, brier=brier)


def corrupted(sets: DataSets, corruptions: Sequence[Corruption], seed: int) -> DataSets:
    """The same data sets, and the labelled one under every corruption besides."""
    from hydrasurgeon.data.corruptions import Corrupted

    made = [(each.name, each.severity, Corrupted(sets.id, each, seed)) for each in corruptions]
    return replace(sets, shift=(*sets.shift, *made))


def with_shifts(
    row: Result,
    sets: Sequence[tuple[str, int | None, Any]],
    logits: Callable[[Any], tuple[Tensor, Tensor]],
    reading: Reading,
) -> Result:
    """The same result under further shifts, one after another: of seventy-five, no memory holds all logits."""
    more = [shifted(name, severity, *logits(samples), reading) for name, severity, samples in sets]
    together = (*row.shift, *more)
    return row.model_copy(update={"shift": together, "shift_average": averaged(together)})


def averaged(shift: Sequence[ShiftResult]) -> ShiftAverage | None:
    """Means by severity and over severities, of the sets that have one."""
    rows: dict[int, list[ShiftResult]] = {}
    for each in sorted((s for s in shift if s.severity is not None), key=lambda s: s.severity or 0):
        rows.setdefault(each.severity or 0, []).append(each)
    if not rows:
        return None
    levels = {
        severity: ShiftLevel(
            accuracy=sum(s.accuracy for s in level) / len(level),
            brier=sum(s.brier for s in level) / len(level),
            sets=len(level),
        )
        for severity, level in rows.items()
    }
    return ShiftAverage(
        accuracy=sum(level.accuracy for level in levels.values()) / len(levels),
        brier=sum(level.brier for level in levels.values()) / len(levels),
        severities=levels,
    )


def with_mce(results: Sequence[Result]) -> list[Result]:
    """Every result with its corruption error, where it was measured under the same shifts as the first."""
    if not results or results[0].shift_average is None:
        return list(results)
    first = _errors(results[0])
    joined = []
    for result in results:
        errors, average = _errors(result), result.shift_average
        if average is not None and errors.keys() == first.keys() and all(first.values()):
            mce = sum(errors[name] / first[name] for name in first) / len(first)
            average = average.model_copy(update={"mce": mce})
        joined.append(result.model_copy(update={"shift_average": average}))
    return joined


def lacking_mce(results: Sequence[Result]) -> list[str]:
    """Which results have no corruption error, and why; `results` as `with_mce` gives them."""
    measured = [r for r in results if r.shift_average is not None]
    without = [r for r in measured if r.shift_average is not None and r.shift_average.mce is None]
    if not without:
        return []
    first = results[0]
    beside = f"mCE is not defined: {visible(first.name)}, the first row, whose errors it divides by,"
    if first.shift_average is None:
        return [f"{beside} was measured under no shift of known severity"]
    flawless = [name for (name, _), errors in _errors(first).items() if not errors]
    if flawless:
        return [f"{beside} makes no error under {_listed(flawless)}"]
    return [
        f"mCE is not defined for {_listed([r.name for r in without])}: measured under other shifts than"
        f" {visible(first.name)}, the first row"
    ]


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else []
    return ", ".join([*map(visible, names[:MOST_SHOWN]), *more])


def _errors(result: Result) -> dict[tuple[str, int], float]:
    """(shift, how many severities) → the sum of its errors over severities."""
    errors: dict[str, list[float]] = {}
    for each in result.shift:
        if each.severity is not None:
            errors.setdefault(each.name, []).append(round(1 - each.accuracy, DIGITS))
    return {(name, len(values)): sum(values) for name, values in errors.items()}
