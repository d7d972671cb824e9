"""A promise about the entities of texts, tested text by text: texts are exchangeable, but the
entities of one text depend on each other.

A rule counts a_i entities of text i and fails at w_i of them. At most a fraction R fails where
E[z] ≤ 0, z = min(w, C) − R min(a, C), C the most that counts of one text. Where E[z] > 0, a stake
0 < ν < 1 / ((1 − R) C) against it makes Π (1 − ν z_i) at most 1 on average, and so 1/δ or more after
any number of texts with probability δ at most (Waudby-Smith and Ramdas, JRSS B 2024).

One half of the data says how much to stake on each rule, and on which the most is won. From that
rule on, towards those that promise more, the other half tests them one after another, each by δ,
until the first that fails: the last before it is kept (Learn then Test, Angelopoulos et al., 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STAKES = 0.99 * 2.0 ** (-torch.arange(32, dtype=torch.float64) / 4)
"""Fractions of the largest stake that are tried."""
TRIES = 256
"""Thresholds that are tried, about."""

Excess = Float[Tensor, "rule text"]


@dataclass(frozen=True)
class Risk:
    """What is promised, with confidence 1 − delta."""

    risk: float
    """Of the entities that count, at most this fraction fails."""
    delta: float
    most: int
    """How many of a text count at most."""
    missed: bool
    """Whether all entities count, and those below the threshold fail; else those from the threshold
    on count, and the wrong ones among them fail.
    """


@dataclass(frozen=True)
class Outcomes:
    """Entities of some texts, by the value that is compared with the threshold."""

    texts: int
    text: Int[Tensor, " entity"]
    value: Float[Tensor, " entity"]
    wrong: Bool[Tensor, " entity"]

    def excess(self, thresholds: Float[Tensor, " rule"], promise: Risk) -> Excess:
        """By how much more fails in each text than is promised."""
        rules = len(thresholds)
        if promise.missed:
            below = torch.searchsorted(thresholds, self.value, right=True)
            failing = self._from(below, rules)
            every = torch.bincount(self.text, minlength=self.texts)
            counting = every.expand_as(failing)
        else:
            first = torch.searchsorted(-thresholds, -self.value)
            counting = self._from(first, rules)
            failing = self._from(torch.where(self.wrong, first, rules), rules)
        most = promise.most
        return failing.clamp_max(most) - promise.risk * counting.clamp_max(most).double()

    def _from(self, first: Int[Tensor, " entity"], rules: int) -> Int[Tensor, "rule text"]:
        """How many entities of each text there are, each from its first rule on."""
        each = torch.bincount(first * self.texts + self.text, minlength=(rules + 1) * self.texts)
        return each.reshape(rules + 1, self.texts)[:-1].cumsum(0)


@dataclass(frozen=True)
class Plan:
    """Thresholds in the order in which they are tested, and what is staked on each."""

    thresholds: Float[Tensor, " rule"]
    stakes: Float[Tensor, " rule"]

    @classmethod
    def of(cls, outcomes: Outcomes, promise: Risk) -> Plan:
        """By the half that fits."""
        values = outcomes.value.unique()
        some = torch.linspace(0, len(values) - 1, min(TRIES, len(values))).round().long()
        thresholds = torch.cat([values.new_zeros(1), values[some]])
        if not promise.missed:
            thresholds = thresholds.flip(0)
        excess = outcomes.excess(thresholds, promise)
        stakes = STAKES / ((1 - promise.risk) * promise.most)
        won, which = torch.stack(
            [torch.log1p(-stake * excess).sum(dim=-1) for stake in stakes]
        ).max(dim=0)
        first = int(won.argmax())
        return cls(thresholds[first:], stakes[which][first:])

    def kept(self, outcomes: Outcomes, promise: Risk) -> float | None:
        """The threshold that keeps the promise by the half that certifies; None where not even the
        first does.
        """
        excess = outcomes.excess(self.thresholds, promise)
        most = torch.log1p(-self.stakes[:, None] * excess).cumsum(dim=-1).amax(dim=-1)
        passed = most >= -math.log(promise.delta)
        count = int(passed.long().cumprod(0).sum())
        return float(self.thresholds[count - 1]) if count else None
