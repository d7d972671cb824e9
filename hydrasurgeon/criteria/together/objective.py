"""What a combination of members is worth: arithmetic on answers that each of them gave once.

With separate or equal MLPs a hydra answers exactly as its members do, so p = 1/M Σ_m p_m needs no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.decision.scores.on_logits import entropy, generalized_entropy
from hydrasurgeon.errors import UsageError
from hydrasurgeon.lookup import did_you_mean
from hydrasurgeon.measuring.metrics import auroc

SCORES = ("msp", "entropy", "mi", "energy", "max-logit", "gen")
"""OOD scores whose AUROC can be an objective: functions of logits."""
OBJECTIVES = ("avg", "acc", "nll", "ood", *SCORES)
"""What members can be chosen for: avg is the mean of accuracy and the AUROC of msp, ood the latter."""
PENALTY = 10.0
"""What a point of accuracy below the floor costs, in points of the objective."""
TINY = 1e-30
"""A probability that underflows counts as this in float32."""

Rows = Float[Tensor, "sample klass"]
Terms = list[Tensor]
"""What is added up over members: for every set one tensor, of probabilities, logits or scalars."""


@dataclass(frozen=True)
class Answers:
    """One candidate's logits on the validation set and on foreign sets."""

    val: Rows
    labels: Int[Tensor, " sample"]
    foreign: tuple[Rows, ...] = ()

    @property
    def sets(self) -> tuple[Rows, ...]:
        return (self.val, *self.foreign)

    def halves(self) -> tuple[Answers, Answers]:
        """The first half of every set, and the rest: samples come in no order."""
        first, rest = zip(*((rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in self.sets), strict=True)
        middle = len(self.val) // 2
        return (Answers(first[0], self.labels[:middle], first[1:]), Answers(rest[0], self.labels[middle:], rest[1:]))


@dataclass(frozen=True)
class Objective:
    """How a sum over members becomes a number, the higher the better."""

    name: str
    terms: Callable[[Answers], Terms]
    value: Callable[[Sequence[Tensor], int, Int[Tensor, " sample"]], float]
    """(sums over members, how many, labels) → what it is worth."""
    plain: Callable[[Sequence[Tensor], int, Int[Tensor, " sample"]], float] | None = None
    """The same without a guard, where `value` has one."""
    behind: bool = False
    """Whether the last of its terms is of the validation samples, as the first is."""


def guarded(objective: Objective, floor: float) -> Objective:
    """The same, less what a hydra is short of an accuracy; for objectives that look at foreign data, and for accuracy.

    What tells foreign data best is sought among those that still know the familiar ones. Where the objective's terms
    are no
    probabilities, those of the validation set stand behind them.
    """
    if objective.name == "nll":
        return objective
    seen = objective.terms in (_probabilities, _with_entropies)

    def terms(answers: Answers) -> Terms:
        behind = [] if seen else [answers.val.softmax(dim=-1)]
        return [*objective.terms(answers), *behind]

    def plain(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        return objective.value(sums if seen else sums[:-1], members, labels)

    def value(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
        classes = sums[0][..., :-1] if objective.terms is _with_entropies else sums[0]
        short = floor - _accuracy([classes if seen else sums[-1]], members, labels)
        return plain(sums, members, labels) - PENALTY * max(0.0, short)

    return replace(objective, terms=terms, value=value, plain=plain, behind=not seen)


def needs_foreign(name: str) -> bool:
    return name not in ("acc", "nll")


def objective_of(name: str) -> Objective:
    """The objective of a name."""
    if name not in OBJECTIVES:
        raise UsageError(
            f"--objective {name}: no such objective{did_you_mean(name, OBJECTIVES)}",
            hint=f"Available: {', '.join(OBJECTIVES)}.",
        )
    if name == "nll":
        return Objective(name, _true_class, _log_likelihood)
    if name == "energy":
        return Objective(name, _energies, _area)
    if name == "mi":
        return Objective(name, _with_entropies, _mutual_information)
    if name == "max-logit":
        return Objective(name, lambda answers: list(answers.sets), _msp)  # −max of the mean logits
    return Objective(name, _probabilities, _OF_PROBABILITIES[name])


def _probabilities(answers: Answers) -> Terms:
    return [rows.softmax(dim=-1) for rows in answers.sets]


def _true_class(answers: Answers) -> Terms:
    return [answers.val.softmax(dim=-1).gather(-1, answers.labels[:, None])[:, 0]]


def _energies(answers: Answers) -> Terms:
    return [-rows.logsumexp(dim=-1) for rows in answers.sets]


def _with_entropies(answers: Answers) -> Terms:
    """Probabilities, and in a last column their entropy."""
    return [torch.cat([p, entropy(p)[..., None]], dim=-1) for p in _probabilities(answers)]


def _log_likelihood(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return float((sums[0] / members).clamp_min(TINY).log().double().mean())


def _accuracy(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return float((sums[0].argmax(dim=-1) == labels).double().mean())


def _area(scores: Sequence[Tensor], members: int, labels: Tensor) -> float:
    """The AUROC against each foreign set, on average."""
    inside, *outside = scores
    areas = [auroc(inside, each) for each in outside]
    return sum(area for area in areas if area is not None) / len(areas)


def _msp(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return _area([-rows.amax(dim=-1) for rows in sums], members, labels)


def _average(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return (_accuracy(sums, members, labels) + _msp(sums, members, labels)) / 2


def _entropy(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return _area([entropy(rows / members) for rows in sums], members, labels)


def _gen(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    return _area([generalized_entropy(rows / members) for rows in sums], members, labels)


def _mutual_information(sums: Sequence[Tensor], members: int, labels: Tensor) -> float:
    scores = [(entropy(rows[..., :-1] / members) - rows[..., -1] / members).clamp_min(0) for rows in sums]
    return _area(scores, members, labels)


_OF_PROBABILITIES = {"acc": _accuracy, "avg": _average, "ood": _msp, "msp": _msp, "entropy": _entropy, "gen": _gen}
"""Objectives that are functions of the sums of probabilities."""
