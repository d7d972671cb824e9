"""The record of a cascade in a decision state: which members answer first, which rows go on, and what that costs and
loses."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hydrasurgeon.files.decided_parts import MAX_MEMBERS, AbstainRecord, ConformalRecord, Positive, Record

# Of so many members the answers may be final; whether two agree is seen after two.
MOST_FIRST = 2
# How far a cost may be from what its parts and the share make of it: rounding, no more.
ROUNDING = 1e-9

Member = Annotated[int, Field(ge=0, lt=MAX_MEMBERS)]
Probability = Annotated[float, Field(ge=0, le=1)]
Points = Annotated[float, Field(ge=-100, le=100)]


class GateRecord(Record):
    """Rows go on whose score, of the first members alone, lies from `low` to `high`; without a bound to that side,
    None."""

    score: Literal["msp", "entropy", "ood", "disagreement"]
    """1 − max p and H(p) of the first members' mean; the state's OOD score; total variation between the first two."""
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _window(self) -> GateRecord:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"a window from {self.low:g} to {self.high:g}")
        return self


class CascadeCost(Record):
    """Multiply-adds as multiples of the single model's, which keeps all heads."""

    first: float = Field(gt=0, le=1e6)
    """The trunk and the first members: every row."""
    rest: float = Field(ge=0, le=1e6)
    """The other members, behind the trunk: rows that go on."""
    expected: float = Field(gt=0, le=1e6)
    """first + share · rest"""


class DropRecord(Record):
    """What the cascade loses against the hydra, in points (negative: gains), and the 95 % interval of a paired
    bootstrap."""

    drop: Points
    low: Points
    high: Points

    @model_validator(mode="after")
    def _ordered(self) -> DropRecord:
        if self.low > self.high:
            raise ValueError(f"an interval from {self.low:g} to {self.high:g}")
        return self


class CascadeRecord(Record):
    """The cascade and, fitted to its own answers, what is promised of them."""

    order: tuple[Member, ...] = Field(min_length=2, max_length=MAX_MEMBERS)
    """All members, as the file numbers them; the first `steps[0]` answer every row."""
    steps: tuple[Member, Annotated[int, Field(ge=2, le=MAX_MEMBERS)]]
    """How many members have run at each step."""
    gate: GateRecord
    shares: tuple[Probability, Probability]
    """Of validation samples, the share that comes to each step."""
    cost: CascadeCost
    temperature: Positive
    """Of rows that the first members answer; the others' is the hydra's."""
    ood_threshold: float
    conformal: ConformalRecord
    abstain: AbstainRecord | None = None
    max_drop: float | None = Field(default=None, ge=0, le=100)
    """What it was to lose at most; or … """
    budget: float | None = Field(default=None, gt=0, le=1e6)
    """… cost at most."""
    drops: dict[Literal["accuracy", "auroc", "fpr95", "cov5"], DropRecord]
    """On validation samples that chose nothing; AUROC and FPR95 against the OOD sets, their mean."""
    certified: bool
    """Whether every interval lies below `max_drop`."""

    @property
    def first(self) -> int:
        return self.steps[0]

    @model_validator(mode="after")
    def _whole(self) -> CascadeRecord:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(f"order: names not each of {len(self.order)} members once")
        first, last = self.steps
        if not 1 <= first <= min(MOST_FIRST, len(self.order) - 1) or last != len(self.order):
            raise ValueError(f"steps: {first} and {last} of {len(self.order)} members")
        if (self.gate.score == "disagreement") != (first == 2):
            raise ValueError("gate: disagreement is that of the first two members")
        unbounded = self.gate.low is None and self.gate.high is None
        if self.shares[0] != 1 or (unbounded and self.shares[1] != 1):
            raise ValueError("shares: every row comes to the first step, and passes a gate without bounds")
        expected = self.cost.first + self.shares[1] * self.cost.rest
        if not math.isclose(self.cost.expected, expected, rel_tol=ROUNDING):
            raise ValueError(f"cost: expected is {self.cost.expected:g}, its parts make {expected:g}")
        return self

    @model_validator(mode="after")
    def _promised(self) -> CascadeRecord:
        if (self.max_drop is None) == (self.budget is None):
            raise ValueError("either max_drop or budget says what was wanted")
        if set(self.drops) != {"accuracy", "auroc", "fpr95", "cov5"}:
            raise ValueError("drops: of accuracy, auroc, fpr95 and cov5")
        kept = self.max_drop is not None and all(d.high <= self.max_drop for d in self.drops.values())
        if self.certified != kept:
            raise ValueError("certified: says other than the intervals of the drops")
        return self
