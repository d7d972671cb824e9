"""Predictions → one row of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from hydrasurgeon.measuring.reading import Reading
from hydrasurgeon.measuring.report import (
    Cost,
    Diversity,
    IdResult,
    OodAverage,
    OodResult,
    Result,
    SetAverage,
    SetResult,
)
from hydrasurgeon.measuring.sets import LabelledSet, parse_ood, parse_shift
from hydrasurgeon.measuring.shifts import averaged, shifted

if TYPE_CHECKING:
    from torch import Tensor

    from hydrasurgeon.measuring.answers import Answered
    from hydrasurgeon.measuring.predictions import Predictions

FOREIGN = ("auroc", "fpr95", "aupr", "aupr_id")
"""Metrics of OOD detection, which have means over data sets."""


def result(
    predictions: Predictions,
    *,
    ood_score: str = "msp",
    temperature: float = 1.0,
    reading: Reading | None = None,
    keep: list[Answered] | None = None,
) -> Result:
    """All metrics of one model; `reading` instead of a score and a temperature alone.

    What they were made of, sample by sample, is put into `keep`.
    """
    from hydrasurgeon.measuring import metrics
    from hydrasurgeon.measuring.answers import answered, summary
    from hydrasurgeon.measuring.ood_intervals import ood_intervals

    reading = reading or Reading(temperature, ood_scores=(ood_score,))
    row = answered(predictions, reading)
    if keep is not None:
        keep.append(row)
    shift = [shifted(s.name, s.severity, s.logits, s.labels, reading) for s in predictions.shift]
    ends: list[dict[str, tuple[float, float]]] = [{} for _ in row.foreign]
    of_groups: dict[str, dict[str, tuple[float, float]]] = {}
    if reading.ci is not None:
        ends, of_groups = ood_intervals(row, level=reading.ci, seed=reading.seed)
    ood = []
    for each, ci in zip(row.foreign, ends, strict=True):
        auroc = {kind: metrics.auroc(row.scores[kind], each.scores[kind]) for kind in reading.ood_scores[1:]}
        values = metrics.ood_metrics(row.scores[row.used], each.scores[row.used])
        ood.append(
            OodResult.model_validate(
                {
                    "name": each.name,
                    "group": each.group,
                    "n": len(each.scores[row.used]),
                    "scores": auroc or None,
                    "ci": ci or None,
                }
                | values
            )
        )
    groups: dict[Literal["near", "far", "all"], list[OodResult]] = {
        "near": [o for o in ood if o.group == "near"],
        "far": [o for o in ood if o.group == "far"],
        "all": ood,
    }
    return Result(
        name=predictions.name,
        kind=predictions.kind,
        members=predictions.members,
        id=summary(row.inside, reading),
        ood=tuple(ood),
        ood_average={name: _average(group, of_groups.get(name)) for name, group in groups.items() if group},
        shift=tuple(shift),
        shift_average=averaged(shift),
        diversity=Diversity(
            mi=float(row.inside.mutual_information.mean()), disagreement=float(row.inside.disagreement.mean())
        ),
        cost=predictions.cost,
    )


def inside(logits: Tensor, labels: Tensor, reading: Reading) -> IdResult:
    """Quality, calibration and selective risk on the ID set."""
    from hydrasurgeon.measuring.answers import answers, summary

    return summary(answers(logits, labels, reading), reading)


def rehearsed(
    name: str, labelled: Sequence[LabelledSet], ood: Sequence[str], shift: Sequence[str], reading: Reading | None = None
) -> Result:
    """A result with the keys that evaluating one model on these data sets gives, and numbers that mean nothing."""
    import torch

    from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet

    # One answer right and one wrong: some measures need both.
    logits, labels = torch.eye(2)[:, None], torch.zeros(2, dtype=torch.int64)
    reading = reading or Reading()
    scores = dict.fromkeys(reading.ood_scores, torch.zeros(2))
    foreign = [parse_ood(text)[:2] for text in ood]
    shifted = [parse_shift(text)[:2] for text in shift]
    alone = result(
        Predictions(
            name,
            "",
            logits,
            labels,
            tuple(OodSet(called, group, logits, scores) for group, called in foreign),
            tuple(ShiftSet(*about, logits, labels) for about in shifted),
            Cost(params=0, macs=0, latency_ms=None),
            scores,
        ),
        reading=reading,
    )
    first, *others = labelled
    rest = [SetResult(name=each.name, **alone.id.model_dump()) for each in others]
    return over_sets(alone, rest, first=first.name) if rest else alone


def over_sets(on_first: Result, others: Sequence[SetResult], *, first: str) -> Result:
    """A result on the data set called `first`, joined by those on others."""
    sets = (SetResult(name=first, **on_first.id.model_dump()), *others)
    mean = SetAverage(
        **{name: sum(getattr(each, name) for each in sets) / len(sets) for name in SetAverage.model_fields}
    )
    return on_first.model_copy(update={"sets": sets, "sets_average": mean})


def _average(group: Sequence[OodResult], ci: dict[str, tuple[float, float]] | None = None) -> OodAverage:
    """The mean over data sets, each counting the same."""
    means = {name: sum(getattr(o, name) for o in group) / len(group) for name in FOREIGN}
    return OodAverage.model_validate({**means, "ci": ci})
