"""build's table: what a choice of members is worth, measured once, and by these figures it is
chosen, shown and recorded.

Each half of the samples judges what the other half chose: the members, and a decision state, which
is fitted as `calibrate` fits it: what calibrates, and the OOD score. Scores of the two halves are
joined as ranks within their half, so that AUROC is about the mean of the halves'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from hydrasurgeon.building.answers import Answers
from hydrasurgeon.building.cost import UNITS
from hydrasurgeon.building.members import Member
from hydrasurgeon.decision.beside import fit_beside
from hydrasurgeon.decision.cascade_fit import gated
from hydrasurgeon.decision.cascaded import Said, answers_in_stages, in_stages, stage_state
from hydrasurgeon.decision.fitting import halves
from hydrasurgeon.decision.ood_score import Choice as Score
from hydrasurgeon.decision.ood_score import Grounds, choose
from hydrasurgeon.decision.state import State
from hydrasurgeon.decision.words import Kind
from hydrasurgeon.files.decided import LOGITS, Conformal, Decision, Ood
from hydrasurgeon.measuring.measure import Answered, answered
from hydrasurgeon.measuring.predictions import Predictions
from hydrasurgeon.problems import SINGLE
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.statistics.bootstrap import Ranked, Rows, Values, bootstrap
from hydrasurgeon.statistics.scores.fitted import OwnLogits

AUTO = "auto"
"""The OOD score that a decision state chooses."""
STATE = "state"
"""What the scores of a decision state are called here."""
RESAMPLES = 200
"""Resamples of the samples, by which standard errors are told."""
PENALTY = 10.0
"""What a point of accuracy below the floor costs, in points of the objective."""
ONE_SIDE = 0.6827
"""Level of an interval of one standard error to each side."""
FLAGGED = 0.05
"""Of familiar samples, the fraction that a decision state flags if nobody says otherwise."""
Figures = Mapping[str, ndarray]
Reads = Literal["off", "beside", "first", "alone"]
"""Where words answer: nowhere, with the model, before it, or in its place, and the model says what is OOD."""


def right_of(figures: Figures) -> ndarray:
    """The share of answers that are right, of tags those of words."""
    return next(figures[name] for name in ("accuracy", "token_accuracy") if name in figures)


@dataclass(frozen=True)
class Objective:
    """How figures become one number, the higher the better."""

    name: str
    floor: float = 0.0
    """An accuracy: each point below it costs `PENALTY` points where OOD data choose."""

    @property
    def score(self) -> str:
        """The OOD score whose AUROC it looks at."""
        if self.name in LOGITS:
            return self.name
        return AUTO

    @property
    def sees_ood(self) -> bool:
        return self.name not in ("acc", "nll", "rmse")

    def value(self, figures: Figures) -> ndarray:
        """`avg` is the mean of accuracy, of the typical probability of the true class e^-NLL, and of
        AUROC where there are OOD data.
        """
        if self.name == "rmse":
            return -figures["rmse"]
        accuracy, typical = right_of(figures), np.exp(-figures["nll"])
        if self.name == "nll":
            return -figures["nll"]
        if self.name == "acc":
            return accuracy
        if self.name == "avg":
            parts = [accuracy, typical]
            if "auroc" in figures:
                parts.append(figures["auroc"])
            value = np.stack(parts).mean(axis=0)
        else:
            value = figures["auroc"]
        return value - PENALTY * np.maximum(self.floor - accuracy, 0)


@dataclass(frozen=True)
class Choice:
    """Members that answer together, and those that each half of the samples would choose."""

    members: tuple[Member, ...]
    halves: tuple[tuple[Member, ...], tuple[Member, ...]]
    """Chosen on the first half, and on the rest."""
    name: str = ""
    """Of a plain rival."""
    engine: str = "torch"
    """What computes it."""
    assumed: bool = False
    """Whether it is taken to answer as in float32, and its members to run one after another."""
    words: Reads = "off"
    most_on: float = 1.0
    """Where words come first, the fraction of samples that may go on to the members."""

    @classmethod
    def of(cls, *members: Member, name: str = "") -> Choice:
        """Members that no sample chose."""
        return cls(members, (members, members), name)

    @property
    def count(self) -> int:
        """How many answer."""
        return sum(member.count for member in self.members)


@dataclass(frozen=True)
class Read:
    """What a reader of words says of VAL and of each OOD set, [sample, output], and in the last
    column how novel each sample is to it.
    """

    kind: Kind
    sets: tuple[ndarray, ...]
    labelled: ndarray
    """Samples of VAL that have a label."""
    targets: ndarray
    """What the outputs should be."""

    def beside(
        self, outputs: Sequence[Outputs], fits: ndarray, judges: ndarray, *, instead: bool
    ) -> list[Outputs]:
        """What a model said of each set, with what words add by weights of one half of VAL."""
        model = outputs[0].logits.astype(np.float64)
        parts = (np.intersect1d(rows, self.labelled) for rows in (fits, judges))
        read = self.sets[0][:, :-1]
        fitted = fit_beside(self.kind, model, read, self.targets, *parts, instead=instead)
        a, b = fitted.weights
        mixed = (
            a * said.logits.astype(np.float64) + b * read[:, None, :-1]
            for said, read in zip(outputs, self.sets, strict=True)
        )
        return [
            replace(said, logits=both.astype(said.logits.dtype))
            for said, both in zip(outputs, mixed, strict=True)
        ]

    def first(self, outputs: Sequence[Outputs]) -> list[Outputs]:
        """What words say alone."""
        each = [read.astype(np.float32)[:, None] for read in self.sets]
        return [
            replace(said, logits=read[..., :-1], features=read[..., -1:])
            for said, read in zip(outputs, each, strict=True)
        ]


@dataclass(frozen=True)
class Row:
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


@dataclass(frozen=True)
class Entry:
    """A choice with its cost and its figures."""

    choice: Choice
    cost: Mapping[str, float]
    answers: Answered
    objective: Objective
    score: str = AUTO
    """The OOD score of its decision state; without OOD data `calibrate` chooses it."""

    @property
    def is_plain(self) -> bool:
        """Whether it is a rival that needs no surgery."""
        return bool(self.choice.name)

    @cached_property
    def value(self) -> float:
        """By what is reported."""
        return self.objective.value(self.figures()).item()

    def figures(self, *rows: Rows) -> dict[str, Values]:
        """What a row holds, of all samples or of those drawn."""
        chosen = rows or [np.arange(count)[None] for count in self.counts]
        figures = self.answers.inside.quality(chosen[0])
        # Of numbers no deviation is calibrated.
        figures.pop("nll" if self.objective.name == "rmse" else "brier", None)
        pairs = zip(self._ranked, chosen[1:], strict=True)
        sets = [ranked.metrics(chosen[0], drawn) for ranked, drawn in pairs]
        for name in ("auroc", "fpr95"):
            if sets:
                figures[name] = np.stack([each[name] for each in sets]).mean(axis=0)
        return figures

    @property
    def counts(self) -> list[int]:
        """Samples of the validation set and of each OOD set."""
        return self.answers.counts

    @cached_property
    def _ranked(self) -> list[Ranked]:
        return self.answers.ranked

    def lead(self, other: Entry) -> tuple[float, float]:
        """By how much more it is worth than another, and the standard error of that: both are
        measured on the same resamples.
        """

        def difference(*rows: Rows) -> dict[str, Values]:
            values = [self.objective.value(each.figures(*rows)) for each in (self, other)]
            return {"lead": values[0] - values[1]}

        ends = bootstrap(difference, *self.counts, level=ONE_SIDE, repeats=RESAMPLES)
        low, high = ends["lead"]
        return self.value - other.value, (high - low) / 2

    def row(self, name: str) -> Row:
        """As the table shows it."""
        worth = {key: values.item() for key, values in self.figures().items()}
        return Row(name, self.choice.count, self.cost, worth, self.errors)

    @cached_property
    def errors(self) -> dict[str, float]:
        """Standard errors of its figures."""
        ends = bootstrap(self.figures, *self.counts, level=ONE_SIDE)
        return {key: (high - low) / 2 for key, (low, high) in ends.items()}


class Table:
    """Measures choices, each once."""

    def __init__(
        self,
        objective: Objective,
        read: Callable[[Member, str], Answers],
        timed: Callable[[Choice, float], Mapping[str, float]] = lambda choice, on: {},
        *,
        words: Callable[[], Read | None] = lambda: None,
        problem: Problem = SINGLE,
        leaves_out: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        self.objective = objective
        self.read = read
        self.timed = timed
        self.words = words
        self.problem = problem
        self.leaves_out = leaves_out
        """Fitted OOD scores that the model is not made for."""
        self.seed = seed
        self._entries: dict[tuple[object, ...], Entry] = {}

    def entry(self, choice: Choice) -> Entry:
        """What a choice is worth."""
        files = [[member.file for member in members] for members in choice.halves]
        how = (choice.name, choice.engine, choice.assumed, choice.words, choice.most_on)
        key = (*(member.file for member in choice.members), str(files), *how)
        if key not in self._entries:
            self._entries[key] = self._measured(choice)
        return self._entries[key]

    def _measured(self, choice: Choice) -> Entry:
        parts = [self._judged(choice, chosen_on) for chosen_on in (1, 0)]
        on = sum(part.on for part in parts) / 2
        cost: dict[str, float] = {
            unit: sum(member.cost[unit] for member in choice.members) for unit in UNITS
        }
        cost["macs"] *= on
        cost |= self.timed(choice, on)
        joined = _joined(parts, self.problem)
        return Entry(choice, cost, joined, self.objective, parts[1].score)

    def answers(self, choice: Choice, members: Sequence[Member]) -> Answers:
        """Of these together, as the choice's engine computes them."""
        engine = "torch" if choice.assumed else choice.engine
        return reduce(Answers.beside, (self.read(member, engine) for member in members))

    def _judged(self, choice: Choice, chosen_on: int) -> _Half:
        """What members that one half chose answer on the other, by a state that is fitted as
        `calibrate` fits it.
        """
        answers = self.answers(choice, choice.halves[chosen_on])
        sets = (answers.val, *answers.ood)
        rows = [
            each[:: 1 - 2 * chosen_on] for each in (halves(len(s.logits), self.seed) for s in sets)
        ]
        problem, read = self.problem, self.words() if choice.words != "off" else None

        def halved(outputs: Sequence[Outputs], half: int) -> list[Outputs]:
            pairs = zip(outputs, rows, strict=True)
            return [problem.outputs(each.at(places[half])) for each, places in pairs]

        fitting, *foreign = halved(sets, 0)
        judging = halved(sets, 1)
        mixed: Sequence[Outputs] = sets
        if read is not None:
            mixed = read.beside(sets, *rows[0], instead=choice.words == "alone")
        truth = answers.val.truth[rows[0][1]]
        if self.objective.name == "rmse":
            (said, *_) = halved(mixed, 1)
            return _Half(truth, [problem.said(problem.answers(said.logits, {}))], [])
        score = Score("msp")
        if foreign:
            grounds = Grounds(
                answers.linear, answers.evidence or None, foreign, (), self.leaves_out
            )
            score = choose(self.objective.score, fitting, grounds, problem=problem, seed=self.seed)
        constants: dict[str, Any] = {"temperature": 1.0, **problem.fitted(halved(mixed, 0)[0])}
        scores = fitting.scores(score.kind, score.fitted).astype(np.float64)
        ood: dict[str, Any] = {"score": score.kind, "threshold": np.quantile(scores, 1 - FLAGGED)}
        fields = {
            "ood": Ood.model_construct(**ood),
            "conformal": Conformal(
                method="lac", coverage=0.9, threshold=1.0
            ),  # sets are not judged
            **constants,
        }
        state = State(Decision.model_construct(**fields), score.fitted, problem)
        if read is None or choice.words != "first":
            scored = [state.ood_score(each.logits, each.features) for each in judging]
            chances, on = [state.answers(each.logits) for each in halved(mixed, 1)], 1.0
        else:
            whole = mixed
            if score.fitted is None:
                state = replace(state, fitted=OwnLogits(score.kind, (), (), read=problem.read))
                pairs = zip(mixed, sets, strict=True)
                whole = [replace(each, features=own.logits) for each, own in pairs]
            first = read.first(sets)
            early, late = ([halved(each, half) for half in (0, 1)] for each in (first, whole))
            scored, chances, on = _in_stages(state, choice, early, late)
        logits = [problem.said(each) for each in chances]
        ranks = _ranks([each.astype(np.float64) for each in scored]) if foreign else []
        return _Half(truth, logits, ranks, score.kind if foreign else self.objective.score, on)


@dataclass(frozen=True)
class _Half:
    """Calibrated answers on one half of the samples."""

    labels: ndarray
    logits: Sequence[Float[ndarray, "sample *any klass"]]
    """Of a single model that would answer so, of the validation set and of each OOD set."""
    ranks: Sequence[Float[ndarray, " sample"]]
    """Where each sample stands by the OOD score among all samples of this half."""
    score: str = AUTO
    """The OOD score."""
    on: float = 1.0
    """The fraction of samples that the members answer."""


def _joined(parts: Sequence[_Half], problem: Problem) -> Answered:
    """Both halves, as one model's answers."""
    logits, *outside = (
        np.concatenate(rows)[:, None] for rows in zip(*(part.logits for part in parts), strict=True)
    )
    scores = [np.concatenate(ranks) for ranks in zip(*(part.ranks for part in parts), strict=True)]
    ood = {str(number): Outputs(rows, None) for number, rows in enumerate(outside)}
    ranks = {name: {STATE: each} for name, each in zip(["", *ood], scores, strict=False)}
    labels = np.concatenate([part.labels for part in parts])
    said = Predictions("calibrated", "hydra", Outputs(logits, None, labels), ood, scores=ranks)
    return answered(said, State.unfitted(problem), (STATE,))


def _in_stages(
    state: State,
    choice: Choice,
    first: Sequence[Sequence[Outputs]],
    whole: Sequence[Sequence[Outputs]],
) -> tuple[list[ndarray], list[ndarray], float]:
    """OOD scores and answers on one half of each set, of words that answer first and were
    calibrated on the other; and the fraction of VAL that goes on. Both halves are given of what
    words say, and of the whole model.
    """
    (val, *foreign), judging = zip(first[0], whole[0], strict=True), first[1]
    state = gated(state, *val, foreign=foreign, words=True, most_on=choice.most_on)
    staged = [in_stages(state, *pair) for pair in zip(judging, whole[1], strict=True)]
    on = len(staged[0][1].rows) / len(judging[0].logits)
    scores = [_scores_in_stages(state, parts) for parts in staged]
    return scores, [answers_in_stages(state, parts) for parts in staged], on


def _scores_in_stages(state: State, parts: Sequence[Said]) -> ndarray:
    """Each sample's by the stage that answers it."""
    each = [
        stage_state(state, first=part.first).ood_score(part.logits, part.features) for part in parts
    ]
    return np.concatenate(each)[np.concatenate([part.rows for part in parts]).argsort()]


def _ranks(sets: Sequence[ndarray]) -> list[ndarray]:
    """The place of each value among all of them, equal ones sharing theirs, between 0 and 1."""
    if not sets:
        return []
    everything = np.concatenate([*sets])
    distinct, places = np.unique(everything, return_inverse=True)
    ends = np.cumsum([len(each) for each in sets])[:-1]
    return np.split(places / max(1, len(distinct) - 1), ends)
