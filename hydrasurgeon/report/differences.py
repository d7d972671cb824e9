"""Differences of models from the reference, by paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

from hydrasurgeon.measuring.measure import Row
from hydrasurgeon.measuring.model_differences import Difference, compared, is_paired
from hydrasurgeon.measuring.results import ABSENT, COMPARED
from hydrasurgeon.report.columns import Cell, MetricColumn, ReportTable

OF_OOD = ("auroc", "fpr95")
"""Metrics of OOD detection."""
SPOILED_BY = {"OOD score": OF_OOD, "calibration": ("brier", "nll", "ece", *OF_OOD)}
"""Metrics that are not compared, by the property in which two models differ."""
FEWEST = 20
"""Minimum number of samples of a comparison: resamples of fewer repeat so few answers that their
interval is too narrow.
"""
NOTE = "Where the interval holds 0, the difference may be chance."


def differences(row: Row, reference: Row, *, level: float, seed: int = 0) -> tuple[Difference, ...]:
    """Return the differences of comparable metrics; none if the models answered other samples, or
    too few.
    """
    row_answers, reference_answers = row.answers, reference.answers
    if row_answers.inside.count < FEWEST or not is_paired(row_answers, reference_answers):
        return ()
    spoiled = {
        metric for aspect in row_answers.unlike(reference_answers) for metric in SPOILED_BY[aspect]
    }
    if any(ood.n < FEWEST for ood in row.result.ood):
        spoiled.update(OF_OOD)
    all_differences = compared(row_answers, reference_answers, level=level, seed=seed)
    return tuple(difference for difference in all_differences if difference.metric not in spoiled)


def word_of(differing: Sequence[Difference]) -> str:
    """Summarize differences in a word."""
    judgements = {difference.judgement for difference in differing}
    if {"better", "worse"} <= judgements:
        return "mixed"
    return next((word for word in ("better", "worse", "equal") if word in judgements), "unknown")


def table_of(names: Sequence[str], differing: Sequence[Sequence[Difference]]) -> ReportTable:
    """Return a table with a row for each model and a column for each compared metric."""
    columns = []
    for metric in dict.fromkeys(difference.metric for row in differing for difference in row):
        cells = []
        for row in differing:
            match = next((difference for difference in row if difference.metric == metric), None)
            if match is None:
                cells.append(Cell(ABSENT))
                continue
            value, low, high = (f"{number:+.4f}" for number in (match.value, match.low, match.high))
            verdict = "" if match.judgement == "equal" else match.judgement
            cells.append(Cell(value, low=low, high=high, verdict=verdict))
        columns.append(MetricColumn(COMPARED[metric], "", tuple(cells)))
    return ReportTable("Differences", tuple(names), tuple(columns), NOTE)
