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

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.probabilities import spaced

STAKES = 0.99 * 2.0 ** (-np.arange(32, dtype=np.float64) / 4)
"""Fractions of the largest stake that are tried."""
TRIES = 256
"""Thresholds that are tried, about."""

Excess = Float[ndarray, "rule text"]


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
    text: Int[ndarray, " entity"]
    value: Float[ndarray, " entity"]
    wrong: Bool[ndarray, " entity"]

    def excess(self, thresholds: Float[ndarray, " rule"], promise: Risk) -> Excess:
        """By how much more fails in each text than is promised."""
        rules = len(thresholds)
        if promise.missed:
            below = np.searchsorted(thresholds, self.value, side="right")
            failing = self._from(below, rules)
            every = np.bincount(self.text, minlength=self.texts)
            counting = np.broadcast_to(every, failing.shape)
        else:
            first = np.searchsorted(-thresholds, -self.value)
            counting = self._from(first, rules)
            failing = self._from(np.where(self.wrong, first, rules), rules)
        most = promise.most
        return np.minimum(failing, most) - promise.risk * np.minimum(counting, most).astype(
            np.float64
        )

    def _from(self, first: Int[ndarray, " entity"], rules: int) -> Int[ndarray, "rule text"]:
        """How many entities of each text there are, each from its first rule on."""
        each = np.bincount(first * self.texts + self.text, minlength=(rules + 1) * self.texts)
        return each.reshape(rules + 1, self.texts)[:-1].cumsum(0)


@dataclass(frozen=True)
class Plan:
    """Thresholds in the order in which they are tested, and what is staked on each."""

    thresholds: Float[ndarray, " rule"]
    stakes: Float[ndarray, " rule"]

    @classmethod
    def of(cls, outcomes: Outcomes, promise: Risk) -> Plan:
        """By the half that fits."""
        values = np.unique(outcomes.value)
        some = spaced(len(values) - 1, min(TRIES, len(values))).round().astype(np.int64)
        thresholds = np.concatenate([np.zeros(1), values[some]])
        if not promise.missed:
            thresholds = np.flip(thresholds, 0)
        excess = outcomes.excess(thresholds, promise)
        stakes = STAKES / ((1 - promise.risk) * promise.most)
        each = np.stack([np.log1p(-stake * excess).sum(axis=-1) for stake in stakes])
        won, which = each.max(axis=0), each.argmax(axis=0)
        first = int(won.argmax())
        return cls(thresholds[first:], stakes[which][first:])

    def kept(self, outcomes: Outcomes, promise: Risk) -> float | None:
        """The threshold that keeps the promise by the half that certifies; None where not even the
        first does.
        """
        excess = outcomes.excess(self.thresholds, promise)
        most = np.log1p(-self.stakes[:, None] * excess).cumsum(axis=-1).max(axis=-1)
        passed = most >= -math.log(promise.delta)
        count = int(passed.cumprod().sum())
        return float(self.thresholds[count - 1]) if count else None
