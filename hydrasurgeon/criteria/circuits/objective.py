"""What a circuit is searched for: accuracy, OOD separability or their mean (paper D.1.2), as exact integers.

    S_acc = Acc(ID),   S_ood = AUROC of an OOD score with OOD positive,   S_avg = ½ (S_acc + S_ood)

Scores are compared as whole numbers of points (a right answer, half a pair), so that ties are ties. Samples are
ranked by how familiar they look (`familiarity.py`), which orders them as the OOD score does and does not saturate;
unless
another score is named that is ln p/(1−p) of the predicted class, in the order of 1 − max softmax. Where logits are
known up to
±tolerance only, points come as an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hydrasurgeon.criteria.circuits.familiarity import FAMILIARITY

Kind = Literal["acc", "ood", "avg"]
PARTS = ("margin", "familiar", "foreign")
"""The names of what outcomes hold, in their order."""
# What a tie is won or lost by.
TINY = 1e-30


def margins(logits: Float[Tensor, "*any sample klass"], labels: Int[Tensor, " sample"]) -> Float[Tensor, "*any sample"]:
    """Logit of the true class minus the highest other: positive = right. A tie goes to the first class, as in
    argmax."""
    where = labels.expand(logits.shape[:-1])[..., None]
    true = logits.gather(-1, where)
    rival = logits.scatter(-1, where, -torch.inf).amax(dim=-1)
    earlier = torch.arange(logits.shape[-1], device=logits.device) < where
    lost = ((logits == true) & earlier).any(dim=-1)
    margin = true.squeeze(-1) - rival
    return torch.where(margin == 0, torch.where(lost, -TINY, TINY), margin)


@dataclass(frozen=True)
class Outcomes:
    """What an objective needs to know of every sample, for one circuit or for several ([circuit, sample])."""

    margin: Float[Tensor, "*circuit id"]
    familiar: Float[Tensor, "*circuit id"]
    """How familiar ID samples look."""
    foreign: Float[Tensor, "*circuit ood"]
    """How familiar OOD samples look."""

    def one(self) -> Outcomes:
        """A single circuit's as those of several."""
        return Outcomes(self.margin[None], self.familiar[None], self.foreign[None])

    def repeated(self, circuits: int) -> Outcomes:
        """A single circuit's, for each of several."""
        return self.map(lambda part: part.repeat(circuits, 1))

    def of(self, circuit: int) -> Outcomes:
        return self.map(lambda part: part[circuit])

    def map(self, change: Callable[..., Tensor], *others: Outcomes) -> Outcomes:
        """Each part changed, together with the same part of others."""
        return Outcomes(*(change(*(getattr(one, name) for one in (self, *others))) for name in PARTS))


class Points(NamedTuple):
    """Between how many and how many points a circuit has."""

    low: int
    high: int


def pairs_above(
    high: Float[Tensor, "circuit a"], low: Float[Tensor, "circuit b"], gap: float = 0.0
) -> Int[Tensor, " circuit"]:
    """How many pairs have `high` > `low` + gap; the shorter side is the one that is sorted."""
    if low.shape[-1] <= high.shape[-1]:
        ordered = low.sort(dim=-1).values
        return torch.searchsorted(ordered, (high - gap).contiguous(), right=False).sum(dim=-1)
    ordered = (high - gap).sort(dim=-1).values
    below = torch.searchsorted(ordered, low.contiguous(), right=True)
    return high.shape[-1] * low.shape[-1] - below.sum(dim=-1)


def contributions(objective: Objective, outcomes: Outcomes, others: Outcomes) -> Float[Tensor, "circuit sample"]:
    """Points that each sample (ID, then OOD) makes with what it is against: its answer, and its pairs with `others`.

    Summed over both sides each pair counts twice, so it is differences that mean something: a sample that changes while
    all others stay brings what its contribution grows by.
    """
    answers = objective.per_answer * (outcomes.margin > 0).double()
    if not objective.needs_ood:
        return answers
    won = _below(others.foreign, outcomes.familiar)
    lost = _below(others.familiar, outcomes.foreign)
    return torch.cat([answers + won, -lost], dim=-1)


def _below(those: Float[Tensor, "some a"], each: Float[Tensor, "circuit b"]) -> Float[Tensor, "circuit b"]:
    """Twice as many of `those` as are below each; a tie counts once."""
    ordered = those.sort(dim=-1).values.expand(len(each), -1).contiguous()
    each = each.contiguous()
    below = torch.searchsorted(ordered, each) + torch.searchsorted(ordered, each, right=True)
    return below.double()


@dataclass(frozen=True)
class Objective:
    """An objective on sets of this size."""

    kind: Kind
    id_rows: int
    ood_rows: int
    ood_score: str = "msp"
    """By which score of the logits OOD samples are told."""

    def familiarity(self, logits: Float[Tensor, "*any klass"]) -> Float[Tensor, "*any"]:
        """How familiar samples look: what pairs are compared by."""
        return FAMILIARITY[self.ood_score].of(logits)

    def gap(self, tolerance: float) -> float:
        """By how much two samples must differ for the order to be sure, when logits may be off by `tolerance`."""
        return 2 * FAMILIARITY[self.ood_score].moves * tolerance

    @property
    def per_answer(self) -> int:
        """Points of a right answer; half a concordant pair is worth one point."""
        return {"acc": 1, "ood": 0, "avg": 2 * self.ood_rows}[self.kind]

    @property
    def needs_ood(self) -> bool:
        return self.kind != "acc"

    @property
    def total(self) -> int:
        pairs = 2 * self.id_rows * self.ood_rows if self.needs_ood else 0
        return self.per_answer * self.id_rows + pairs

    def value(self, points: int) -> float:
        return points / self.total

    def points(self, outcomes: Outcomes, tolerance: float = 0.0) -> list[Points]:
        """Points of each circuit, when logits may be off by `tolerance`: margins by twice that, pairs by the gap."""
        low = self.per_answer * (outcomes.margin > 2 * tolerance).sum(dim=-1)
        high = self.per_answer * (outcomes.margin >= -2 * tolerance).sum(dim=-1)
        if self.needs_ood:
            gap = self.gap(tolerance)
            pairs = self.id_rows * self.ood_rows
            right = pairs_above(outcomes.familiar, outcomes.foreign, gap)
            wrong = pairs_above(outcomes.foreign, outcomes.familiar, gap)
            if tolerance:  # what is not surely wrong may be right
                low = low + 2 * right
                high = high + 2 * (pairs - wrong)
            else:  # what is neither is a tie, and counts half
                low = low + right + pairs - wrong
                high = low
        return [Points(int(a), int(b)) for a, b in zip(low, high, strict=True)]

    def best_left(self, wrong: Int[Tensor, " circuit"], discordant: Int[Tensor, " circuit"]) -> Int[Tensor, " circuit"]:
        """Points a circuit can still reach after that many surely wrong answers and surely discordant pairs."""
        return self.total - self.per_answer * wrong - (2 * discordant if self.needs_ood else 0)
