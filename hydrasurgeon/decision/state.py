"""A checkpoint's decision state, and what it makes of logits and features: an answer, a set, doubts, and whether to
trust them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.abstain import Abstention
from hydrasurgeon.decision.conformal import Conformal
from hydrasurgeon.decision.gate import Cascade
from hydrasurgeon.decision.probabilities import Logits, Probs, Scores
from hydrasurgeon.decision.scores.fitted import EnsembleScore, scores_of
from hydrasurgeon.decision.scores.on_logits import entropy
from hydrasurgeon.decision.temperature import Joint, calibrated


@dataclass(frozen=True)
class OodRule:
    """Which score tells the unfamiliar, and from where on."""

    kind: str
    threshold: float
    """Samples whose score lies above are unfamiliar."""
    id_flagged: float
    """The share of samples like those of the calibration that is, at most, flagged on average."""
    fitted: EnsembleScore | None = None
    """None for a score of the logits alone."""


@dataclass(frozen=True)
class State:
    temperature: float
    joint: Joint | None
    """For an ensemble, where it is better than the temperature: used instead of it."""
    ood: OodRule
    conformal: Conformal
    abstention: Abstention | None
    cascade: Cascade | None = None
    """How most inputs are answered by few members; what it promises has thresholds of its own."""

    @property
    def needs_features(self) -> bool:
        return self.ood.fitted is not None

    def probs(self, logits: Logits) -> Probs:
        return calibrated(logits, self.temperature, self.joint)

    def ood_score(self, logits: Logits, features: Tensor | None) -> Scores:
        # A score of the logits is of those that the model gives: temperature is about probabilities.
        return scores_of(self.ood.kind, logits, features, self.ood.fitted)


@dataclass(frozen=True)
class Decided:
    """What is said of each sample."""

    probs: Float[Tensor, "sample klass"]
    label: Int[Tensor, " sample"]
    probability: Float[Tensor, " sample"]
    sets: Bool[Tensor, "sample klass"]
    total: Float[Tensor, " sample"]
    """Entropies in nats: total = aleatoric + epistemic."""
    aleatoric: Float[Tensor, " sample"]
    epistemic: Float[Tensor, " sample"]
    ood_score: Float[Tensor, " sample"]
    unfamiliar: Bool[Tensor, " sample"]
    abstain: Bool[Tensor, " sample"]
    """Not sure enough to keep the promised risk; never, where none was promised."""
    members_run: Int[Tensor, " sample"]
    """How many members the answer is of."""

    def answers(self) -> list[str | int]:
        """`unfamiliar`, else `abstain`, else the class."""
        rows = zip(self.label.tolist(), self.unfamiliar.tolist(), self.abstain.tolist(), strict=True)
        return ["unfamiliar" if foreign else "abstain" if unsure else label for label, foreign, unsure in rows]


def decide(state: State, logits: Logits, features: Tensor | None) -> Decided:
    probs = state.probs(logits)
    probability, label = probs.max(dim=-1)
    total, aleatoric = uncertainties(logits, state.temperature, state.joint)
    score = state.ood_score(logits, features)
    unsure = torch.zeros_like(label, dtype=torch.bool)
    if state.abstention is not None:
        unsure = probability < state.abstention.threshold
    return Decided(
        probs=probs,
        label=label,
        probability=probability,
        sets=state.conformal.sets(probs),
        total=total,
        aleatoric=aleatoric,
        epistemic=(total - aleatoric).clamp_min(0.0),
        ood_score=score,
        unfamiliar=score > state.ood.threshold,
        abstain=unsure,
        members_run=torch.full_like(label, logits.shape[1]),
    )


def uncertainties(logits: Logits, temperature: float = 1.0, joint: Joint | None = None) -> tuple[Scores, Scores]:
    """H(mean q_m) and mean H(q_m) of the calibrated members q_m: softmax(z_m / T), or the terms of the joint
    calibration.

    A temperature acts behind the average; members of their own are given the same one.
    """
    scaled = Joint(temperature, 1.0) if joint is None else joint
    each = scaled.members(logits)
    return entropy(each.mean(dim=1)), entropy(each).mean(dim=1)
