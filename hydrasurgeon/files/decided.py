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
from hydrasurgeon.files.foreign import must
from hydrasurgeon.lookup import plugins

PREFIX = "hydrasurgeon.decision."
"""What the names of a decision state's tensors begin with."""
BESIDE = "decision.safetensors"
"""Where they lie in a directory: other libraries load its weights, and refuse those that are not of
their model.
"""
MAX_MEMBERS = 4096
"""Members that one state was fitted to: as many as a hydra may have."""


GAUSSIAN = {"centre": "width", "factor": "width width", "means": "classes width"}
"""What distances to class means need: whitened class means."""
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
    """All OOD scores, with those of other packages where the one that is asked for is none of ours."""
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


def silent_of(*names: str) -> Any:
    """A serializer: files say nothing of these fields where they have their default."""

    def said(self: Record, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        silent = {name for name in names if getattr(self, name) == fields[name].default}
        return {name: value for name, value in handler(self).items() if name not in silent}

    return model_serializer(mode="wrap")(said)


class Joint(Record):
    """Of numbers, by how much a member's own deviation counts, and by how much the members' spread."""

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
    """What the fraction of wrong answers stays below, with confidence 1 − delta."""
    coverage: Unit
    """The fraction of samples that were answered."""

    def among(self, share: float) -> Abstention:
        """The same where so many of the samples were asked."""
        return self.model_copy(update={"coverage": share * self.coverage})


class Limits(Record):
    """When one logit answers: `yes` from one probability on, `no` below another."""

    yes: Unit | None
    """Of the samples answered yes, at most `risk` are not; None: no threshold keeps that, and none is
    answered yes …
    """
    no: Unit
    """… and of the samples that are, at most `risk` are answered no; each with confidence 1 −
    delta.
    """
    risk: Share
    delta: Share
    bounds: tuple[Unit, Unit]
    """What the two fractions stay below."""
    answered: Unit
    """The fraction of samples that were answered."""

    def among(self, share: float) -> Limits:
        """The same where so many of the samples were asked."""
        return self.model_copy(update={"answered": share * self.answered})


class PerLabel(Record):
    """Of many labels, each one's own constants."""

    temperatures: tuple[Positive, ...] = Field(min_length=1)
    thresholds: tuple[Unit, ...] = Field(min_length=1)
    """From which probability on a label is answered."""


class Entities(Record):
    """Of tokens, how the words of an entity make it as probable as it is."""

    probability: Literal["product", "least"]
    """Of its words' probabilities; what is better calibrated on samples that fitted."""
    most: Rows
    """How many of a text count at most in what is promised: so many that of the samples that fitted
    nearly all count.
    """


class Cover(Record):
    """From which probability of not being O on a word belongs to an entity, so that few are missed."""

    threshold: Unit
    risk: Share
    """Of the true entities, at most so many have a word that belongs to none, …"""
    delta: Share
    """… with confidence 1 − delta."""
    words: Unit
    """The fraction of words that belong to one."""


class Standard(Record):
    """Mean and deviation of a member's score on samples held back from fitting."""

    mean: Real
    deviation: Positive


class Ood(Record):
    """Which score detects OOD samples, and above which threshold."""

    score: Annotated[str, AfterValidator(_score), Field(json_schema_extra={"enum": [*SCORES]})]
    threshold: Real
    id_flagged: Share
    """The fraction of samples like those of the calibration that is flagged at most, on average."""
    chosen_by: Literal["option", "ood", "perturbed", "default"]
    """Whether it was asked for, or detected OOD data, or perturbed data, best; else nothing was
    there to choose by.
    """
    auroc: dict[str, Unit] = Field(default={}, max_length=100)
    """AUROC of each score it was chosen among."""
    width: int | None = Field(default=None, ge=1, le=1 << 20)
    """Width of the features; None for a score of the logits."""
    size: Rows | None = None
    """Features that knn keeps; columns of vim's and residual's `rest`."""
    members: tuple[Standard, ...] = Field(default=(), max_length=MAX_MEMBERS)
    neighbours: int | None = Field(default=None, ge=1, le=1 << 20)
    """Which neighbour knn asks for; the 50th in states of older versions, and None of other scores."""
    _silent = silent_of("neighbours")

    @model_validator(mode="after")
    def _whole(self) -> Ood:
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
    """What a reader is worth, on validation samples that fitted none of it."""

    nll: tuple[Real, Real]
    """Without it, and with it."""
    se: NotNegative
    """Standard error of their difference."""


class Words(Record):
    """A reader of words: one linear layer beside a model, or before it."""

    mode: Literal["beside", "first"]
    tokenizer: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The hash of the tokenizer's files."""
    ids: Annotated[int, Field(ge=0, lt=1 << 24)] = 0
    """Token ids that have a column; the other columns are those of pairs."""
    columns: Annotated[int, Field(ge=1, lt=1 << 24)]
    outputs: Annotated[int, Field(ge=1, lt=1 << 20)]
    """As many as the model has."""
    weights: tuple[NotNegative, NotNegative]
    """By which the model's outputs count, and the reader's."""
    alone: NotNegative
    """By which the model's outputs count without the reader."""
    threshold: Unit | None = None
    """Of a reader that comes first, from which certainty on it answers."""
    worth: Worth
    _silent = silent_of("threshold")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The reader's tensors: their parts and shapes."""
        layer = {"weight": (self.columns, self.outputs), "bias": (self.outputs,)}
        return {"ids": (self.ids,), "idf": (self.columns,), **layer}

    @model_validator(mode="after")
    def _whole(self) -> Words:
        must(
            (
                (self.mode == "first") == (self.threshold is not None),
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
    """Of a reader of words that comes first: above it, a sample is unfamiliar to it and
    goes on. Absent where a hydra's first member does.
    """
    floor: Real | None = None
    """The OOD score that such a reader's most novel sample gets, others lower ones: the least that the
    model gives a validation sample. Absent likewise; of older versions, the threshold.
    """
    temperature: Positive
    """Of the first reader, as the next two."""
    bias: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Of one logit; absent from others."""
    labels: PerLabel | None = None
    """Of many labels, with the model's own thresholds; absent from others."""
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
    """How often each class was the most probable; of numbers, how many lie in each range; of tokens,
    what kind the first entity of a text is of, if any.
    """

    @model_validator(mode="after")
    def _whole(self) -> Seen:
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


class Decision(Record):
    """What the checkpoint makes of its own answers."""

    temperature: Positive
    bias: float | None = Field(default=None, ge=-1e6, le=1e6)
    """Of one logit, Platt's: members say sigmoid(z / temperature + bias); absent from others."""
    joint: Joint | None = None
    """Of numbers, instead of the temperature; None of others."""
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
    entities: Entities | None = None
    """Of tokens; absent from others, as the next."""
    cover: Cover | None = None
    """Where it was promised that few entities are missed; `abstain` where few answers are wrong."""
    levels: tuple[Real, ...] = Field(default=(), max_length=100)
    """Of numbers, between which of them answers are counted; absent from others."""
    cascade: Cascade | None = None
    """How to answer most inputs by a first reader alone; absent without it."""
    words: Words | None = None
    """What reads words beside the model; absent without it."""
    seen: Seen | None = None
    """What it answered on all validation samples; absent from states of older versions."""
    engine: Literal["int8"] | None = None
    """Whose outputs it was fitted to; absent where they were in float32."""
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
    )

    def counts(self, classes: int) -> bool:
        """Whether what was seen was counted by so many classes, between the levels, or by kinds of
        entities.
        """
        ranges = len(self.levels) + 1 if self.levels else classes
        if self.entities is not None:
            ranges = (classes + 1) // 2
        return self.seen is None or len(self.seen.predicted) == ranges

    @property
    def promised(self) -> dict[str, Any]:
        """What it keeps, as options of `calibrate`."""
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
    def _same_promises(self) -> Decision:
        """The cascade promises what the whole model does: other thresholds, for other answers."""
        if self.cascade is not None:
            must(
                (
                    _promises(self) == _promises(self.cascade),
                    "cascade: promises something else than the model",
                ),
                (
                    (self.cascade.novelty is not None)
                    == (self.words is not None and self.words.mode == "first"),
                    "cascade: what is novel belongs to words that come first",
                ),
            )
        return self


def calibrated_by(raw: Any) -> str:
    """Which version calibrated a manifest or a decision file that this one cannot read."""
    steps = raw.get("history") if isinstance(raw, dict) and raw.get("decision") else None
    made = [s for s in steps or () if isinstance(s, dict) and s.get("command") == "calibrate"]
    versions = made[-1].get("versions") if made else None
    if not isinstance(versions, dict):
        return ""
    return f" (hydrasurgeon {str(versions.get('hydrasurgeon'))[:40]} calibrated it)"


def _promises(record: Decision | Cascade) -> Any:
    """The risks and sets that are promised, and what kind of constants there are."""
    risks = [a and (a.risk, a.delta) for a in (record.abstain, record.limits)]
    labels = record.labels and len(record.labels.temperatures)
    return record.conformal.coverage, risks, record.bias is None, labels


def stored_name(member: int, part: str) -> str:
    return f"{PREFIX}{member}.{part}"


def shapes_of(decision: Decision, classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the state's tensors."""
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
    """What a tensor of the reader of words is called."""
    return f"{PREFIX}words.{part}"
