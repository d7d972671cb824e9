"""build's table: what a choice of members is worth, measured once, and by these figures it is
chosen, shown and recorded.

Each half of the samples judges what the other half chose: the members, the temperature of their
mean, and the OOD score that a decision state would use, which is the one that tells OOD data from
validation data best on the half that chooses. Scores of the two halves are joined as ranks within
their half, so that AUROC is about the mean of the halves'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor

from hydrasurgeon.building.cache import Answers
from hydrasurgeon.building.clock import EIGHT_BITS
from hydrasurgeon.building.cost import UNITS, Unit
from hydrasurgeon.building.members import Member
from hydrasurgeon.decision.fitting import best_score
from hydrasurgeon.files.decided import FITTED, LOGITS
from hydrasurgeon.measuring.answers import Answered, Reading, answered
from hydrasurgeon.measuring.predictions import OodSet, Predictions
from hydrasurgeon.problems import PROBLEMS, SINGLE
from hydrasurgeon.problems.base import Problem
from hydrasurgeon.statistics import metrics
from hydrasurgeon.statistics.bootstrap import Ranked, Rows, Values, bootstrap
from hydrasurgeon.statistics.probabilities import TINY
from hydrasurgeon.statistics.scores.on_logits import score_of
from hydrasurgeon.statistics.temperature import calibrated, temperature_of

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
        accuracy, typical = figures["accuracy"], (-figures["nll"]).exp()
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
    cascade: float | None = None
    """Multiply-adds that it may cost on average, with one member that answers alone where it is
    sure; None: all members always answer.
    """
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
    """accuracy, nll, ece; and auroc, fpr95 of the decision state's score, the mean over OOD sets."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of what it is worth."""


@dataclass(frozen=True)
class Entry:
    """A choice with its cost and its figures."""

    choice: Choice
    cost: Mapping[str, float]
    answers: Answered
    objective: Objective

    @property
    def is_plain(self) -> bool:
        """Whether it is a rival that needs no surgery."""
        return bool(self.choice.name)

    @cached_property
    def value(self) -> float:
        """By what is reported."""
        return float(self.objective.value(self.figures()))

    def figures(self, *rows: Rows) -> dict[str, Values]:
        """accuracy, nll, ece, auroc and fpr95, of all samples or of those drawn."""
        chosen = rows or [torch.arange(count)[None] for count in self.counts]
        figures = self.answers.inside.quality(chosen[0])
        if self.objective.name == "rmse":
            del figures["nll"]  # of no calibrated deviation
        else:
            del figures["brier"]
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
        """What a choice is worth; members of a cascade answer one after another."""
        files = [[member.file for member in members] for members in choice.halves]
        how = (choice.cascade, choice.engine, choice.assumed)
        key = (*(member.file for member in choice.members), str(files), *how)
        if key not in self._entries:
            self._entries[key] = self._measured(choice)
        return self._entries[key]

    def _measured(self, choice: Choice) -> Entry:
        parts = [self._judged(choice, choice.halves[chosen_on], chosen_on) for chosen_on in (1, 0)]
        cost: dict[str, float] = {unit: self.cost(choice.members, unit) for unit in UNITS}
        if choice.cascade is not None:
            cost["macs"] = sum(part.macs for part in parts) / 2
        cost |= self.timed(choice)
        problem = SINGLE
        if self.objective.name == "rmse":
            problem = PROBLEMS["number"]
        return Entry(choice, cost, _joined(parts, problem), self.objective)

    def _judged(self, choice: Choice, members: Sequence[Member], chosen_on: int) -> _Half:
        """What members that one half chose answer on the other."""
        read = self.read
        if choice.engine == EIGHT_BITS and not choice.assumed:
            read = partial(self.read, engine=EIGHT_BITS)  # type: ignore[call-arg]
        halves = [read(member).halves() for member in members]
        fitting = [half[chosen_on] for half in halves]
        judging = [half[1 - chosen_on] for half in halves]
        if self.objective.name == "rmse":
            values = torch.stack([half.val for half in judging]).mean(dim=0)
            return _Half(judging[0].labels, [values], [], rows_each=1)
        if choice.cascade is None:
            return _together(fitting, judging, self.objective.score)
        costs = [self.cost([member], "macs") for member in members]
        full = self.cost(members, "macs")
        return _in_steps(fitting, judging, self.objective.score, costs, full, choice.cascade)


@dataclass(frozen=True)
class _Half:
    """Calibrated answers on one half of the samples."""

    labels: Tensor
    log_probs: Sequence[Float[Tensor, "row klass"]]
    """Of the validation set and of each OOD set; of numbers the values."""
    ranks: Sequence[Float[Tensor, " sample"]]
    """Where each sample stands by the OOD score among all samples of this half."""
    rows_each: int
    macs: float = 0.0
    """Of a cascade, on average."""


def _together(fitting: Sequence[Answers], judging: Sequence[Answers], score: str) -> _Half:
    """All members' mean, at the temperature that fits their mean best."""
    at = temperature_of(_stacked([each.val for each in fitting]), fitting[0].labels)
    sets = [_stacked(rows) for rows in zip(*(each.sets for each in judging), strict=True)]
    logs = [calibrated(logits, at).clamp_min(TINY).log() for logits in sets]
    ranks: list[Tensor] = []
    if judging[0].ood:
        kind = state_score(fitting, score)
        ranks = _ranks([values_of(kind, fitting, judging, n) for n in range(len(sets))])
    return _Half(judging[0].labels, logs, ranks, judging[0].rows_each)


def _in_steps(
    fitting: Sequence[Answers],
    judging: Sequence[Answers],
    score: str,
    costs: Sequence[float],
    full: float,
    most: float,
) -> _Half:
    """The member that is right most often answers alone where it is sure; as many samples as the
    budget pays for go on to all members, those of which it is least sure, of many labels of any
    one: c_first + share · (c_all − c_first) = budget. Each member has a temperature of its own.
    """
    right = [metrics.accuracy(each.val, each.labels) for each in fitting]
    first = right.index(max(right))
    share = min(1.0, max(0.0, (most - costs[first]) / (full - costs[first])))
    temperatures = [temperature_of(each.val[:, None], each.labels) for each in fitting]
    rows_each = judging[0].rows_each
    sure = _surest(fitting[first].val / temperatures[first], rows_each)
    threshold = sure[::rows_each].quantile(share)
    alone = _together([fitting[first]], [judging[first]], score)
    everyone = _together(fitting, judging, score)
    logs, ranks, going_on = [], [], 0.0
    for number, rows in enumerate(zip(*(each.sets for each in judging), strict=True)):
        each = [logits / at for logits, at in zip(rows, temperatures, strict=True)]
        is_sure = _surest(each[first], rows_each) > threshold
        probs = torch.stack(each).softmax(dim=-1)
        mixed = torch.where(is_sure[:, None], probs[first], probs.mean(dim=0))
        logs.append(mixed.clamp_min(TINY).log())
        if everyone.ranks:
            ranks.append(torch.where(is_sure, alone.ranks[number], everyone.ranks[number]))
        if number == 0:
            going_on = 1 - float(is_sure.double().mean())
    macs = costs[first] + going_on * (full - costs[first])
    return _Half(judging[0].labels, logs, _ranks(ranks), rows_each, macs)


def _surest(logits: Tensor, rows_each: int) -> Tensor:
    """How sure each row is: as sure as the least sure of its sample's."""
    sure = logits.softmax(dim=-1).amax(dim=-1)
    return sure.unflatten(0, (-1, rows_each)).amin(dim=1).repeat_interleave(rows_each)


def _stacked(rows: Sequence[Tensor]) -> Float[Tensor, "row member klass"]:
    return torch.stack([*rows], dim=1)


def _joined(parts: Sequence[_Half], problem: Problem) -> Answered:
    """Both halves, as one model's answers."""
    logits, *outside = (
        torch.cat(rows)[:, None] for rows in zip(*(part.log_probs for part in parts), strict=True)
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
    """The OOD score that a decision state of these members would use."""
    if score != AUTO:
        return score
    kinds = [kind for kind in LOGITS if kind != "mi" or len(fitting) > 1]
    kinds += [kind for kind in FITTED if all(kind in each.scores for each in fitting)]
    aurocs = {}
    for kind in kinds:
        inside, *outside = (
            values_of(kind, fitting, fitting, number) for number in range(len(fitting[0].sets))
        )
        aurocs[kind] = [metrics.auroc(inside, values) or 0.0 for values in outside]
    return best_score(aurocs)


def values_of(
    kind: str, fitting: Sequence[Answers], judging: Sequence[Answers], number: int
) -> Float[Tensor, " sample"]:
    """How unfamiliar each sample of one set looks; of a fitted score the mean of what each member
    says, standardised.
    """
    if kind in LOGITS:
        return score_of(kind, _stacked([each.sets[number] for each in judging])).double()
    values = []
    for fitted, judged in zip(fitting, judging, strict=True):
        held = fitted.scores[kind][0]
        deviation = float(held.std(correction=0)) or 1.0
        values.append((judged.scores[kind][number] - held.mean()) / deviation)
    return torch.stack(values).mean(dim=0)


def _ranks(sets: Sequence[Tensor]) -> list[Tensor]:
    """The place of each value among all of them, equal ones sharing theirs, between 0 and 1."""
    if not sets:
        return []
    everything = torch.cat([*sets])
    distinct, places = everything.unique(return_inverse=True)
    return list((places.double() / max(1, len(distinct) - 1)).split([len(each) for each in sets]))
