"""A checkpoint's decision state at work: logits and features → an answer, a set, doubts, and whether to trust them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.conformal import prediction_sets
from hydrasurgeon.decision.probabilities import Logits, Probs, Scores
from hydrasurgeon.decision.scores.fitted import EnsembleScore, scores_of
from hydrasurgeon.decision.temperature import calibrated, uncertainties
from hydrasurgeon.files.decided import Decision, stored_name


@dataclass(frozen=True)
class State:
    """The record that a manifest holds, and the fit that its tensors are."""

    record: Decision
    fitted: EnsembleScore | None = None
    """None for an OOD score of the logits alone."""

    def probs(self, logits: Logits) -> Probs:
        """Calibrated probabilities."""
        return calibrated(logits, self.record.temperature, self.record.joint)

    def ood_score(self, logits: Logits, features: Tensor | None) -> Scores:
        """How likely samples are OOD: of the logits that the model gives, for temperature is about probabilities."""
        return scores_of(self.record.ood.score, logits, features, self.fitted)

    def tensors(self) -> dict[str, Tensor]:
        """What a file stores of it, by name."""
        fits = () if self.fitted is None else self.fitted.fits
        return {
            stored_name(member, part): tensor.float().contiguous()
            for member, fit in enumerate(fits)
            for part, tensor in fit.items()
        }


@dataclass(frozen=True)
class Prediction:
    """What a model says of each sample, calibrated or not; entropies in nats: total = aleatoric + epistemic."""

    probs: Float[Tensor, "sample klass"]
    label: Int[Tensor, " sample"]
    probability: Float[Tensor, " sample"]
    total: Float[Tensor, " sample"]
    aleatoric: Float[Tensor, " sample"]
    epistemic: Float[Tensor, " sample"]
    members_run: Int[Tensor, " sample"]
    """How many members the answer is of."""

    def answers(self) -> list[str | int]:
        """The class of each."""
        return list(self.label.tolist())


@dataclass(frozen=True)
class Decided(Prediction):
    """What a decision state makes of it."""

    sets: Bool[Tensor, "sample klass"]
    ood_score: Float[Tensor, " sample"]
    unfamiliar: Bool[Tensor, " sample"]
    abstain: Bool[Tensor, " sample"]
    """Not sure enough to keep the promised risk; never, where none was promised."""

    def answers(self) -> list[str | int]:
        """`unfamiliar`, else `abstain`, else the class."""
        rows = zip(self.label.tolist(), self.unfamiliar.tolist(), self.abstain.tolist(), strict=True)
        return ["unfamiliar" if ood else "abstain" if unsure else label for label, ood, unsure in rows]


def undecided(logits: Logits, temperature: float = 1.0, joint: object = None) -> Prediction:
    """What logits say without thresholds."""
    probs = calibrated(logits, temperature, joint)
    probability, label = probs.max(dim=-1)
    total, aleatoric = uncertainties(logits, temperature, joint)
    run = torch.full_like(label, logits.shape[1])
    return Prediction(probs, label, probability, total, aleatoric, (total - aleatoric).clamp_min(0.0), run)


def decide(state: State, logits: Logits, features: Tensor | None) -> Decided:
    """What a state makes of logits and features."""
    record = state.record
    plain = undecided(logits, record.temperature, record.joint)
    score = state.ood_score(logits, features)
    threshold = 0.0 if record.abstain is None else record.abstain.threshold
    return Decided(
        **vars(plain),
        sets=prediction_sets(record.conformal, plain.probs),
        ood_score=score,
        unfamiliar=score > record.ood.threshold,
        abstain=plain.probability < threshold,
    )


def rows_of(
    decided: Prediction, begun: Sequence[dict[str, Any]], *, names: Sequence[str] | None, top: int
) -> list[dict[str, Any]]:
    """One row for each sample, continuing what is `begun`; without a decision state some columns are None."""

    def called(klass: int) -> str | int:
        return klass if names is None else names[klass]

    def short(values: Tensor) -> list[float]:  # nine digits: more than the model's float32 has
        return [float(f"{value:.9g}") for value in values.tolist()]

    def held(state: Decided, i: int) -> list[str | int]:  # the most probable label first
        inside = state.sets[i].nonzero().flatten()
        order = torch.argsort(state.probs[i, inside], descending=True, stable=True)
        return [called(k) for k in inside[order].tolist()]

    state = decided if isinstance(decided, Decided) else None
    values, order = decided.probs.topk(min(top, decided.probs.shape[-1]), dim=-1)
    tops = zip(order.tolist(), map(short, values), strict=True)
    nothing = [None] * len(begun)
    columns = {
        "label": map(called, decided.label.tolist()),
        "probability": short(decided.probability),
        "top": ([[called(k), p] for k, p in zip(*pair, strict=True)] for pair in tops),
        "set": nothing if state is None else [held(state, i) for i in range(len(begun))],
        **{name: short(getattr(decided, name)) for name in ("total", "aleatoric", "epistemic")},
        "ood_score": nothing if state is None else short(state.ood_score),
        "unfamiliar": nothing if state is None else state.unfamiliar.tolist(),
        "members_run": decided.members_run.tolist(),
        "answer": (called(each) if isinstance(each, int) else each for each in decided.answers()),
    }
    rows = zip(*columns.values(), strict=True)
    return [{**start, **dict(zip(columns, row, strict=True))} for start, row in zip(begun, rows, strict=True)]
