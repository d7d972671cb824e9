"""A cascade's gate: which rows the first members answer for good, and which go on to all.

A score of the first members alone tells: rows go on where low ≤ score ≤ high.

    msp, entropy    of the mean of their probabilities
    disagreement    ½ Σ_c |p_1 − p_2|, total variation between the first two
    ood             the decision state's own OOD score
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Bool
from torch import Tensor

from hydrasurgeon.decision.abstain import Abstention
from hydrasurgeon.decision.conformal import Conformal
from hydrasurgeon.decision.probabilities import Logits, Scores, member_probs
from hydrasurgeon.decision.scores.on_logits import ON_LOGITS

OWN_SCORES = ("msp", "entropy", "disagreement")
"""Scores of the gate that are functions of the first members' logits."""


def disagreement(logits: Logits) -> Scores:
    probs = member_probs(logits)
    return (probs[:, 0] - probs[:, 1]).abs().sum(dim=-1) / 2


def own_score(kind: str, logits: Logits) -> Scores:
    """A score of OWN_SCORES; temperature has no say in who goes on."""
    return disagreement(logits) if kind == "disagreement" else ON_LOGITS[kind](logits, 1.0)


@dataclass(frozen=True)
class Gate:
    """A window on a score of the first members."""

    score: str
    low: float = -math.inf
    high: float = math.inf

    @property
    def everything(self) -> bool:
        """Whether every row goes on, whatever its score: the hydra itself then answers."""
        return self.low == -math.inf and self.high == math.inf

    @property
    def needs_features(self) -> bool:
        """Whether it looks at a score that may be fitted on features."""
        return self.score not in OWN_SCORES

    def lets(self, scores: Scores) -> Bool[Tensor, " sample"]:
        return (scores >= self.low) & (scores <= self.high)


@dataclass(frozen=True)
class Cascade:
    """Members in order, the first of which answer every row, and what is fitted to the answers that come of it."""

    order: tuple[int, ...]
    first: int
    gate: Gate
    temperature: float
    """Of the rows that the first members answer; the others are answered as the hydra does."""
    ood_threshold: float
    conformal: Conformal
    abstention: Abstention | None

    @property
    def starters(self) -> tuple[int, ...]:
        return self.order[: self.first]

    @property
    def followers(self) -> tuple[int, ...]:
        return self.order[self.first :]
