"""The eval report, hydrasurgeon.eval/1: frozen records, and the computation from predictions alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from hydrasurgeon.predictions import Predictions

__all__ = [
    "Cost",
    "Diversity",
    "IdResult",
    "OodAverage",
    "OodResult",
    "Report",
    "Result",
    "ShiftResult",
    "result",
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IdResult(_Record):
    n: int
    accuracy: float
    brier: float
    nll: float
    ece: float
    aece: float


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
    from hydrasurgeon import metrics

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


def _average(group: Sequence[OodResult]) -> OodAverage:
    """The mean over data sets, each counting the same."""
    return OodAverage(
        **{
            name: sum(getattr(o, name) for o in group) / len(group)
            for name in OodAverage.model_fields
        }
    )
