"""Predictions → one row of the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from hydrasurgeon.measuring.report import (
    Cost,
    Diversity,
    IdResult,
    OodAverage,
    OodResult,
    Result,
    SetAverage,
    SetResult,
    ShiftResult,
)
from hydrasurgeon.measuring.sets import LabelledSet, parse_ood, parse_shift

if TYPE_CHECKING:
    from hydrasurgeon.measuring.predictions import Predictions

__all__ = ["over_sets", "rehearsed", "result"]


def result(
    predictions: Predictions,
    *,
    ood_score: str = "msp",
    temperature: float = 1.0,
) -> Result:
    """All metrics of one model."""
    from hydrasurgeon.measuring import metrics

    foreign = metrics.ood_score(predictions.logits, ood_score, temperature)
    ood = [
        OodResult.model_validate(
            {"name": s.name, "group": s.group, "n": len(s.logits)}
            | metrics.ood_metrics(foreign, metrics.ood_score(s.logits, ood_score, temperature))
        )
        for s in predictions.ood
    ]
    shift = []
    for s in predictions.shift:
        probs = metrics.mean_probs(s.logits, temperature)
        shift.append(
            ShiftResult(
                name=s.name,
                severity=s.severity,
                accuracy=metrics.accuracy(probs, s.labels),
                brier=metrics.brier(probs, s.labels),
            )
        )
    groups: dict[Literal["near", "far", "all"], list[OodResult]] = {
        "near": [o for o in ood if o.group == "near"], "far": [o for o in ood if o.group == "far"], "all": ood,
    }  # fmt: skip
    return Result(
        name=predictions.name,
        kind=predictions.kind,
        members=predictions.members,
        id=IdResult(
            n=len(predictions.labels),
            **metrics.id_metrics(predictions.logits, predictions.labels, temperature),
        ),
        ood=tuple(ood),
        ood_average={name: _average(group) for name, group in groups.items() if group},
        shift=tuple(shift),
        diversity=Diversity(
            mi=float(metrics.mutual_information(predictions.logits).mean()),
            disagreement=metrics.disagreement(predictions.logits),
        ),
        cost=predictions.cost,
    )


def rehearsed(
    name: str, labelled: Sequence[LabelledSet], ood: Sequence[str], shift: Sequence[str]
) -> Result:
    """A result with the keys that evaluating one model on these data sets gives, and numbers that mean nothing."""
    import torch

    from hydrasurgeon.measuring.predictions import OodSet, Predictions, ShiftSet

    logits, labels = torch.eye(2)[:, None], torch.arange(2)
    foreign = [parse_ood(text)[:2] for text in ood]
    shifted = [parse_shift(text)[:2] for text in shift]
    alone = result(
        Predictions(
            name,
            "",
            logits,
            labels,
            tuple(OodSet(called, group, logits) for group, called in foreign),
            tuple(ShiftSet(*about, logits, labels) for about in shifted),
            Cost(params=0, macs=0, latency_ms=None),
        )
    )
    first, *others = labelled
    rest = [SetResult(name=each.name, **alone.id.model_dump()) for each in others]
    return over_sets(alone, rest, first=first.name) if rest else alone


def over_sets(on_first: Result, others: Sequence[SetResult], *, first: str) -> Result:
    """A result on the data set called `first`, joined by those on others."""
    sets = (SetResult(name=first, **on_first.id.model_dump()), *others)
    mean = SetAverage(
        **{
            name: sum(getattr(each, name) for each in sets) / len(sets)
            for name in SetAverage.model_fields
        }
    )
    return on_first.model_copy(update={"sets": sets, "sets_average": mean})


def _average(group: Sequence[OodResult]) -> OodAverage:
    """The mean over data sets, each counting the same."""
    return OodAverage(
        **{
            name: sum(getattr(o, name) for o in group) / len(group)
            for name in OodAverage.model_fields
        }
    )
