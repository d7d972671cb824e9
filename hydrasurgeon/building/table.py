"""build's table: what a choice of members is worth, by the fit of `calibrate` and the measures of
`eval`; by these figures it is chosen, shown and recorded.

Each half of the samples judges the decision state that the other half fitted. Scores of the two
halves are joined as ranks within their half, so that AUROC is about the mean of the halves'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, Literal, TypeVar

import numpy as np
from numpy import ndarray

from hydrasurgeon.building.answers import MemberOutputs
from hydrasurgeon.building.clock import SETS
from hydrasurgeon.building.members import MemberModel
from hydrasurgeon.decision.blend import fit_blend
from hydrasurgeon.decision.cascade_fit import gated
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.decision.ood_score import Grounds, ScoreChoice, choose
from hydrasurgeon.decision.state import State, in_stages
from hydrasurgeon.decision.text_model import Reading, targets_of
from hydrasurgeon.files import decided
from hydrasurgeon.files.decided import LOGITS, DecisionRecord, Ood
from hydrasurgeon.measuring.cascades import Staged, side_by_side
from hydrasurgeon.measuring.measure import Answered, judged
from hydrasurgeon.statistics.bootstrap import Rows, Values, bootstrap
from hydrasurgeon.tasks import SINGLE
from hydrasurgeon.tasks.base import Judged, Outputs, Task, joined

AUTO = "auto"
"""The OOD score that a decision state chooses."""
UNCHOSEN = "msp"
"""The one in use where no OOD data choose it."""
PENALTY = 10.0
"""Loss for each point of accuracy below the floor, in points of the objective."""
ONE_SIDE = 0.6827
"""Level of an interval of one standard error to each side."""
FLAGGED = 0.05
"""Fraction of familiar samples that a decision state flags by default."""
Figures = Mapping[str, ndarray]
Value = TypeVar("Value", ndarray, float)
Reads = Literal["off", "blend", "cascade"]
"""Use of the bag-of-words model: none, a blend with the model, or a cascade before it."""


def right_of(figures: Mapping[str, Value]) -> Value:
    """Return the accuracy of the answers; for tags that of words."""
    return next(figures[name] for name in ("accuracy", "token_accuracy") if name in figures)


@dataclass
class BuildObjective:
    """A single value made of several figures; higher is better."""

    name: str
    floor: float = 0.0
    """An accuracy: each point below it costs `PENALTY` points where OOD data choose."""

    @property
    def score(self) -> str:
        """The OOD score whose AUROC it looks at."""
        return self.name if self.name in LOGITS else AUTO

    def value(self, figures: Figures) -> ndarray:
        """Return the value of the objective. `avg` is the mean of accuracy, of the typical
        probability of the true class e^-NLL, and of AUROC with OOD data.
        """
        if self.name in ("rmse", "nll"):
            return -figures[self.name]
        accuracy = right_of(figures)
        if self.name == "acc":
            return accuracy
        if self.name == "avg":
            parts = [accuracy, np.exp(-figures["nll"])]
            if "auroc" in figures:
                parts.append(figures["auroc"])
            value = np.stack(parts).mean(axis=0)
        else:
            value = figures["auroc"]
        return value - PENALTY * np.maximum(self.floor - accuracy, 0)


@dataclass(frozen=True)
class Candidate:
    """Members that answer together, and how."""

    members: tuple[MemberModel, ...]
    name: str = ""
    """Name of a plain rival; empty for others."""
    engine: str = "torch"
    """Engine that computes it."""
    assumed: bool = False
    """True if the figures assume float32 answers, and members that run one after another."""
    words: Reads = "off"
    most_on: float = 1.0
    """Largest fraction of samples that go on to the members when words answer first."""

    @classmethod
    def of(cls, *members: MemberModel, name: str = "") -> Candidate:
        """Return the members in float32, without a bag-of-words model."""
        return cls(members, name)

    @property
    def count(self) -> int:
        """Number of ensemble members."""
        return len(self.members)


@dataclass(frozen=True)
class TableRow:
    """One line of the table."""

    name: str
    members: int
    cost: Mapping[str, float]
    """Multiply-adds and parameters, times the unpruned model's; with a budget of time also that,
    and milliseconds.
    """
    worth: Mapping[str, float]
    """accuracy (of words, and f1 of entities), nll, ece; and auroc, fpr95 of the decision state's
    score, the mean over OOD sets.
    """
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of what it is worth."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A choice with its cost and its figures."""

    choice: Candidate
    cost: dict[str, float]
    answers: Answered
    objective: BuildObjective
    score: str = AUTO
    """The OOD score of its decision state; without OOD data `calibrate` chooses it."""

    @property
    def is_plain(self) -> bool:
        """True for a rival that needs no surgery."""
        return bool(self.choice.name)

    @cached_property
    def value(self) -> float:
        """Value of the reported objective."""
        return self.objective.value(self.figures(*self.answers.everything)).item()

    def figures(self, *rows: Rows) -> dict[str, Values]:
        """Return the figures of a row for resamples of each set."""
        figures = self.answers.quality(*rows)
        figures.pop("brier", None)
        return figures

    def row(self, name: str) -> TableRow:
        """Return the line of the table."""
        return TableRow(name, self.choice.count, self.cost, self.worth, self.errors)

    @cached_property
    def worth(self) -> dict[str, float]:
        """Its figures."""
        figures = self.figures(*self.answers.everything)
        return {key: values.item() for key, values in figures.items()}

    @cached_property
    def errors(self) -> dict[str, float]:
        """Standard errors of its figures."""
        ends = bootstrap(self.figures, *self.answers.counts, level=ONE_SIDE)
        return {key: (high - low) / 2 for key, (low, high) in ends.items()}


@dataclass(frozen=True)
class _Kept(Reading):
    """A reader of which only the answers are kept: these stand for the samples."""

    reader: Any = None
    see: Any = None

    def read(self, samples: Any) -> ndarray:
        answers: ndarray = samples
        return answers


@dataclass(frozen=True)
class _Half:
    """Answers on one half of the samples, by a state that the other one fitted."""

    inside: Judged
    ranks: Sequence[ndarray]
    """Rank of each sample of VAL and of each OOD set by the OOD score, within this half."""
    score: str
    """The OOD score."""
    on: float = 1.0
    """The fraction of samples that the members answer."""


class CandidateTable:
    """Measures choices, each once."""

    def __init__(
        self,
        objective: BuildObjective,
        read: Callable[[MemberModel, str], MemberOutputs],
        cost: Callable[[Candidate, float], dict[str, float]] = lambda choice, on: {},
        *,
        words: Callable[[], Sequence[ndarray] | None] = lambda: None,
        task: Task = SINGLE,
        leaves_out: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.objective = objective
        self.read = read
        self.cost = cost
        self.words = words
        """Word reader's outputs on VAL and each OOD set, [sample, output]; the last column is the
        novelty of the sample.
        """
        self.task = task
        self.leaves_out = leaves_out
        """Fitted OOD scores that the model is not made for."""
        self.seed = seed
        self._entries: dict[Candidate, Entry] = {}

    @property
    def entries(self) -> Sequence[Entry]:
        """Entries of all choices that were measured."""
        return [*self._entries.values()]

    def entry(self, choice: Candidate) -> Entry:
        """Return the measured entry of a choice."""
        if choice not in self._entries:
            parts = [self._half(choice, fits_on) for fits_on in (1, 0)]
            cost = self.cost(choice, sum(part.on for part in parts) / 2)
            ranks = zip(*(part.ranks for part in parts), strict=True)
            answers = _answered(joined([p.inside for p in parts]), [*map(np.concatenate, ranks)])
            entry = Entry(choice, cost, answers, self.objective, parts[1].score)
            self._entries[choice] = entry
        return self._entries[choice]

    def _answers(self, members: Sequence[MemberModel], engine: str) -> MemberOutputs:
        return reduce(MemberOutputs.beside, (self.read(member, engine) for member in members))

    def _state(self, val: Outputs, score: ScoreChoice, threshold: float = np.inf) -> State:
        """Return a decision state without promises."""
        ood: dict[str, Any] = {"score": score.kind, "threshold": threshold}
        fields = {"temperature": 1.0, **self.task.fitted(self.task.outputs(val))}
        fields |= {"ood": Ood.model_construct(**ood), "conformal": SETS}
        return State(DecisionRecord.model_construct(**fields), score.fitted, self.task)

    def _half(self, choice: Candidate, fits_on: int) -> _Half:
        """Return the answers on one half, with a state that is fitted on the other."""
        engine = "torch" if choice.assumed else choice.engine
        answers, task = self._answers(choice.members, engine), self.task
        sets = mixed = answers.sets
        parts = [halves(len(output.logits), self.seed, output.groups) for output in sets]
        rows = [output[:: 1 - 2 * fits_on] for output in parts]

        def halved(outputs: Sequence[Outputs], half: int) -> list[Outputs]:
            return [output.at(places[half]) for output, places in zip(outputs, rows, strict=True)]

        fitting, *ood_outputs = map(task.outputs, halved(sets, 0))
        score = ScoreChoice(UNCHOSEN if task.scores else "")
        if ood_outputs:
            grounds = Grounds(
                answers.linear, answers.evidence or None, ood_outputs, (), self.leaves_out
            )
            score = choose(self.objective.score, fitting, grounds, task=task, seed=self.seed)
        reading, read = self._reading(choice, sets[0], rows[0])
        threshold, on = np.inf, 1.0
        if choice.words == "cascade":
            threshold = np.quantile(fitting.scores(score.kind, score.fitted), 1 - FLAGGED)
        if reading is not None:
            pairs = zip(sets, read, strict=True)
            mixed = tuple(reading.blend(words_output, output) for words_output, output in pairs)
        state = self._state(mixed[0].at(rows[0][0]), score, float(threshold))
        if reading is not None:
            state = state.blended(reading.record, reading.reader)
            mixed = tuple(reading.scored(state, *pair) for pair in zip(mixed, sets, strict=True))
        judging = halved(mixed, 1)
        if reading is None or choice.words != "cascade":
            inside = judged(judging[0], state)
            scores = [
                state.ood_score(output.logits, output.features) for output in judging if ood_outputs
            ]
        else:
            first = [reading.first(*pair, task) for pair in zip(read, sets, strict=True)]
            early, late = halved(first, 0), [task.outputs(output) for output in halved(mixed, 0)]
            (val, *ood), most = zip(early, late, strict=True), choice.most_on
            state = gated(state, *val, ood=ood, words=True, most_on=most)
            inside, scores, on = _in_stages(state, halved(first, 1), judging)
        kind = score.kind if ood_outputs else self.objective.score
        return _Half(inside, _ranks(scores) if ood_outputs else [], kind, on)

    def _reading(
        self, choice: Candidate, val: Outputs, rows: Sequence[ndarray]
    ) -> tuple[Reading | None, Sequence[ndarray]]:
        """Return the reader with weights fitted on the first rows of VAL, and its outputs on each
        set.
        """
        read, link = self.words() if choice.words != "off" else None, self.task.link
        if read is None or link is None:
            return None, ()
        labelled, targets = targets_of(val.truth, link, val.logits.shape[-1])
        parts = (np.intersect1d(part, labelled) for part in rows)
        logits = val.logits.astype(np.float64)
        fitted = fit_blend(link, logits, read[0][:, :-1], targets, *parts)
        record: Any = {"weights": fitted.weights}
        return _Kept(decided.BagOfWordsRecord.model_construct(**record)), read


def _answered(inside: Judged, scores: Sequence[ndarray]) -> Answered:
    """Return answers with the OOD scores of VAL and of each OOD set."""
    named = [{AUTO: values} for values in scores]
    ood_scores = {str(number): values for number, values in enumerate(named[1:])}
    return Answered(inside, named[0] if named else {}, ood_scores)


def _in_stages(
    state: State, first: Sequence[Outputs], outputs: Sequence[Outputs]
) -> tuple[Judged, list[ndarray], float]:
    """Return the answers and OOD scores of a cascade that starts with words, and the fraction of
    samples that go on.
    """
    kind, measured, on = state.record.ood.score, [], []
    for pair in zip(first, map(state.task.outputs, outputs), strict=True):
        parts, (count, members, *classes) = in_stages(state, *pair), pair[1].logits.shape
        measured.append(side_by_side(state, parts, (count, 1 + members, *classes), [kind]))
        on.append(len(parts[1].rows) / count)
    stages = Staged(state.record, None, state.task, complete=state)
    inside = judged(Outputs(measured[0]["logits"], None, outputs[0].labels), stages)
    return inside, [values[kind] for values in measured], on[0]


def _ranks(sets: Sequence[ndarray]) -> list[ndarray]:
    """Return the rank of each value among all sets, between 0 and 1; equal values share a rank."""
    distinct, places = np.unique(np.concatenate(sets).astype(np.float64), return_inverse=True)
    ends = np.cumsum([len(values) for values in sets])[:-1]
    return np.split(places / max(1, len(distinct) - 1), ends)
