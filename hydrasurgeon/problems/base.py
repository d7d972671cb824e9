"""The verbs of a kind of problem, and what passes between them."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.data.matching import READ, Match
from hydrasurgeon.errors import CheckpointError, HydraError, SurgeryError
from hydrasurgeon.files.decided import (
    Conformal,
    Decision,
)
from hydrasurgeon.files.manifest import Model, ProblemName
from hydrasurgeon.options.deciding import CalibrateOptions
from hydrasurgeon.problems.printed import Answers
from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics import words
from hydrasurgeon.statistics.abstain import Graded
from hydrasurgeon.statistics.bootstrap import Rows, Values
from hydrasurgeon.statistics.probabilities import Labels, Scores, yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, scores_of

if TYPE_CHECKING:
    import pandas as pd

TOP = 5
"""Most probable labels that a row lists."""
DOUBTS = {
    **dict.fromkeys(("total", "aleatoric", "epistemic", "ood_score"), "number"),
    "unfamiliar": "flag",
    "members_run": "whole",
    **dict.fromkeys(("answer", "error"), "text"),
}
"""What a row says of how sure an answer is."""

Columns = Mapping[str, Iterable[Any]]
"""Name of a column → a value for each sample."""
Link = Literal["softmax", "sigmoid", "square"]
"""Probabilities of classes, or of yes; or a number that errs by a square."""
Constants = Mapping[str, Any]
"""What calibrates, as fields of a `Decision`."""


@dataclass(frozen=True)
class Outputs:
    """What a model said of some samples."""

    logits: Float[ndarray, "sample member *klass"]
    features: Float[ndarray, "sample member width"] | None
    """None where only scores of the logits are asked for."""
    labels: ndarray | None = None
    shares: ndarray | None = None
    """Of one logit how true yes is, of which the labels are the nearer class; the numbers, or the
    tags of words, where OOD scores see one class.
    """
    groups: Int[ndarray, " sample"] | None = None
    """The number of each sample's group, which a split keeps whole."""
    certifies: Bool[ndarray, " sample"] | None = None
    """Which samples certify, where the data say so: the others fit."""
    inputs: Int[ndarray, " sample"] | None = None
    """The number of each sample's input, which copies share; None where copies cannot be told."""

    def at(self, rows: ndarray | slice) -> Outputs:
        parts = vars(self).values()
        return Outputs(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]

    def joined(self, other: Outputs) -> Outputs:
        """These and then the other's."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Outputs(*(None if pair[0] is None else words.joined(pair) for pair in pairs))  # type: ignore[arg-type]

    def of(self, member: int) -> tuple[ndarray, ndarray, ndarray]:
        """What OOD scores of a member are fitted on: features, logits (of words their mean), labels."""
        assert self.features is not None
        logits = self.logits[:, member]
        if logits.ndim == 3:
            logits = words.mean_of_words(logits)
        return self.features[:, member], logits, self.truth

    def among(self, members: Sequence[int]) -> Outputs:
        """The same of some members, in this order."""
        at = list(members)
        features = None if self.features is None else self.features[:, at]
        return replace(self, logits=self.logits[:, at], features=features)

    def scores(self, kind: str, fitted: EnsembleScore | None) -> Scores:
        """How unfamiliar they look."""
        return scores_of(kind, self.logits, self.features, fitted)

    @property
    def truth(self) -> Labels:
        """The labels, which are there."""
        assert self.labels is not None
        return self.labels


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction(ABC):
    """What is made of samples, which prints itself as rows; each kind of problem has its own."""

    members_run: Int[ndarray, " sample"]
    """How many members the answer is of."""
    ood_score: Float[ndarray, " sample"]
    """NaN without a decision state, by which then nothing is unfamiliar, and nobody abstains."""
    unfamiliar: Bool[ndarray, " sample"]
    abstain: Bool[ndarray, " sample"]
    """Not sure enough to keep the promised risk; never, where none was promised."""
    decided: bool = False
    """Whether a decision state made it."""
    ids: Sequence[str | int] | None = None
    """What the samples are called; else their numbers."""
    names: Sequence[str] | None = None
    """The classes."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> ndarray:
            """Each kind has tensors of its own."""

    def overflow(self) -> str | None:
        """Return the name of a field that holds what is not finite in float32, as some clients read
        it; None where no decision state answered: then NaN stands for what is not known.
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
        """The same, that may speak of places in what was asked."""
        return self

    @abstractmethod
    def columns(self, names: Sequence[str] | None, top: int) -> Columns:
        """What a row says of each sample."""

    @property
    @abstractmethod
    def given(self) -> Sequence[Any]:
        """What is answered, whether or not it is familiar."""

    @property
    @abstractmethod
    def uncertainty(self) -> Float[ndarray, " sample"]:
        """How unsure each answer is, for `monitor`."""

    @property
    @abstractmethod
    def tally(self) -> Int[ndarray, " klass"]:
        """Answers counted by what `Problem.classes` names, for `monitor`."""

    @property
    def answer(self) -> list[Any]:
        """`unfamiliar`, else `abstain`, else what is answered."""
        return self.with_verdict(self.given)

    def with_verdict(self, given: Iterable[Any]) -> list[Any]:
        """These answers, but of samples that have none."""
        rows = zip(given, self.unfamiliar.tolist(), self.abstain.tolist(), strict=True)
        return [
            "unfamiliar" if ood else "abstain" if unsure else each for each, ood, unsure in rows
        ]

    def verdict(self) -> Columns:
        """Columns that every kind has."""
        nothing = [None] * len(self.members_run)
        return {
            "ood_score": digits(self.ood_score) if self.decided else nothing,
            "unfamiliar": self.unfamiliar.tolist() if self.decided else nothing,
        }

    @property
    def rows(self) -> Answers:
        """A row for each sample, as `predict` writes it."""
        ids = range(len(self.members_run)) if self.ids is None else self.ids
        return Answers(rows_of(self, [{"id": each} for each in ids], names=self.names, top=TOP))

    def __repr__(self) -> str:
        return repr(self.rows)

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row for each sample."""
        return self.rows.to_pandas()


Each = TypeVar("Each", bound="Prediction | Judged")


def joined(parts: Sequence[Each], order: ndarray | slice = slice(None)) -> Each:
    """One after another, or in this order."""
    first = parts[0]
    whole = {
        each.name: words.joined([getattr(part, each.name) for part in parts])[order]
        for each in fields(first)
        if isinstance(getattr(first, each.name), ndarray)
    }
    return type(first)(**{**vars(first), **whole})


def rows_of(
    prediction: Prediction,
    begun: Sequence[dict[str, Any]],
    *,
    names: Sequence[str] | None,
    top: int,
    where: str = "the decision state",
) -> list[dict[str, Any]]:
    """One row for each sample, continuing what is `begun`; without a decision state some columns
    are None. CheckpointError where a number is NaN or infinite, for which JSON has no word.
    """
    try:
        columns = prediction.columns(names, top)
        rows = zip(*columns.values(), strict=True)
        return [
            {**start, **dict(zip(columns, row, strict=True))}
            for start, row in zip(begun, rows, strict=True)
        ]
    except NotFinite as error:
        hint = "Run `hydrasurgeon calibrate` again: a number of its decision state is too large."
        raise CheckpointError(f"{where}: an answer is NaN or infinite", hint=hint) from error


def entities_in(row: Mapping[str, Any]) -> list[Any]:
    """The entities of a row, which tables hold as JSON."""
    entities = row["entities"]
    return list(json.loads(entities) if isinstance(entities, str) else entities)


def abstained(row: Mapping[str, Any]) -> bool:
    """Whether a row, or one of its entities, gives no answer for want of certainty."""
    answers = entities_in(row) if "entities" in row else [row]
    return any(each.get("answer") == "abstain" for each in answers)


class NotFinite(ValueError):
    """A number of an answer is NaN or infinite."""


def digits(values: ndarray) -> list[float]:
    """Nine digits: more than the model's float32 has."""
    if not np.isfinite(values).all():
        raise NotFinite
    return [float(f"{value:.9g}") for value in values.tolist()]


@dataclass(frozen=True)
class Calibration:
    """What a part of the validation data fitted, and what the other one says of it."""

    constants: Constants
    accuracy: float | None
    losses: Mapping[str, float]
    """NLL `before` and after, by what calibrates."""


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
    """Those that fitted the answers: they say in which order thresholds are tested."""
    parts: Sequence[Part]
    """Those that fitted nothing; and, where some are copies, the same without the copies. A promise
    holds for each.
    """
    promise: CalibrateOptions
    constants: Constants


class Reads(Protocol):
    """How predictions are read where they are measured."""

    @property
    def record(self) -> Decision:
        """What was promised."""

    @property
    def conformal(self) -> Conformal | None:
        """What makes prediction sets."""

    @property
    def constants(self) -> Constants:
        """What calibrates."""

    def answers(self, logits: ndarray) -> ndarray:
        """`Problem.answers`, by the members that ran."""

    def apart(self, choices: ndarray) -> tuple[ndarray, ndarray]:
        """How far those members are apart: mutual information, and whether they disagree."""


@dataclass(frozen=True, kw_only=True)
class Judged(ABC):
    """Answers on a labelled set against the truth, sample by sample, without the logits."""

    labels: ndarray
    """What was true, by which is seen whether two models answered for the same samples."""

    @property
    def count(self) -> int:
        """Samples."""
        return len(self.labels)

    @abstractmethod
    def quality(self, rows: Rows) -> dict[str, Values]:
        """What models are compared by, of each resample."""

    @abstractmethod
    def measures(self) -> Callable[[Rows], dict[str, Values]]:
        """A function that measures resamples, `quality` among it; NaN where one has none."""

    def figures(self) -> dict[str, float | None]:
        """What is measured once, of all samples."""
        return {}

    def familiar(self, unfamiliar: Bool[ndarray, " sample"]) -> Self:
        """The same where these samples are not answered."""
        return self

    def sure(self) -> tuple[Scores, Bool[ndarray, " answer"]]:
        """How sure each answer is, and whether it is right; nothing where answers are numbers."""
        return np.zeros(0), np.zeros(0, dtype=bool)

    def against(self, logits: ndarray, reading: Reads) -> dict[str, float | None]:
        """What tells these samples from OOD ones, besides a score."""
        return {}

    def diversity(self) -> dict[str, float]:
        """How far members are apart."""
        return {}

    def by_class(self) -> Mapping[int, Mapping[str, float | None]]:
        """Measures of each class, how many there are first; nothing where answers are no classes."""
        return {}

    def class_names(self, names: Sequence[str]) -> Sequence[str]:
        """What those are called, by the names of the model's classes."""
        return names

    def unsteady(self, values: Mapping[str, Any]) -> Sequence[str]:
        """Measures whose resamples say little about them."""
        return ()


@dataclass(frozen=True)
class Watched:
    """What `monitor` compares of answers."""

    names: Sequence[str | int]
    """What they are counted by."""
    most: float = math.inf
    """How unsure one can be."""
    promises: Mapping[str, float] = field(default_factory=dict)
    """Risks that labels can test."""


class Problem(ABC):
    """How the outputs of a model are read, and what its labels are."""

    name: ClassVar[ProblemName]
    scores: ClassVar[Collection[str]]
    """OOD scores of the logits that it has."""
    features: ClassVar[Collection[str]] = ()
    """OOD scores that it can have fitted to features."""
    axes: ClassVar[tuple[str, ...]] = ("sample", "member", "class")
    """Those of logits."""
    label_axes: ClassVar[tuple[str, ...]] = ("sample",)
    """Those of labels."""
    one_class: ClassVar[bool] = False
    """Whether OOD scores see one class alone."""
    numbers: ClassVar[tuple[float, float] | None] = None
    """Between which labels lie, where they are no class numbers."""
    link: ClassVar[Link | None] = "softmax"
    """What outputs mean; None where each is a word's."""
    columns: ClassVar[Mapping[str, str]]
    """What a row of `predict` holds, and what kind of value each is."""
    in_torch: ClassVar[str] = "hydrasurgeon.runtime.kinds:OfClasses"
    """What it means in graphs, as `module:class`."""
    trained_by: ClassVar[str] = "hydrasurgeon.tuning.losses:OfClasses"
    """What training minimizes, the same way."""
    labels: ClassVar[tuple[Match, str, str]] = READ["single_label"]
    """How labels are fitted to a model, what a row must have, and a hint."""
    lacks: ClassVar[Mapping[str, str]] = {"--promise": "It says what is promised of entities."}
    """Features of the tool that it has not → why, or what it has instead."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Processes exchange it by its class, which holds nothing."""
        return type(self), ()

    @abstractmethod
    def validated(
        self, logits: Float[ndarray, "sample *member klass"], labels: ndarray
    ) -> dict[str, float]:
        """What training logs of a validation set; weights are kept by the last, the lower the
        better.
        """

    @abstractmethod
    def read(self, logits: Float[ndarray, "sample member klass"]) -> ndarray:
        """Logits as decisions take them; what was read already stays as it is."""

    def classifier(self, weight: ndarray, bias: ndarray) -> tuple[ndarray, ndarray]:
        """A classifier's weight and bias as OOD scores take them; one logit's are of no and yes."""
        if self.one_class:
            return weight[:1], bias[:1]
        return yes_or_no(weight.T).T, yes_or_no(bias)

    def choices(
        self, logits: Float[ndarray, "sample member klass"], labels: ndarray | None = None
    ) -> tuple[Float[ndarray, "choice member klass"], Labels]:
        """Each choice between classes, and the class that it should have made, where that is known;
        of many labels each is a choice of its own.
        """
        raise self._without_classes

    @property
    def _without_classes(self) -> SurgeryError:
        return SurgeryError(f"this is for models that choose one class, and not {self.name}")

    def outputs(self, outputs: Outputs) -> Outputs:
        """Logits and labels as decisions take them; where OOD scores see one class, the labels are
        the shares.
        """
        if self.one_class:
            labels = None
            if outputs.labels is not None:
                labels = np.zeros(len(outputs.labels), dtype=np.int64)
            return replace(outputs, labels=labels, shares=outputs.labels)
        return replace(outputs, logits=self.read(outputs.logits))

    def fitted(self, outputs: Outputs) -> dict[str, Any]:
        """What calibrates, fitted to some outputs."""
        raise self._without_classes

    @abstractmethod
    def constants(self, record: Decision) -> Constants:
        """What calibrates, of a record."""

    @abstractmethod
    def answers(self, logits: ndarray, constants: Constants) -> ndarray:
        """What thresholds are taken on: calibrated probabilities, or numbers and deviations."""

    def chances(self, answers: ndarray) -> Float[ndarray, "choice klass"]:
        """The probabilities of each choice."""
        return answers

    @abstractmethod
    def judged(self, logits: ndarray, labels: ndarray, reading: Reads) -> Judged:
        """Answers to some samples against the truth."""

    def decide(
        self, logits: ndarray, record: Decision | None = None, score: Scores | None = None
    ) -> Prediction:
        """What is answered; by a decision state and the OOD score of each sample calibrated, with
        prediction sets, with what is unfamiliar, and where to abstain.
        """
        plain = self.plain(logits, {} if record is None else self.constants(record))
        if record is None or score is None:
            return plain
        unfamiliar = score > record.ood.threshold
        decided = replace(plain, ood_score=score, unfamiliar=unfamiliar, decided=True)
        return replace(decided, **self.limited(decided, record))

    @abstractmethod
    def plain(self, logits: ndarray, constants: Constants) -> Prediction:
        """What is answered without an OOD score."""

    def limited(self, decided: Prediction, record: Decision) -> dict[str, Any]:
        """What the limits of a decision state change, as fields."""
        return {}

    @abstractmethod
    def watched(self, model: Model, decision: Decision) -> Watched:
        """What `monitor` compares."""

    @abstractmethod
    def counted(self, decision: Decision, row: Mapping[str, Any]) -> str:
        """By which of the names a row of `predict` is counted."""

    def broken(self, row: Mapping[str, Any], truth: str) -> Mapping[str, bool]:
        """The promises that an answer comes under, and whether it breaks them."""
        return {}

    def named(self, row: Mapping[str, Any]) -> Sequence[str]:
        """What `serve` counts a row by."""
        return ()

    def unsure(self, row: Mapping[str, Any]) -> float:
        """How unsure a row's answer is."""
        return float(row["total"])

    @abstractmethod
    def calibrated(self, fitting: Outputs, certifying: Outputs) -> Calibration:
        """Constants that the first part fits; DataError where the labels do not fit the answers."""

    def graded(self, part: Part) -> Graded:
        """Familiar answers, and whether they are right."""
        raise self._without_classes

    @abstractmethod
    def promised(self, by: Certifying) -> dict[str, Any]:
        """Thresholds, as fields of a `Decision`; Unpromised where none keeps the risk."""


def need_feature(
    problem: Problem, feature: str, name: str, error: type[HydraError] = SurgeryError
) -> None:
    """Refuse what a kind has not."""
    if feature in problem.lacks:
        raise error(
            f"{feature} is only for models that choose one class, and {name} is a {problem.name} model",
            hint=problem.lacks[feature],
        )
