"""The decision state of a manifest: what `calibrate` found, which tensors belong to it, and every
OOD score there is.

Tensors are called `hydrasurgeon.decision.<member>.<part>`, float32, and count into the weights'
hash like all others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from hydrasurgeon.errors import DataError
from hydrasurgeon.files.untrusted import must
from hydrasurgeon.lookup import plugins

PREFIX = "hydrasurgeon.decision."
"""Prefix of the names of a decision state's tensors."""
BESIDE = "decision.safetensors"
"""File of these tensors in a directory.

Other libraries load its weight files, and refuse tensors that are not of their model.
"""
MAX_MEMBERS = 4096
"""Members that one state was fitted to: as many as a hydra may have."""


GAUSSIAN = {"centre": "width", "factor": "width width", "means": "classes width"}
"""Tensors of distances to class means: whitened class means."""
FITTED: dict[str, Mapping[str, str]] = {
    "mds": GAUSSIAN,
    "rmds": {**GAUSSIAN, "background": "width width"},
    "maha++": GAUSSIAN,
    "vim": {"origin": "width", "rest": "width size", "alpha": ""},
    "residual": {"origin": "width", "rest": "width size"},
    "knn": {"bank": "size width"},
    "mcm": {"classes": "classes width"},
}
"""Scores that are fitted on features, and the tensors of one member's fit with their dimensions; a
new one is a line here and one in `statistics/scores/on_features.py`.
"""
ZERO_SHOT = ("mcm",)
"""Fitted scores that are for zero-shot classifiers alone."""
OF_CLASSIFIERS = ("vim", "residual")
"""Fitted scores that need the weights of a linear classifier."""


LOGITS: dict[str, Literal["likeliest", "sum"] | None] = {
    "msp": "likeliest",
    "entropy": "sum",
    "energy": "sum",
    "max-logit": "likeliest",
    "mi": "sum",
}
"""Scores of the logits alone, and what they are of many labels: that of the likeliest alone, or the
sum over labels; None where it has no meaning. A new one is a line here and one in
`statistics/scores/on_logits.py`.
"""
OF_LABELS = tuple(name for name, form in LOGITS.items() if form is not None)
"""Those that have a form for many labels."""
SCORES = (*LOGITS, *FITTED)
"""Every OOD score."""


def scores_known(name: str) -> tuple[str, ...]:
    """Return all OOD scores, with those of plugins if `name` is none of ours."""
    if name not in (*LOGITS, *FITTED):
        for other, score in plugins("scores").items():
            if hasattr(score, "fit"):
                FITTED[other] = score.parts
            else:
                LOGITS[other] = score.labels
    return (*LOGITS, *FITTED)


def _score(name: str) -> str:
    must((name in scores_known(name), f"{name[:40]}: no such OOD score"))
    return name


SMALLEST, LARGEST = 1e-18, 1e18
"""Bounds of numbers in a decision state: the product of any two of them is finite in float32."""
Share = Annotated[float, Field(gt=0, lt=1)]
Unit = Annotated[float, Field(ge=0, le=1)]
Real = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(ge=SMALLEST, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)]
Rows = Annotated[int, Field(ge=1, lt=2**31)]


@contextlib.contextmanager
def storable() -> Iterator[None]:
    """Raise DataError, in place of pydantic's, where a fit leads to a number that no record holds."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, (error.title.lower(), *first["loc"])))
        raise DataError(
            f"the decision state cannot be stored: {name} is {str(first['input'])[:40]}",
            hint=f"Outputs, features or labels are too large: a number may be {LARGEST:g} at most.",
        ) from error


class Record(BaseModel):
    """A part of a manifest."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False, defer_build=True
    )


def silent_of(*names: str, **usual: Any) -> Any:
    """Return a serializer that omits these fields if they have their default, or their `usual`
    value.
    """

    def omit_defaults(self: Record, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        values = usual | {name: fields[name].default for name in names}
        silent = {name for name, value in values.items() if getattr(self, name) == value}
        return {name: value for name, value in handler(self).items() if name not in silent}

    return model_serializer(mode="wrap")(omit_defaults)


class Joint(Record):
    """Factors of a member's own deviation and of the members' spread, for numbers."""

    aleatoric: Positive
    epistemic: Positive


class Conformal(Record):
    """Prediction sets: the labels whose score is at most the threshold."""

    method: Literal["lac"]
    coverage: Share
    threshold: Real
    penalty: None = None
    """Nothing: methods of older versions had one."""


class Abstention(Record):
    """Answer where the probability is at least the threshold."""

    threshold: Unit
    risk: Share
    delta: Share
    bound: Unit
    """Upper bound of the fraction of wrong answers, with confidence 1 − delta."""
    coverage: Unit
    """The fraction of samples that were answered."""

    def among(self, share: float) -> Abstention:
        """Return the rule as if so many of the samples were asked."""
        return self.model_copy(update={"coverage": share * self.coverage})


class Limits(Record):
    """When one logit answers: `yes` from one probability on, `no` below another."""

    yes: Unit | None
    """Probability from which the answer is yes; at most a fraction `risk` of these is wrong.

    None if no threshold keeps that; nothing is then answered yes.
    """
    no: Unit
    """Probability below which the answer is no: at most a fraction `risk` of the positives is.

    Each with confidence 1 − delta.
    """
    risk: Share
    delta: Share
    bounds: tuple[Unit, Unit]
    """Upper bounds of the two fractions."""
    answered: Unit
    """The fraction of samples that were answered."""

    def among(self, share: float) -> Limits:
        """Return the limits as if so many of the samples were asked."""
        return self.model_copy(update={"answered": share * self.answered})


class PerLabel(Record):
    """Constants of each label, for models of many labels."""

    temperatures: tuple[Positive, ...] = Field(min_length=1)
    thresholds: tuple[Unit, ...] = Field(min_length=1)
    """From which probability on a label is answered."""


class EntityRule(Record):
    """Probability of an entity from those of its words."""

    probability: Literal["product", "least"]
    """Rule for the words' probabilities: the better calibrated one on the samples that fit."""
    most: Rows
    """Largest number of entities of a text that count in a promise.

    Nearly all entities of the samples that fit count.
    """


class Cover(Record):
    """From which probability of not being O on a word belongs to an entity, so that few are missed."""

    threshold: Unit
    risk: Share
    """Largest fraction of the true entities that are missed: with a word that belongs to none."""
    delta: Share
    """One minus the confidence of this promise."""
    words: Unit
    """The fraction of words that belong to one."""


class Standard(Record):
    """Mean and deviation of a member's score on samples held back from fitting."""

    mean: Real
    deviation: Positive


class Ood(Record):
    """Score that detects OOD samples, with its threshold."""

    score: Annotated[str, AfterValidator(_score), Field(json_schema_extra={"enum": [*SCORES]})]
    threshold: Real
    id_flagged: Share
    """The fraction of samples like those of the calibration that is flagged at most, on average."""
    chosen_by: Literal["option", "ood", "perturbed", "default"]
    """Origin of the choice: an option, OOD data, perturbed data, or none of these."""
    auroc: dict[str, Unit] = Field(default={}, max_length=100)
    """AUROC of each score it was chosen among: that of its mean log-odds over the OOD sets."""
    width: int | None = Field(default=None, ge=1, le=1 << 20)
    """Width of the features; None for a score of the logits."""
    size: Rows | None = None
    """Features that knn keeps; columns of vim's and residual's `rest`."""
    members: tuple[Standard, ...] = Field(default=(), max_length=MAX_MEMBERS)
    neighbours: int | None = Field(default=None, ge=1, le=1 << 20)
    """The k of knn; 50 in states of older versions, and None for other scores."""
    _silent = silent_of("neighbours")

    @model_validator(mode="after")
    def _check_consistency(self) -> Ood:
        parts = FITTED.get(self.score, {})
        sized = any("size" in dims for dims in parts.values())
        must(
            (
                bool(parts) == (self.width is not None) == bool(self.members),
                f"{self.score}: width and members belong to a score that is fitted",
            ),
            (
                sized == (self.size is not None),
                f"{self.score}: a size belongs to knn, vim and residual",
            ),
            (
                self.neighbours is None
                or (self.score == "knn" and self.neighbours <= (self.size or 0)),
                f"{self.score}: {self.neighbours} neighbours of {self.size} features",
            ),
        )
        return self


class Worth(Record):
    """Gain from a bag-of-words model, on validation samples that fitted none of it."""

    nll: tuple[Real, Real]
    """Without it, and with it."""
    se: NotNegative
    """Standard error of their difference."""


class BagOfWordsRecord(Record):
    """A bag-of-words model: one linear layer, in a blend with a model or a cascade before it."""

    mode: Literal["blend", "cascade"]
    tokenizer: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The hash of the tokenizer's files."""
    ids: Annotated[int, Field(ge=0, lt=1 << 24)] = 0
    """Token ids that have a column; the other columns are those of pairs."""
    columns: Annotated[int, Field(ge=1, lt=1 << 24)]
    outputs: Annotated[int, Field(ge=1, lt=1 << 20)]
    """As many as the model has."""
    weights: tuple[NotNegative, NotNegative]
    """Weights of the model's outputs and of the bag-of-words model's."""
    alone: NotNegative
    """Weight of the model's outputs alone."""
    threshold: Unit | None = None
    """Certainty from which a bag-of-words model that comes first answers."""
    worth: Worth
    _silent = silent_of("threshold")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The reader's tensors: their parts and shapes."""
        layer = {"weight": (self.columns, self.outputs), "bias": (self.outputs,)}
        return {"ids": (self.ids,), "idf": (self.columns,), **layer}

    @model_validator(mode="after")
    def _check_consistency(self) -> BagOfWordsRecord:
        must(
            (
                (self.mode == "cascade") == (self.threshold is not None),
                "words: a threshold belongs to a reader that comes first",
            ),
            (self.ids <= self.columns, "words: more ids than columns"),
        )
        return self


class Cascade(Record):
    """A first reader answers where it is sure, the whole model what goes on: what calibrates the
    first, and what is promised of the answers that come of it.
    """

    threshold: Unit
    """Rows go on of which the first's calibrated probability lies below it."""
    share_on: Unit
    """The fraction of validation samples that goes on."""
    novelty: NotNegative | None = None
    """Threshold of a bag-of-words model that comes first: more novel samples go on.

    Absent where a hydra's first member is the first stage.
    """
    floor: Real | None = None
    """The OOD score that such a reader's most novel sample gets, others lower ones: the least that the
    model gives a validation sample. Absent likewise; of older versions, the threshold.
    """
    temperature: Positive
    """Temperature of the first stage."""
    bias: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Bias of the first stage, for one logit; otherwise absent."""
    labels: PerLabel | None = None
    """Constants of the first stage, for many labels, with the model's thresholds; otherwise absent.
    """
    conformal: Conformal
    abstain: Abstention | None = None
    limits: Limits | None = None
    """Instead of `abstain`, of one logit; absent from others."""
    _silent = silent_of("novelty", "floor", "bias", "labels", "abstain", "limits")


Tally = Annotated[int, Field(ge=0, lt=2**31)]


class Seen(Record):
    """Answers, counted: those on the validation data are what `monitor` compares later ones with."""

    rows: Rows
    unfamiliar: Tally
    abstain: Tally
    uncertainty: NotNegative
    """Mean total uncertainty, in nats."""
    predicted: tuple[Tally, ...]
    """Number of answers for each class, or for each range of values.

    For tokens it counts the kinds of the texts' first entities, and texts without any.
    """

    @model_validator(mode="after")
    def _check_consistency(self) -> Seen:
        must(
            (
                sum(self.predicted) == self.rows,
                f"{sum(self.predicted)} predicted classes of {self.rows} samples",
            ),
            (
                self.unfamiliar + self.abstain <= self.rows,
                f"more is set aside than {self.rows} samples",
            ),
        )
        return self


class DecisionRecord(Record):
    """Rules by which a checkpoint answers."""

    temperature: Positive
    bias: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Platt's bias for one logit: members say sigmoid(z / temperature + bias); otherwise absent."""
    joint: Joint | None = None
    """Calibration of numbers, instead of the temperature; otherwise None."""
    ood: Ood
    conformal: Conformal
    abstain: Abstention | None = None
    limits: Limits | None = None
    """Instead of `abstain`, of one logit; absent from others."""
    labels: PerLabel | None = None
    """Instead of the temperature, of many labels; absent from others."""
    accuracy: Unit | None = None
    """On all validation samples; of many labels, of each yes or no; absent from older states."""
    nll: dict[str, Real] = Field(default={}, max_length=10)
    """On data held out: `before`, and after, by `temperature`, of numbers by `joint`."""
    fitted: Rows
    """Validation samples that fitted."""
    certified: Rows
    """Others, on which the thresholds were taken."""
    entities: EntityRule | None = None
    """Rule by which entities get their probability, for tokens; otherwise absent."""
    cover: Cover | None = None
    """Rule of the promise that few entities are missed; `abstain` promises few wrong answers."""
    levels: tuple[Real, ...] = Field(default=(), max_length=100)
    """Limits of the ranges in which answers are counted, for numbers; otherwise absent."""
    cascade: Cascade | None = None
    """Cascade by which a first stage answers most inputs alone; absent without it."""
    words: BagOfWordsRecord | None = None
    """Bag-of-words model of a blend or a cascade; absent without one."""
    seen: Seen | None = None
    """Answers on all validation samples, counted; absent from states of older versions."""
    engine: Annotated[str, Field(pattern="^[a-z][a-z0-9-]{0,31}$")] | None = None
    """Engine whose outputs it was fitted to; absent where they were in float32."""
    estimated: Literal[True] | None = None
    """True where classifiers of folds answered for rows that the model itself was fitted to: its
    thresholds are estimates, which certify nothing; absent from others.
    """
    _silent = silent_of(
        "accuracy",
        "cascade",
        "words",
        "seen",
        "bias",
        "limits",
        "labels",
        "entities",
        "cover",
        "levels",
        "engine",
        "estimated",
    )

    def counts(self, classes: int) -> bool:
        """Return True if `seen` has the expected number of counts.

        They are for classes, for the ranges between the levels, or for kinds of entities.
        """
        ranges = len(self.levels) + 1 if self.levels else classes
        if self.entities is not None:
            ranges = (classes + 1) // 2
        return self.seen is None or len(self.seen.predicted) == ranges

    @property
    def promised(self) -> dict[str, Any]:
        """The promises, as options of `calibrate`."""
        sets = self.conformal
        return {
            "coverage": sets.coverage,
            "id_flagged": self.ood.id_flagged,
        }

    @field_validator("levels")
    @classmethod
    def _rising(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        must((levels == tuple(sorted({*levels})), "levels: are not in rising order"))
        return levels

    @model_validator(mode="after")
    def _same_promises(self) -> DecisionRecord:
        """Check that the cascade promises the same as the model, with its own thresholds."""
        if self.cascade is not None:
            must(
                (
                    _promises(self) == _promises(self.cascade),
                    "cascade: promises something else than the model",
                ),
                (
                    (self.cascade.novelty is not None)
                    == (self.words is not None and self.words.mode == "cascade"),
                    "cascade: what is novel belongs to words that come first",
                ),
            )
        return self


def calibrated_by(raw: Any) -> str:
    """Return the version that calibrated a manifest or decision file which this one cannot read."""
    steps = raw.get("history") if isinstance(raw, dict) and raw.get("decision") else None
    calibrations = [
        s for s in steps or () if isinstance(s, dict) and s.get("command") == "calibrate"
    ]
    versions = calibrations[-1].get("versions") if calibrations else None
    if not isinstance(versions, dict):
        return ""
    return f" (hydrasurgeon {str(versions.get('hydrasurgeon'))[:40]} calibrated it)"


def _promises(record: DecisionRecord | Cascade) -> Any:
    """Return the promised risks and sets, and the kind of constants."""
    risks = [a and (a.risk, a.delta) for a in (record.abstain, record.limits)]
    labels = record.labels and len(record.labels.temperatures)
    return record.conformal.coverage, risks, record.bias is None, labels


def stored_name(member: int, part: str) -> str:
    return f"{PREFIX}{member}.{part}"


def shapes_of(decision: DecisionRecord, classes: int) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the state's tensors."""
    ood = decision.ood
    parts = FITTED.get(ood.score, {})
    if decision.entities is not None:  # a text is of no class
        classes = 1
    sizes = {"width": ood.width or 0, "size": ood.size or 0, "classes": classes}
    shapes = {part: tuple(sizes[d] for d in dims.split()) for part, dims in parts.items()}
    fitted = {
        stored_name(member, part): shape
        for member in range(len(ood.members))
        for part, shape in shapes.items()
    }
    if decision.words is None:
        return fitted
    return fitted | {words_name(part): shape for part, shape in decision.words.shapes.items()}


def words_name(part: str) -> str:
    """Return the stored name of a bag-of-words tensor."""
    return f"{PREFIX}words.{part}"
