"""A promise about the entities of texts, tested text by text: texts are exchangeable, but the
entities of one text depend on each other.

A rule counts a_i entities of text i and fails at w_i of them. At most a fraction R fails where
E[z] ≤ 0, z = min(w, C) − R min(a, C), C the most that counts of one text. Where E[z] > 0, a stake
0 < ν < 1 / ((1 − R) C) against it makes Π (1 − ν z_i) at most 1 on average, and so 1/δ or more after
any number of texts with probability δ at most (Waudby-Smith and Ramdas, JRSS B 2024).

Texts that fit say how much to stake on each rule, and on which the most is won. From that rule on,
towards those that promise more, texts that certify test them one after another, each by δ, until the
first that fails: the last before it is kept (Learn then Test, Angelopoulos et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from hydrasurgeon.run.shapes import Bool, Float, Int
from hydrasurgeon.statistics.abstain import CERTIFIES, MANY
from hydrasurgeon.statistics.probabilities import spaced

STAKES = 0.99 * 2.0 ** (-np.arange(32, dtype=np.float64) / 4)
"""Fractions of the largest stake that are tried."""
TRIES = 256
"""Thresholds that are tried, about."""
LOWEST = 2
"""Thresholds below which few are missed stop at so many times the promised fraction."""

Excess = Float[ndarray, "rule text"]


@dataclass(frozen=True)
class Risk:
    """Promise about entities, with confidence 1 − delta."""

    risk: float
    """Largest fraction of the counted entities that fails."""
    delta: float
    most: int
    """Largest number of entities of one text that count."""
    missed: bool
    """True if all entities count and those below the threshold fail.

    Otherwise the entities from the threshold on count, and the wrong ones among them fail.
    """


@dataclass(frozen=True)
class EntityOutcomes:
    """Entities of some texts, by the value that is compared with the threshold."""

    texts: int
    text: Int[ndarray, " entity"]
    value: Float[ndarray, " entity"]
    wrong: Bool[ndarray, " entity"]

    def excess(self, thresholds: Float[ndarray, " rule"], promise: Risk) -> Excess:
        """Return by how much more fails in each text than is promised."""
        rules = len(thresholds)
        if promise.missed:
            below = np.searchsorted(thresholds, self.value, side="right")
            failing = self._from(below, rules)
            words_by_text = np.bincount(self.text, minlength=self.texts)
            counting = np.broadcast_to(words_by_text, failing.shape)
        else:
            first = np.searchsorted(-thresholds, -self.value)
            counting = self._from(first, rules)
            failing = self._from(np.where(self.wrong, first, rules), rules)
        most = promise.most
        return np.minimum(failing, most) - promise.risk * np.minimum(counting, most).astype(
            np.float64
        )

    def _from(self, first: Int[ndarray, " entity"], rules: int) -> Int[ndarray, "rule text"]:
        """Count the entities of each text at each rule, each entity from its first rule on."""
        counts = np.bincount(first * self.texts + self.text, minlength=(rules + 1) * self.texts)
        return counts.reshape(rules + 1, self.texts)[:-1].cumsum(0)


@dataclass(frozen=True)
class ThresholdPlan:
    """Thresholds in the order in which they are tested, and what is staked on each."""

    thresholds: Float[ndarray, " rule"]
    stakes: Float[ndarray, " rule"]

    @classmethod
    def of(cls, outcomes: EntityOutcomes, promise: Risk) -> ThresholdPlan:
        """Order the thresholds by texts that fit."""
        values = np.unique(outcomes.value)
        if promise.missed:  # whatever lies higher misses more than is promised
            most = math.ceil(LOWEST * promise.risk * len(values))
            values = values[:most]
        some = spaced(len(values) - 1, min(TRIES, len(values))).round().astype(np.int64)
        thresholds = np.concatenate([np.zeros(1), values[some]])
        if not promise.missed:
            thresholds = np.flip(thresholds, 0)
        excess = outcomes.excess(thresholds, promise)
        stakes = STAKES / ((1 - promise.risk) * promise.most)
        gains = np.stack([np.log1p(-stake * excess).sum(axis=-1) for stake in stakes])
        won, which = gains.max(axis=0), gains.argmax(axis=0)
        first = int(won.argmax())
        return cls(thresholds[first:], stakes[which][first:])

    def kept(self, certifying: Sequence[EntityOutcomes], promise: Risk) -> float | None:
        """Return the threshold that keeps the promise by each of the sets that certify; None where
        not even the first does.
        """
        passed = np.ones(len(self.thresholds), dtype=bool)
        for outcomes in certifying:
            passed &= self.wealth(outcomes, promise).max(axis=-1) >= -math.log(promise.delta)
        count = int(passed.cumprod().sum())
        return float(self.thresholds[count - 1]) if count else None

    def needed(self, certifying: EntityOutcomes, promise: Risk) -> int | None:
        """Estimate how many texts of VAL would keep the promise at the first threshold; None where
        no number does.
        """
        gain = float(self.wealth(certifying, promise)[0, -1]) / max(1, certifying.texts)
        needed = -math.log(promise.delta) / CERTIFIES / gain if gain > 0 else math.inf
        return math.ceil(needed) if needed <= MANY else None

    def wealth(self, outcomes: EntityOutcomes, promise: Risk) -> Excess:
        """Return the logarithm of what each rule's stake has grown to after each text."""
        excess = outcomes.excess(self.thresholds, promise)
        return np.log1p(-self.stakes[:, None] * excess).cumsum(axis=-1)
