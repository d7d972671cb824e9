"""How models differ from the reference, by paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

from hydrasurgeon.measuring.bootstrap import Difference, compared, is_paired
from hydrasurgeon.measuring.measure import Row
from hydrasurgeon.measuring.results import ABSENT, COMPARED
from hydrasurgeon.report.columns import Cell, Column, Table

OF_OOD = ("auroc", "fpr95")
"""Metrics of OOD detection."""
SPOILED_BY = {"OOD score": OF_OOD, "calibration": ("brier", "nll", "ece", *OF_OOD)}
"""What two models do not have in common -> the metrics that are then not compared."""
FEWEST = 20
"""Samples that a comparison takes: resamples of fewer repeat so few answers that their interval is
too narrow.
"""
NOTE = "The interval of a difference that is neither better nor worse holds 0."


def differences(row: Row, reference: Row, *, level: float, seed: int = 0) -> tuple[Difference, ...]:
    """Of what can be compared: nothing where the two answered for other samples, or for too few."""
    mine, theirs = row.answers, reference.answers
    if mine.inside.count < FEWEST or not is_paired(mine, theirs):
        return ()
    spoiled = {metric for what in mine.unlike(theirs) for metric in SPOILED_BY[what]}
    if any(each.n < FEWEST for each in row.result.ood):
        spoiled.update(OF_OOD)
    every = compared(mine, theirs, level=level, seed=seed)
    return tuple(each for each in every if each.metric not in spoiled)


def word_of(differing: Sequence[Difference]) -> str:
    """All differences in a word."""
    judgements = {each.judgement for each in differing}
    if {"better", "worse"} <= judgements:
        return "mixed"
    return next((word for word in ("better", "worse", "equal") if word in judgements), "unknown")


def table_of(names: Sequence[str], differing: Sequence[Sequence[Difference]]) -> Table:
    """A row for each model, a column for each metric that is compared."""
    columns = []
    for metric in dict.fromkeys(each.metric for row in differing for each in row):
        cells = []
        for row in differing:
            found = next((each for each in row if each.metric == metric), None)
            if found is None:
                cells.append(Cell(ABSENT))
                continue
            value, low, high = (f"{each:+.4f}" for each in (found.value, found.low, found.high))
            verdict = "" if found.judgement == "equal" else found.judgement
            cells.append(Cell(value, low=low, high=high, verdict=verdict))
        columns.append(Column(COMPARED[metric], "", tuple(cells)))
    return Table("Differences", tuple(names), tuple(columns), NOTE)
