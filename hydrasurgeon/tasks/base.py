"""Interface of a task, and the records that its methods exchange."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import CLASS_EACH, LabelRule
from hydrasurgeon.errors import CheckpointError, HydraError, SurgeryError
from hydrasurgeon.files.decided import (
    Conformal,
    DecisionRecord,
)
from hydrasurgeon.files.manifest import Model, TaskName
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics import padded_words
from hydrasurgeon.statistics.abstain import Graded
from hydrasurgeon.statistics.bootstrap import Rows, Values
from hydrasurgeon.statistics.probabilities import Labels, Scores, yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, scores_of
from hydrasurgeon.tasks.printed import Answers

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
"""Number of most probable labels that a row lists."""
DOUBTS = {
    **dict.fromkeys(("total", "aleatoric", "epistemic", "ood_score"), "number"),
    "unfamiliar": "flag",
    "members_run": "whole",
    **dict.fromkeys(("answer", "error"), "text"),
}
"""Columns about the certainty of an answer, with the kind of their values."""

Columns = Mapping[str, Iterable[Any]]
"""Values of each sample, by the name of a column."""
Link = Literal["softmax", "sigmoid", "square"]
"""Function from outputs to probabilities of classes (softmax) or of yes (sigmoid); "square" for
numbers with a squared error.
"""
Constants = Mapping[str, Any]
"""Calibration constants, as fields of a `DecisionRecord`."""


@dataclass(frozen=True)
class Outputs:
    """Outputs of a model for some samples."""

    logits: Float[ndarray, "sample member *klass"]
    features: Float[ndarray, "sample member width"] | None
    """Features; None if only scores of the logits are needed."""
    labels: ndarray | None = None
    original_labels: ndarray | None = None
    """Labels as they were given, where `labels` are simplified for OOD scores: fractions of yes,
    numbers or tags.
    """
    groups: Int[ndarray, " sample"] | None = None
    """Number of each sample's group, which a split does not divide."""
    certifies: Bool[ndarray, " sample"] | None = None
    """True for samples that certify; the others fit. None if the data do not divide them."""
    inputs: Int[ndarray, " sample"] | None = None
    """Number of each sample's input, which copies share; None if copies cannot be recognised."""

    def at(self, rows: ndarray | slice) -> Outputs:
        parts = vars(self).values()
        return Outputs(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def joined(self, other: Outputs) -> Outputs:
        """Return these outputs followed by the other's."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Outputs(*(None if pair[0] is None else padded_words.joined(pair) for pair in pairs))  # type: ignore[arg-type]

    def of(self, member: int) -> tuple[ndarray, ndarray, ndarray]:
        """Return what OOD scores of a member are fitted on: features, logits (for words, their
        mean) and labels.
        """
        assert self.features is not None
        logits = self.logits[:, member]
        if logits.ndim == 3:
            logits = padded_words.mean_of_words(logits)
        return self.features[:, member], logits, self.truth

    def among(self, members: Sequence[int]) -> Outputs:
        """Return the outputs of some members, in this order."""
        at = list(members)
        features = None if self.features is None else self.features[:, at]
        return replace(self, logits=self.logits[:, at], features=features)

    def scores(self, kind: str, fitted: EnsembleScore | None) -> Scores:
        """Return an OOD score of each sample."""
        return scores_of(kind, self.logits, self.features, fitted)

    @property
    def truth(self) -> Labels:
        """Labels, which must be present."""
        assert self.labels is not None
        return self.labels


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction(ABC):
    """Answers for some samples, printed as rows; each task has its own subclass."""

    members_run: Int[ndarray, " sample"]
    """Number of members that computed the answer."""
    ood_score: Float[ndarray, " sample"]
    """NaN without a decision state; then no sample is unfamiliar and none abstains."""
    unfamiliar: Bool[ndarray, " sample"]
    abstain: Bool[ndarray, " sample"]
    """True if the answer is not certain enough to keep the promised risk; False without a
    promise.
    """
    decided: bool = False
    """True if a decision state was applied."""
    ids: Sequence[str | int] | None = None
    """Names of the samples; None numbers them."""
    names: Sequence[str] | None = None
    """Names of the classes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ndarray:
            """Return a field of a subclass."""

    def overflow(self) -> str | None:
        """Return the name of a field with values that are not finite in float32, which some clients
        read; None without a decision state, because NaN then stands for unknown values.
        """
        if not self.decided:
            return None
        for name, values in vars(self).items():
            if isinstance(values, ndarray) and values.dtype.kind == "f":
                with np.errstate(over="ignore"):
                    if not np.isfinite(values.astype(np.float32)).all():
                        return name
        return None

    def about(self, texts: Callable[[], Sequence[Any]]) -> Self:
        """Return a copy that can refer to places in the texts."""
        return self

    @abstractmethod
    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        """Return the columns of a row, with a value for each sample."""

    @property
    @abstractmethod
    def plain_answers(self) -> Sequence[Any]:
        """Answers without verdicts: unfamiliar samples have one too."""

    @property
    @abstractmethod
    def uncertainty(self) -> Float[ndarray, " sample"]:
        """Uncertainty of each answer, for `monitor`."""

    @property
    @abstractmethod
    def tally(self) -> Int[ndarray, " klass"]:
        """Number of answers by name, for `monitor`; `Task.counted` names rows alike."""

    @property
    def answer(self) -> list[Any]:
        """Answer of each sample: `unfamiliar`, `abstain`, or the answer itself."""
        return self.with_verdict(self.plain_answers)

    def with_verdict(self, plain_answers: Iterable[Any]) -> list[Any]:
        """Return answers with `unfamiliar` or `abstain` in place of those of samples without
        one.
        """
        rows = zip(plain_answers, self.unfamiliar.tolist(), self.abstain.tolist(), strict=True)
        return [
            "unfamiliar" if ood else "abstain" if unsure else answer for answer, ood, unsure in rows
        ]

    def verdict(self) -> Columns:
        """Return the columns that every task has."""
        nothing = [None] * len(self.members_run)
        return {
            "ood_score": digits(self.ood_score) if self.decided else nothing,
            "unfamiliar": self.unfamiliar.tolist() if self.decided else nothing,
        }

    @property
    def rows(self) -> Answers:
        """One row for each sample, as `predict` writes it."""
        ids = range(len(self.members_run)) if self.ids is None else self.ids
        return Answers(
            rows_of(self, [{"id": sample_id} for sample_id in ids], names=self.names, top=TOP)
        )

    def __repr__(self) -> str:
        return repr(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each sample."""
        return self.rows.to_pandas()


Joinable = TypeVar("Joinable", bound="Prediction | Judged")


def joined(parts: Sequence[Joinable], order: ndarray | slice = slice(None)) -> Joinable:
    """Concatenate predictions, optionally in another order."""
    first = parts[0]
    merged = {
        field.name: padded_words.joined([getattr(part, field.name) for part in parts])[order]
        for field in fields(first)
        if isinstance(getattr(first, field.name), ndarray)
    }
    return type(first)(**{**vars(first), **merged})


def rows_of(
    prediction: Prediction,
    row_prefixes: Sequence[dict[str, Any]],
    *,
    names: Sequence[str] | None,
    top: int,
    where: str = "the decision state",
) -> list[dict[str, Any]]:
    """Return one row for each sample that continues the row in `row_prefixes`; some columns are None
    without a decision state.

    Raises CheckpointError if a number is NaN or infinite, which JSON cannot express.
    """
    try:
        columns = prediction.columns(names, top)
        rows = zip(*columns.values(), strict=True)
        return [
            {**start, **dict(zip(columns, row, strict=True))}
            for start, row in zip(row_prefixes, rows, strict=True)
        ]
    except NotFinite as error:
        hint = "Run `hydrasurgeon calibrate` again: a number of its decision state is too large."
        raise CheckpointError(f"{where}: an answer is NaN or infinite", hint=hint) from error


def entities_in(row: Mapping[str, Any]) -> list[Any]:
    """Return the entities of a row, which tables hold as JSON."""
    entities = row["entities"]
    return list(json.loads(entities) if isinstance(entities, str) else entities)


def abstained(row: Mapping[str, Any]) -> bool:
    """Return True if a row, or one of its entities, has no answer because it is too uncertain."""
    answers = entities_in(row) if "entities" in row else [row]
    return any(answer.get("answer") == "abstain" for answer in answers)


class NotFinite(ValueError):
    """Error: a number of an answer is NaN or infinite."""


def digits(values: ndarray) -> list[float]:
    """Round to nine digits, more than the model's float32 has."""
    if not np.isfinite(values).all():
        raise NotFinite
    return [float(f"{value:.9g}") for value in values.tolist()]


@dataclass(frozen=True)
class Calibration:
    """Constants fitted on one part of the validation data, and their quality on the other part."""

    constants: Constants
    accuracy: float | None
    losses: Mapping[str, float]
    """NLL `before` and after calibration, by its method."""


@dataclass(frozen=True)
class Part:
    """Validation samples, and how they are answered."""

    outputs: Outputs
    answers: ndarray
    familiar: Bool[ndarray, " sample"]


@dataclass(frozen=True)
class Certifying:
    """Samples that thresholds are taken by."""

    fitting: Part
    """Samples on which the answers were fitted: they determine the order in which thresholds are
    tested.
    """
    parts: Sequence[Part]
    """Samples on which nothing was fitted and, if some are copies, these without the copies. A
    promise must hold on every one of them.
    """
    promise: CalibrateOptions
    constants: Constants


class Reads(Protocol):
    """Parts of a decision state by which answers are judged."""

    @property
    def record(self) -> DecisionRecord:
        """Decision record with the promises."""

    @property
    def conformal(self) -> Conformal | None:
        """Rule for prediction sets; None without one."""

    @property
    def constants(self) -> Constants:
        """Calibration constants."""

    def answers(self, logits: ndarray) -> ndarray:
        """Return `Task.answers` of the members that ran."""

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """Return the mutual information between these members, and whether they disagree."""


@dataclass(frozen=True, kw_only=True)
class Judged(ABC):
    """Answers on a labelled set with their correctness, without the logits."""

    labels: ndarray
    """True labels; they also show whether two models answered the same samples."""

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.labels)

    @abstractmethod
    def quality(self, rows: Rows) -> dict[str, Values]:
        """Return the metrics that models are compared by, on each resample."""

    @abstractmethod
    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        """Return a function that computes all metrics of resamples, including `quality`; NaN where
        a metric is undefined.
        """

    def figures(self) -> dict[str, float | None]:
        """Return the metrics that are computed once, on all samples."""
        return {}

    def familiar(self, unfamiliar: Bool[ndarray, " sample"]) -> Self:
        """Return a copy in which unfamiliar samples have no answer."""
        return self

    def sure(self) -> tuple[Scores, Bool[ndarray, " answer"]]:
        """Return the confidence of each answer, and whether it is right; empty for numbers."""
        return np.zeros(0), np.zeros(0, dtype=bool)

    def against(self, logits: ndarray, reading: Reads) -> dict[str, float | None]:
        """Return metrics, besides scores, of how well these samples are told from OOD samples."""
        return {}

    def diversity(self) -> dict[str, float]:
        """Return how much members differ."""
        return {}

    def by_class(self) -> Mapping[int, Mapping[str, float | None]]:
        """Return metrics of each class, the number of samples first; empty if answers are not
        classes.
        """
        return {}

    def class_names(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of the classes in `by_class`, from the model's class names."""
        return names

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        """Return the metrics whose bootstrap intervals are not meaningful."""
        return ()


@dataclass(frozen=True)
class Watched:
    """Properties of answers that `monitor` compares."""

    names: Sequence[str | int]
    """Names by which answers are counted."""
    most: float = math.inf
    """Maximum uncertainty of an answer."""
    promises: Mapping[str, float] = field(default_factory=dict)
    """Risks that labels can test."""


class Task(ABC):
    """A task: the meaning of a model's outputs and of its labels."""

    name: ClassVar[TaskName]
    scores: ClassVar[Collection[str]]
    """Available OOD scores of the logits."""
    features: ClassVar[Collection[str]] = ()
    """Available OOD scores that are fitted on features."""
    axes: ClassVar[tuple[str, ...]] = ("sample", "member", "class")
    """Axes of logits."""
    label_axes: ClassVar[tuple[str, ...]] = ("sample",)
    """Axes of labels."""
    one_class: ClassVar[bool] = False
    """True if OOD scores treat all samples as one class."""
    numbers: ClassVar[tuple[float, float] | None] = None
    """Range of labels; None if they are class numbers."""
    link: ClassVar[Link | None] = "softmax"
    """Meaning of outputs; None if each word has outputs."""
    columns: ClassVar[Mapping[str, str]]
    """Columns of a row of `predict`, with the kind of their values."""
    in_torch: ClassVar[str] = "hydrasurgeon.runtime.kinds:TorchSingleLabel"
    """Class that implements the task in graphs, as `module:class`."""
    trained_by: ClassVar[str] = "hydrasurgeon.tuning.losses:SingleLabelLosses"
    """Class that implements its training loss, as `module:class`."""
    labels: ClassVar[LabelRule] = CLASS_EACH
    """Labels that rows must have."""
    lacks: ClassVar[Mapping[str, str]] = {"--promise": "It says what is promised of entities."}
    """Unsupported features of the tool, with the reason or the alternative."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Return the arguments for pickling: the class, because instances hold no state."""
        return type(self), ()

    @abstractmethod
    def validated(
        self, logits: Float[ndarray, "sample *member klass"], labels: ndarray
    ) -> dict[str, float]:
        """Return the validation metrics that training logs; the last one selects weights, lower is
        better.
        """

    @abstractmethod
    def read(self, logits: Float[ndarray, "sample member klass"]) -> ndarray:
        """Return logits in the form that decisions need; logits in this form are returned
        unchanged.
        """

    def classifier(self, weight: ndarray, bias: ndarray) -> tuple[ndarray, ndarray]:
        """Return a classifier's weight and bias in the form that OOD scores need: one logit becomes
        no and yes.
        """
        if self.one_class:
            return weight[:1], bias[:1]
        return yes_or_no(weight.T).T, yes_or_no(bias)

    def choices(
        self, logits: Float[ndarray, "sample member klass"], labels: ndarray | None = None
    ) -> tuple[Float[ndarray, "choice member klass"], Labels]:
        """Return each choice between classes with its true class, if labels are given; each of many
        labels is a choice of its own.
        """
        raise self._without_classes

    @property
    def _without_classes(self) -> SurgeryError:
        return SurgeryError(f"this is for models that choose one class, and not {self.name}")

    def outputs(self, outputs: Outputs) -> Outputs:
        """Return logits and labels in the form that decisions need; if OOD scores see one class,
        the labels become `original_labels`.
        """
        if self.one_class:
            labels = None
            if outputs.labels is not None:
                labels = np.zeros(len(outputs.labels), dtype=np.int64)
            return replace(outputs, labels=labels, original_labels=outputs.labels)
        return replace(outputs, logits=self.read(outputs.logits))

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        """Fit calibration constants on some outputs."""
        raise self._without_classes

    @abstractmethod
    def constants(self, record: DecisionRecord) -> Constants:
        """Return the calibration constants of a decision record."""

    @abstractmethod
    def answers(self, logits: ndarray, constants: Constants) -> ndarray:
        """Return the values that thresholds apply to: calibrated probabilities, or numbers and
        deviations.
        """

    def chances(self, answers: ndarray) -> Float[ndarray, "choice klass"]:
        """Return the probabilities of each choice."""
        return answers

    @abstractmethod
    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> Judged:
        """Return answers to labelled samples with their correctness."""

    def decide(
        self, logits: ndarray, record: DecisionRecord | None = None, score: Scores | None = None
    ) -> Prediction:
        """Answer samples.

        With a decision record and OOD scores, answers are calibrated and have prediction sets,
        unfamiliar samples are marked, and uncertain answers abstain.
        """
        plain = self.plain(logits, {} if record is None else self.constants(record))
        if record is None or score is None:
            return plain
        unfamiliar = score > record.ood.threshold
        decided = replace(plain, ood_score=score, unfamiliar=unfamiliar, decided=True)
        return replace(decided, **self.limited(decided, record))

    @abstractmethod
    def plain(self, logits: ndarray, constants: Constants) -> Prediction:
        """Return the answers without OOD scores."""

    def limited(self, decided: Prediction, record: DecisionRecord) -> dict[str, Any]:
        """Return the fields that the limits of a decision record change."""
        return {}

    @abstractmethod
    def watched(self, model: Model, decision: DecisionRecord) -> Watched:
        """Return the settings of `monitor`."""

    @abstractmethod
    def counted(self, decision: DecisionRecord, row: Mapping[str, Any]) -> str:
        """Return the name under which `monitor` counts a row of `predict`."""

    def broken(self, row: Mapping[str, Any], truth: str) -> Mapping[str, bool]:
        """Return the promises that apply to an answer, and whether it breaks them."""
        return {}

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        """Return the names under which `serve` counts a row."""
        return ()

    def unsure(self, row: Mapping[str, Any]) -> float:
        """Return the uncertainty of a row's answer."""
        return float(row["total"])

    @abstractmethod
    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Fit constants on the first part and measure them on the second."""

    @abstractmethod
    def check_labels(self, fitting: Outputs, certifying: Outputs, fit: Calibration) -> None:
        """Refuse labels that do not fit the answers."""

    def graded(self, part: Part) -> Graded:
        """Return the confidence of familiar answers, and whether they are right."""
        raise self._without_classes

    @abstractmethod
    def promised(self, by: Certifying) -> dict[str, Any]:
        """Return thresholds as fields of a `DecisionRecord`; Unpromised if none keeps the risk."""


def need_feature(
    task: Task, feature: str, name: str, error: type[HydraError] = SurgeryError
) -> None:
    """Raise an error if a task does not support a feature."""
    if feature in task.lacks:
        raise error(
            f"{feature} is only for models that choose one class, and {name} is a {task.name} model",
            hint=task.lacks[feature],
        )
