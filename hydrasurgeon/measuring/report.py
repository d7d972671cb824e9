"""The eval report, hydrasurgeon.eval/1: frozen records, and the computation from predictions alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

if TYPE_CHECKING:
    from hydrasurgeon.measuring.predictions import Predictions

__all__ = [
    "Cost",
    "Diversity",
    "IdResult",
    "OodAverage",
    "OodResult",
    "Report",
    "Result",
    "SetAverage",
    "SetResult",
    "ShiftResult",
    "over_sets",
    "result",
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SetAverage(_Record):
    accuracy: float
    brier: float
    nll: float
    ece: float
    aece: float


class IdResult(SetAverage):
    n: int


class SetResult(IdResult):
    name: str


class OodAverage(_Record):
    auroc: float
    fpr95: float
    aupr: float
    aupr_id: float


class OodResult(OodAverage):
    name: str
    group: Literal["near", "far"]
    n: int


class ShiftResult(_Record):
    name: str
    severity: int | None
    accuracy: float
    brier: float


class Diversity(_Record):
    mi: float
    disagreement: float


class Cost(_Record):
    params: int
    macs: int
    latency_ms: float | None
    """None when it was not measured here."""


class Result(_Record):
    name: str
    kind: str
    members: int
    id: IdResult
    ood: tuple[OodResult, ...]
    ood_average: dict[Literal["near", "far", "all"], OodAverage]
    shift: tuple[ShiftResult, ...]
    diversity: Diversity
    cost: Cost | None
    """None when the result was computed from a predictions file that does not say."""
    sets: tuple[SetResult, ...] | None = None
    """Every labelled data set, where there are several: `id`, and all else here, is of the first."""
    sets_average: SetAverage | None = None
    """The mean over data sets, each counting the same."""

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """One data set gives the keys it always gave."""
        absent = ("sets", "sets_average") if self.sets is None else ()
        return {name: value for name, value in handler(self).items() if name not in absent}


class Report(_Record):
    format: Literal["hydrasurgeon.eval/1"] = "hydrasurgeon.eval/1"
    settings: dict[str, Any]
    results: tuple[Result, ...]

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


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


def over_sets(found: Result, others: Sequence[SetResult], *, first: str) -> Result:
    """A result on the data set called `first`, joined by those on others."""
    sets = (SetResult(name=first, **found.id.model_dump()), *others)
    mean = SetAverage(
        **{
            name: sum(getattr(each, name) for each in sets) / len(sets)
            for name in SetAverage.model_fields
        }
    )
    return found.model_copy(update={"sets": sets, "sets_average": mean})


def _average(group: Sequence[OodResult]) -> OodAverage:
    """The mean over data sets, each counting the same."""
    return OodAverage(
        **{
            name: sum(getattr(o, name) for o in group) / len(group)
            for name in OodAverage.model_fields
        }
    )
