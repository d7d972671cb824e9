"""build's table: what a choice of members is worth, measured once, and by these figures it is
chosen, shown and recorded.

Each half of the samples judges what the other half chose: the members, and a decision state, which
is fitted as `calibrate` fits it: what calibrates, the OOD score. Scores of the two halves are joined as ranks within
their half, so that AUROC is about the mean of the halves'.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.clock import EIGHT_BITS
from hydrasurgeon.building.cost import UNITS, Unit
from hydrasurgeon.building.members import Member
from hydrasurgeon.decision.fitting import best_score
from hydrasurgeon.decision.state import State
from hydrasurgeon.files.decided import FITTED, LOGITS, Decision, Ood, Standard
from hydrasurgeon.measuring.answers import Answered, Reading, answered
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.problems.base import Outputs, Problem
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.bootstrap import Ranked, Rows, Values, bootstrap
from hydrasurgeon.statistics.scores.fitted import EnsembleScore

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
Figures = Mapping[str, Tensor]


def right_of(figures: Figures) -> Tensor:
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

    def value(self, figures: Figures) -> Tensor:
        """`avg` is the mean of accuracy, of the typical probability of the true class e^-NLL, and of
        AUROC where there are OOD data.
        """
        if self.name == "rmse":
            return -figures["rmse"]
        accuracy, typical = right_of(figures), (-figures["nll"]).exp()
        if self.name == "nll":
            return -figures["nll"]
        if self.name == "acc":
            return accuracy
        if self.name == "avg":
            parts = [accuracy, typical]
            if "auroc" in figures:
                parts.append(figures["auroc"])
            value = torch.stack(parts).mean(dim=0)
        else:
            value = figures["auroc"]
        return value - PENALTY * (self.floor - accuracy).clamp_min(0)


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

    @classmethod
    def of(cls, *members: Member, name: str = "") -> Choice:
        """Members that no sample chose."""
        return cls(members, (members, members), name)


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
        return float(self.objective.value(self.figures()))

    def figures(self, *rows: Rows) -> dict[str, Values]:
        """What a row holds, of all samples or of those drawn."""
        chosen = rows or [torch.arange(count)[None] for count in self.counts]
        figures = self.answers.inside.quality(chosen[0])
        # Of numbers no deviation is calibrated.
        figures.pop("nll" if self.objective.name == "rmse" else "brier", None)
        pairs = zip(self._ranked, chosen[1:], strict=True)
        sets = [ranked.metrics(chosen[0], drawn) for ranked, drawn in pairs]
        for name in ("auroc", "fpr95"):
            if sets:
                figures[name] = torch.stack([each[name] for each in sets]).mean(dim=0)
        return figures

    @property
    def counts(self) -> list[int]:
        """Samples of the validation set and of each OOD set."""
        inside = self.answers.inside.count
        return [inside, *(len(each.scores[STATE]) for each in self.answers.foreign)]

    @cached_property
    def _ranked(self) -> list[Ranked]:
        foreign = self.answers.foreign
        return [Ranked(self.answers.scores[STATE], each.scores[STATE]) for each in foreign]

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
        worth = {key: float(values) for key, values in self.figures().items()}
        return Row(name, len(self.choice.members), self.cost, worth, self.errors)

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
        read: Callable[[Member], Answers],
        cost: Callable[[Sequence[Member], Unit], float],
        timed: Callable[[Choice], Mapping[str, float]] = lambda choice: {},
    ) -> None:
        self.objective = objective
        self.read = read
        self.cost = cost
        self.timed = timed
        self._entries: dict[tuple[object, ...], Entry] = {}

    def entry(self, choice: Choice) -> Entry:
        """What a choice is worth."""
        files = [[member.file for member in members] for members in choice.halves]
        how = (choice.engine, choice.assumed)
        key = (*(member.file for member in choice.members), str(files), *how)
        if key not in self._entries:
            self._entries[key] = self._measured(choice)
        return self._entries[key]

    def _measured(self, choice: Choice) -> Entry:
        parts = [self._judged(choice, choice.halves[chosen_on], chosen_on) for chosen_on in (1, 0)]
        cost: dict[str, float] = {unit: self.cost(choice.members, unit) for unit in UNITS}
        cost |= self.timed(choice)
        score = self.objective.score
        everyone = [self._reads(choice)(member) for member in choice.members]
        if everyone[0].ood:
            score = state_score(everyone, score)
        joined = _joined(parts, everyone[0].problem)
        return Entry(choice, cost, joined, self.objective, score)

    def _reads(self, choice: Choice) -> Callable[[Member], Answers]:
        """What reads the answers of a choice's members, as they are computed."""
        if choice.engine == EIGHT_BITS and not choice.assumed:
            return partial(self.read, engine=EIGHT_BITS)  # type: ignore[call-arg]
        return self.read

    def _judged(self, choice: Choice, members: Sequence[Member], chosen_on: int) -> _Half:
        """What members that one half chose answer on the other."""
        read = self._reads(choice)
        halves = [read(member).halves() for member in members]
        fitting = [half[chosen_on] for half in halves]
        judging = [half[1 - chosen_on] for half in halves]
        problem, sets = judging[0].problem, outputs_of(judging)
        if self.objective.name == "rmse":
            values = problem.answers(sets[0].logits, {})
            return _Half(judging[0].labels, [problem.said(values)], [])
        state = self._state(fitting)
        said = [
            (state.answers(each.logits), state.ood_score(each.logits, each.features))
            for each in sets
        ]
        logits = [problem.said(answers) for answers, _ in said]
        ranks: list[Tensor] = []
        if judging[0].ood:
            ranks = _ranks([scores.double() for _, scores in said])
        return _Half(judging[0].labels, logits, ranks)

    def _state(self, fitting: Sequence[Answers]) -> State:
        """As `calibrate` fits it to these, without what is promised."""
        val = outputs_of(fitting)[0]
        kind = state_score(fitting, self.objective.score)
        ood: dict[str, Any] = {"score": kind, "threshold": math.inf}
        fields: dict[str, Any] = {"ood": Ood.model_construct(**ood), "conformal": None}
        fields |= {"temperature": 1.0, **fitting[0].problem.fitted(val)}
        record = Decision.model_construct(**fields)
        return State(record, scorer(kind, fitting), fitting[0].problem)


@dataclass(frozen=True)
class _Half:
    """Calibrated answers on one half of the samples."""

    labels: Tensor
    logits: Sequence[Float[Tensor, "sample *any klass"]]
    """Of a single model that would answer so, of the validation set and of each OOD set."""
    ranks: Sequence[Float[Tensor, " sample"]]
    """Where each sample stands by the OOD score among all samples of this half."""


@dataclass(frozen=True)
class ScoredBefore(EnsembleScore):
    """An OOD score whose values of each member come in place of features."""

    column: int = 0

    def __call__(self, features: Tensor, logits: Tensor) -> Tensor:
        means, deviations = (
            torch.tensor([getattr(each, name) for each in self.standards], dtype=torch.float64)
            for name in ("mean", "deviation")
        )
        return ((features[..., self.column] - means) / deviations).mean(dim=1)


def outputs_of(members: Sequence[Answers]) -> list[Outputs]:
    """What they say together of each set: fitted scores in place of features."""
    first = members[0]
    kinds = kinds_of(members)
    together = []
    for number, labels in enumerate([first.labels, *(None for _ in first.ood)]):
        logits = _stacked([each.sets[number] for each in members])
        features = None
        if kinds:
            columns = [_stacked([each.scores[kind][number] for each in members]) for kind in kinds]
            features = torch.stack(columns, dim=-1)
        together.append(first.problem.outputs(Outputs(logits, features, labels)))
    return together


def kinds_of(members: Sequence[Answers]) -> list[str]:
    """The fitted scores that all of them have."""
    return [kind for kind in FITTED if all(kind in each.scores for each in members)]


def scorer(kind: str, fitting: Sequence[Answers]) -> ScoredBefore | None:
    """A fitted score, standardised on these validation samples."""
    if kind in LOGITS:
        return None
    held = [each.scores[kind][0] for each in fitting]
    standards = tuple(
        Standard(mean=float(values.mean()), deviation=float(values.std(correction=0)) or 1.0)
        for values in held
    )
    column = kinds_of(fitting).index(kind)
    return ScoredBefore(kind, ({},) * len(held), standards, column=column)


def _stacked(rows: Sequence[Tensor]) -> Float[Tensor, "sample member *klass"]:
    return torch.stack([*rows], dim=1)


def _joined(parts: Sequence[_Half], problem: Problem) -> Answered:
    """Both halves, as one model's answers."""
    logits, *outside = (
        torch.cat(rows)[:, None] for rows in zip(*(part.logits for part in parts), strict=True)
    )
    scores = [torch.cat(ranks) for ranks in zip(*(part.ranks for part in parts), strict=True)]
    pairs = zip(outside, scores[1:], strict=True)
    ood = tuple(
        OodSet(str(number), "near", rows, {STATE: ranks})
        for number, (rows, ranks) in enumerate(pairs)
    )
    inside = {}
    if scores:
        inside = {STATE: scores[0]}
    labels = torch.cat([part.labels for part in parts])
    predictions = Predictions("calibrated", "hydra", logits, labels, ood, scores=inside)
    return answered(predictions, Reading(ood_scores=(STATE,), problem=problem))


def state_score(fitting: Sequence[Answers], score: str = AUTO) -> str:
    """The OOD score of a decision state of these members: that was asked for, or the one that tells
    OOD data best, with what `without_ood` says of each member.
    """
    if score != AUTO or not fitting[0].ood:
        return "msp" if score == AUTO else score
    kinds = [kind for kind in fitting[0].hints or LOGITS if kind in LOGITS and kind != "mi"]
    sets = range(1, len(fitting[0].sets))
    aurocs = {}
    for kind in [*kinds, *kinds_of(fitting)]:
        inside = values_of(kind, fitting, fitting, 0)
        areas = [metrics.auroc(inside, values_of(kind, fitting, fitting, n)) for n in sets]
        hints = [each.hints[kind] for each in fitting if kind in each.hints]
        means = [sum(values) / len(values) for values in zip(*hints, strict=True)]
        aurocs[kind] = [*(area or 0.0 for area in areas), *means]
    return best_score(aurocs)


def values_of(
    kind: str, fitting: Sequence[Answers], judging: Sequence[Answers], number: int
) -> Float[Tensor, " sample"]:
    """How unfamiliar each sample of one set looks."""
    return outputs_of(judging)[number].scores(kind, scorer(kind, fitting)).double()


def _ranks(sets: Sequence[Tensor]) -> list[Tensor]:
    """The place of each value among all of them, equal ones sharing theirs, between 0 and 1."""
    if not sets:
        return []
    everything = torch.cat([*sets])
    distinct, places = everything.unique(return_inverse=True)
    return list((places.double() / max(1, len(distinct) - 1)).split([len(each) for each in sets]))
