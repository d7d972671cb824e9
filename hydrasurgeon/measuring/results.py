"""The eval report, hydrasurgeon.eval/1: frozen records, and which of their fields are columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

Number = float | None
"""Number, or None if it was not measured."""
Interval = tuple[float, float]
"""The ends of a bootstrap interval."""
Better = Literal["higher", "lower", ""]
COLUMN = "column"
"""Key of a field's `Metric` in its JSON schema extras."""
ABSENT = "–"
"""Text of a cell without a measurement."""
ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
"""Suffix of a metric's name: the direction in which it is better."""


@dataclass(frozen=True)
class Metric:
    """Display of a record's number; the one place where a column is declared."""

    name: str
    better: Better = ""
    brief: str = ""
    """Name on a terminal; a metric without one is not shown there."""
    meaning: str = ""
    """Explanation for the glossary."""
    unit: float | None = None
    """Divisor. A metric with a unit is a cost, printed with so many decimals that the least value
    has three digits.
    """
    key: str = ""
    """Name of the field."""

    @property
    def head(self) -> str:
        return self.name + ARROWS[self.better]

    def of(self, record: Any) -> float | None:
        value = getattr(record, self.key, None)
        return None if value is None else float(value) / (self.unit or 1)

    def text(self, record: Any, decimals: int) -> str:
        value = self.of(record)
        return ABSENT if value is None else f"{value:.{decimals}f}"


def column(
    name: str,
    better: Better = "",
    brief: str = "",
    meaning: str = "",
    *,
    unit: float | None = None,
    default: Any = None,
) -> Any:
    """Return a field of a record that is a column of tables."""
    metric = Metric(name, better, brief, meaning, unit)
    return Field(default, json_schema_extra={COLUMN: metric})  # type: ignore[dict-item]


def metrics_of(record: type[BaseModel]) -> tuple[Metric, ...]:
    """Return the columns of a record, in their order."""
    extras: dict[str, Any] = {key: f.json_schema_extra for key, f in record.model_fields.items()}
    return tuple(replace(extra[COLUMN], key=key) for key, extra in extras.items() if extra)


class _Record(BaseModel):
    """Base of records. Fields that default to None are omitted from the JSON if nothing was
    measured; other fields are null there.
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


class SetMetrics(_Record):
    """Metrics that are averaged over data sets; a task has some of them."""

    accuracy: Number = column(
        "accuracy",
        "higher",
        "Acc",
        "The fraction of samples whose most probable class is right.",
    )
    brier: Number = column(
        "Brier", "lower", "Brier", "The mean squared distance of the probabilities from the truth."
    )
    nll: Number = column(
        "NLL",
        "lower",
        "NLL",
        "Negative log-likelihood: the mean −log of the true class's probability.",
    )
    ece: Number = column(
        "ECE",
        "lower",
        "ECE",
        "Expected calibration error: how far confidence is from accuracy, on average over 15 bins.",
    )
    aece: Number = column(
        "aECE", "lower", "aECE", "Adaptive ECE: the same over bins of equally many samples."
    )


class IdResult(SetMetrics):
    """Metrics of a labelled set. Metrics after `n` are present if they were computed; other
    packages' tasks add theirs.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = {}  # pydantic reads the type
    n: int
    smece: Number = column(
        "SmoothECE", "lower", "", "Calibration error with a smooth kernel instead of bins."
    )
    aurc: Number = column(
        "AURC",
        "lower",
        "",
        "Area under the risk-coverage curve: the mean fraction wrong over all coverages.",
    )
    augrc: Number = None
    cov5: Number = column(
        "coverage at 5 % risk",
        "higher",
        "",
        "The fraction of samples that can be answered with at most 5 % of the answers wrong.",
    )
    mis_auroc: Number = None
    """AUROC of confidence as a detector of right answers; absent if all are right, or all wrong."""
    rmse: Number = column("RMSE", "lower", "RMSE", "Root of the mean squared error of numbers.")
    mae: Number = column("MAE", "lower", "MAE", "Mean absolute error of numbers.")
    r2: Number = column("R²", "higher", "R²", "The fraction of the variance that is explained.")
    width: Number = column(
        "interval width", "", "width", "From the lower to the upper bound, on average."
    )
    flagged: Number = column(
        "unfamiliar",
        "",
        "unfamiliar",
        "The fraction of in-distribution samples that the fitted threshold calls unfamiliar.",
    )
    coverage: Number = column(
        "set coverage", "", "set holds", "How often the prediction set holds the true class."
    )
    set_size: Number = column(
        "set size", "", "set size", "Classes in a prediction set, on average."
    )
    answered: Number = column(
        "answered",
        "",
        "answered",
        "The fraction that is answered: neither unfamiliar nor less sure than the promised risk takes.",
    )
    wrong: Number = column(
        "wrong answers",
        "lower",
        "of these wrong",
        "The fraction of the answers given that are wrong.",
    )
    auroc: Number = column(
        "AUROC of yes", "higher", "AUROC", "How often a yes has a higher probability than a no."
    )
    ap: Number = column(
        "average precision", "higher", "AP", "Area under the precision-recall curve of yes."
    )
    micro_f1: Number = column(
        "micro F1", "higher", "micro F1", "F1 of all label decisions together."
    )
    macro_f1: Number = column("macro F1", "higher", "macro F1", "The mean over labels of their F1.")
    map: Number = column("mAP", "higher", "mAP", "The mean over labels of their average precision.")
    exact_match: Number = column(
        "exact match", "higher", "exact", "Samples of which every label is right."
    )
    f1: Number = column(
        "F1",
        "higher",
        "F1",
        "Harmonic mean of the precision and recall of entities, by strict IOB2.",
    )
    precision: Number = column(
        "precision",
        "higher",
        "Prec",
        "The fraction of entities found that are right, from first to last word.",
    )
    recall: Number = column(
        "recall", "higher", "Rec", "The fraction of true entities that are found."
    )
    token_accuracy: Number = column(
        "token accuracy",
        "higher",
        "tokens",
        "The fraction of words with the right tag.",
    )
    entity_ece: Number = column(
        "entity ECE", "lower", "ent.ECE", "ECE of the probabilities of entities."
    )
    missed: Number = column(
        "missed", "lower", "missed", "The fraction of true entities with a word in no answered one."
    )
    ci: dict[str, Interval] | None = None


class SetResult(IdResult):
    name: str


MI = "Mutual information between answer and member: how far members are apart."
DISAGREEMENT = "How often two members name different classes."
"""Meanings of the diversity metrics, for the glossary."""


class OodAverage(_Record):
    auroc: float = column(
        "AUROC",
        "higher",
        "AUROC",
        "How often an OOD sample has a higher OOD score than an in-distribution one; 0.5 is chance.",
        default=...,
    )
    fpr95: float = column(
        "FPR95",
        "lower",
        "FPR95",
        "The fraction of in-distribution samples flagged by the threshold that flags 95 % of the OOD samples.",
        default=...,
    )
    aupr: float = column(
        "AUPR",
        "higher",
        "AUPR",
        "Area under the precision-recall curve, OOD samples as positives.",
        default=...,
    )
    aupr_id: float
    flagged: Number = column(
        "flagged",
        "higher",
        "flagged",
        "The fraction of the OOD samples that the fitted threshold calls unfamiliar.",
    )
    mi: Number = column("MI", meaning=MI)
    """Diversity of several members on the OOD samples."""
    disagreement: Number = column("disagreement", meaning=DISAGREEMENT)
    ci: dict[str, Interval] | None = None


class OodResult(OodAverage):
    name: str
    group: Literal["near", "far"]
    n: int
    scores: dict[str, float] | None = None
    """AUROC by the other requested scores."""
    entity_auroc: Number = None
    """AUROC of OOD detection by the probability of entities, which should be lower than in the
    labelled set.
    """


class ShiftResult(_Record):
    name: str
    severity: int | None
    accuracy: float
    brier: float


class ShiftLevel(_Record):
    """Mean over shifted sets of one severity, with equal weights."""

    accuracy: float
    brier: float
    sets: int


def level(shift: Sequence[ShiftResult | ShiftLevel]) -> ShiftLevel:
    """Return the mean over these sets, with equal weights."""
    accuracy, brier = (
        sum(getattr(result, name) for result in shift) / len(shift)
        for name in ("accuracy", "brier")
    )
    return ShiftLevel(accuracy=accuracy, brier=brier, sets=len(shift))


class ShiftAverage(_Record):
    """Means over shifts whose severity is known."""

    accuracy: float
    brier: float
    severities: dict[int, ShiftLevel]
    mce: Number = column(
        "mCE",
        "lower",
        "mCE",
        "Mean corruption error: errors under shifts, as a fraction of the first row's.",
        default=...,
    )
    """Mean over shifts of the errors at all severities, relative to the first result's; None if the
    first result has no errors.
    """


class Diversity(_Record):
    mi: Number = column("MI", "", "MI", MI)
    disagreement: Number = column("disagreement", "", "DI", DISAGREEMENT)


Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Number of things."""


class Cost(_Record):
    params: Count = column("parameters, M", "lower", "params M", unit=1000000.0, default=...)
    macs: Count = column(
        "multiply-adds, M",
        "lower",
        "MACs M",
        "Multiplications with an addition for one sample: matrix products, convolutions, attention.",
        unit=1000000.0,
        default=...,
    )
    expected_macs: int | None = column(
        "expected multiply-adds, M",
        "lower",
        "expected M",
        "The average of a cascade, which runs all members on some samples only.",
        unit=1000000.0,
    )
    """Average over the data set for a cascade; absent where all members always run."""
    macs_all_tokens: Count | None = None
    """`macs` if every layer computed all tokens, the convention of most papers; absent from older
    files.
    """
    latency_ms: Number = column("time, ms", "lower", "ms", unit=1)
    """Median time of one batch; absent without `--time`."""
    latency_batch: Count | None = None
    """Samples in the batch that was timed."""
    tokens: Count | None = None
    """Length of the text that `macs` are counted on, the first of the data set; absent without
    texts.
    """


TIMES = ("latency_ms", "latency_batch")
"""Fields of a cost that depend on the machine and the moment."""


def summed_costs(costs: Sequence[Cost]) -> Cost:
    """Return the cost of models that run one after another on the same sample."""
    all_tokens = [cost.macs_all_tokens for cost in costs]
    return Cost(
        params=sum(cost.params for cost in costs),
        macs=sum(cost.macs for cost in costs),
        macs_all_tokens=None if None in all_tokens else sum(filter(None, all_tokens)),
        tokens=costs[0].tokens,
    )


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
    """None for a predictions file without costs."""
    sets: tuple[SetResult, ...] | None = None
    """Results of every labelled data set, if there are several; all other fields are of the
    first.
    """
    sets_average: SetMetrics | None = None


class Asserted(_Record):
    """Outcome of one `--assert` for one result."""

    assertion: str
    result: str
    value: int | float | None
    """None if the result has no such number."""
    limit: float | None = None
    """Number of another result that the value was compared with; None for a fixed limit."""
    holds: bool


class PairedDifference(_Record):
    """Difference between a result's metric and the reference's on the same samples."""

    name: str
    reference: str
    metric: str
    difference: float
    low: float
    """Lower end of the interval, from paired bootstrap resamples at the level of `--ci`; `high` is
    the upper end.
    """
    high: float


class Report(_Record):
    format: Literal["hydrasurgeon.eval/1"] = "hydrasurgeon.eval/1"
    settings: dict[str, Any]
    results: tuple[Result, ...]
    differences: tuple[PairedDifference, ...] | None = None
    """Differences of all results but the reference; None without `--ci`."""
    asserts: tuple[Asserted, ...] | None = None

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


QUALITY = metrics_of(SetMetrics)
"""Metrics of every labelled set."""
ANSWERS = metrics_of(IdResult)[len(QUALITY) :]
"""Further metrics of a labelled set."""
OOD = metrics_of(OodAverage)
"""Metrics of OOD detection."""
SHIFT = (*QUALITY[:2], *metrics_of(ShiftAverage))
"""Metrics under shifts."""
DIVERSITY = metrics_of(Diversity)
"""Differences between members: a high value is neither good nor bad by itself."""
COST = metrics_of(Cost)
"""Costs of a model; `expected_macs` is that of a cascade, which runs some members on some samples
only.
"""
COMPARED = {metric.key: metric for metric in (*QUALITY, *ANSWERS, *OOD)}
"""Metrics by which models are compared; AUROC is that of OOD detection."""
