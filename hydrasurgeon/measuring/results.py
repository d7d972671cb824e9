"""The eval report, hydrasurgeon.eval/1: frozen records; and the conditions that a fair comparison
holds alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from hydrasurgeon.files.foreign import visible

Interval = tuple[float, float]
"""The ends of a bootstrap interval."""


class _Record(BaseModel):
    """Fields that default to None are absent from the JSON where nothing was measured; others are
    null there.
    """

    # What is not a number must have been refused before it gets here.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if value is not None or fields[name].is_required()
        }


class SetAverage(_Record):
    """Of the measures, those that a kind of problem has."""

    accuracy: float | None = None
    brier: float | None = None
    nll: float | None = None
    ece: float | None = None
    aece: float | None = None


class IdResult(SetAverage):
    """What is there when it was computed stands behind `n`."""

    n: int
    aurc: float | None = None
    augrc: float | None = None
    cov5: float | None = None
    """The share that can be answered with at most 5 % of the answers wrong."""
    smece: float | None = None
    mis_auroc: float | None = None
    """How well confidence tells right answers from wrong ones; absent where all are right, or all
    wrong.
    """
    coverage: float | None = None
    """How often a prediction set of the decision state holds the true label."""
    set_size: float | None = None
    auroc: float | None = None
    """How well one logit tells yes from no; absent where all samples are either."""
    ap: float | None = None
    mrr10: float | None = None
    ndcg10: float | None = None
    found: float | None = None
    """The fraction of groups for which the decision state says that something was found …"""
    found_risk: float | None = None
    """… and how many of these have a first row that is no yes. Of one logit, over groups."""
    micro_f1: float | None = None
    macro_f1: float | None = None
    map: float | None = None
    exact_match: float | None = None
    """Of many labels."""
    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None
    width: float | None = None
    """Of numbers; the mean width of the intervals between `low` and `high`."""
    f1: float | None = None
    """Of entities, by strict IOB2, as the two below."""
    precision: float | None = None
    recall: float | None = None
    token_accuracy: float | None = None
    """The fraction of words with the right tag."""
    entity_ece: float | None = None
    """How far the probabilities of entities are from how often they are right."""
    wrong: float | None = None
    """The fraction of answered entities that are wrong, and …"""
    missed: float | None = None
    """… of true ones with a word in none that is answered, where either was promised."""
    ci: dict[str, Interval] | None = None


class SetResult(IdResult):
    name: str


class OodAverage(_Record):
    auroc: float
    fpr95: float
    aupr: float
    aupr_id: float
    ci: dict[str, Interval] | None = None


class OodResult(OodAverage):
    name: str
    group: Literal["near", "far"]
    n: int
    scores: dict[str, float] | None = None
    """AUROC by the other scores that were asked for."""
    entity_auroc: float | None = None
    """How much less probable entities found here are than those found in the labelled set."""


class ShiftResult(_Record):
    name: str
    severity: int | None
    accuracy: float
    brier: float


class ShiftLevel(_Record):
    """The mean over shifted sets of one severity, each counting the same."""

    accuracy: float
    brier: float
    sets: int


def level(shift: Sequence[ShiftResult | ShiftLevel]) -> ShiftLevel:
    """The mean over these sets, each counting the same."""
    accuracy, brier = (
        sum(getattr(each, name) for each in shift) / len(shift) for name in ("accuracy", "brier")
    )
    return ShiftLevel(accuracy=accuracy, brier=brier, sets=len(shift))


class ShiftAverage(_Record):
    """What is left under shifts of known severity."""

    accuracy: float
    brier: float
    severities: dict[int, ShiftLevel]
    mce: float | None
    """The mean over shifts of the errors at all severities, as a share of the first result's; None
    where that made none.
    """


class Diversity(_Record):
    mi: float | None = None
    disagreement: float | None = None


Count = Annotated[int, Field(ge=0, lt=2**63)]
"""How many there are of something."""


class Cost(_Record):
    params: Count
    macs: Count
    latency_ms: float | None
    tokens: Count | None = None
    """Length of the text that `macs` are counted on, the first of the data set; absent without
    texts.
    """
    expected_macs: int | None = None
    """Average over the data set for a cascade; absent where all members always run."""


class Result(_Record):
    name: str
    kind: str
    members: int
    id: IdResult
    ood: tuple[OodResult, ...]
    ood_average: dict[Literal["near", "far", "all"], OodAverage]
    shift: tuple[ShiftResult, ...]
    shift_average: ShiftAverage | None = None
    diversity: Diversity
    cost: Cost | None
    """None when the result was computed from a predictions file that does not say."""
    sets: tuple[SetResult, ...] | None = None
    """Every labelled data set, where there are several: `id`, and all else here, is of the first.
    """
    sets_average: SetAverage | None = None


class Asserted(_Record):
    """What became of one `--assert` on one result."""

    assertion: str
    result: str
    value: int | float | None
    """None where the result has no such number."""
    holds: bool


class Report(_Record):
    format: Literal["hydrasurgeon.eval/1"] = "hydrasurgeon.eval/1"
    settings: dict[str, Any]
    results: tuple[Result, ...]
    asserts: tuple[Asserted, ...] | None = None

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


@dataclass(frozen=True)
class Conditions:
    """What one row of the report rests on."""

    ood_score: str | None = None
    calibrated: bool = False


def unlike(model: Conditions, reference: Conditions) -> dict[str, str]:
    """What the two do not have in common: {"calibration": "calibrated, the reference not"}."""
    phrases = {}
    if model.ood_score and reference.ood_score and model.ood_score != reference.ood_score:
        phrases["OOD score"] = (
            f"OOD by {visible(model.ood_score)}, the reference by {visible(reference.ood_score)}"
        )
    if model.calibrated != reference.calibrated:
        mine, its = ("calibrated", "not") if model.calibrated else ("not calibrated", "is")
        phrases["calibration"] = f"{mine}, the reference {its}"
    return phrases
