"""A checkpoint's decision state at work: logits and features → an answer, a set, doubts, and
whether to trust them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hydrasurgeon.decision.many_labels import doubts_of, probs_of
from hydrasurgeon.files.decided import Decision, PerLabel, stored_name
from hydrasurgeon.statistics.conformal import prediction_sets
from hydrasurgeon.statistics.probabilities import TINY, Logits, Probs, Scores, yes_or_no
from hydrasurgeon.statistics.scores.fitted import EnsembleScore, scores_of
from hydrasurgeon.statistics.temperature import calibrated, uncertainties


@dataclass(frozen=True)
class State:
    """The record that a manifest holds, and the fit that its tensors are."""

    record: Decision
    fitted: EnsembleScore | None = None
    """None for an OOD score of the logits alone."""

    def choices(self, logits: Tensor) -> Tensor:
        """What a model says, as choices between classes: [sample, member, class], of many labels
        one for each.
        """
        return yes_or_no(
            logits if self.record.labels is None or logits.dim() == 4 else logits[..., None]
        )

    def probs(self, logits: Tensor) -> Probs:
        """Calibrated probabilities: of classes, or of each label."""
        record, logits = self.record, self.choices(logits)
        if record.labels is not None:
            return probs_of(logits, record.labels.temperatures)
        return calibrated(logits, record.temperature, record.joint, record.bias)

    def ood_score(self, logits: Tensor, features: Tensor | None) -> Scores:
        """How likely samples are OOD: of the logits that the model gives, for temperature is about
        probabilities.
        """
        return scores_of(self.record.ood.score, self.choices(logits), features, self.fitted)

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
    """What a model says of each sample, calibrated or not; entropies in nats: total = aleatoric +
    epistemic.
    """

    probs: Float[Tensor, "sample klass"]
    label: Int[Tensor, " sample"]
    probability: Float[Tensor, " sample"]
    total: Float[Tensor, " sample"]
    aleatoric: Float[Tensor, " sample"]
    epistemic: Float[Tensor, " sample"]
    members_run: Int[Tensor, " sample"]
    """How many members the answer is of."""
    said: Bool[Tensor, "sample label"]
    """Of many labels, those that are answered; without any for other problems."""

    def answers(self) -> list[str | int]:
        """The class of each."""
        return list(self.label.tolist())

    @property
    def probabilities(self) -> Tensor:
        """`probs` by its full name."""
        return self.probs

    @property
    def labels(self) -> Tensor:
        """`label`, of all samples."""
        return self.label

    @property
    def answer(self) -> list[str | int]:
        """`answers()`, as rows of `predict` call it."""
        return self.answers()


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
        rows = zip(
            self.label.tolist(), self.unfamiliar.tolist(), self.abstain.tolist(), strict=True
        )
        return [
            "unfamiliar" if ood else "abstain" if unsure else label for label, ood, unsure in rows
        ]


def undecided(
    logits: Logits, temperature: float = 1.0, joint: object = None, bias: float | None = None
) -> Prediction:
    """What logits say without thresholds; choices [sample, member, label, class] are those of many
    labels.
    """
    logits = yes_or_no(logits)
    if logits.dim() == 4:
        return _labelled(logits, None)
    probs = calibrated(logits, temperature, joint, bias)
    probability, label = probs.max(dim=-1)
    total, aleatoric = uncertainties(logits, temperature, joint, bias)
    run = torch.full_like(label, logits.shape[1])
    epistemic, nothing = (
        (total - aleatoric).clamp_min(0.0),
        torch.zeros(len(label), 0, dtype=torch.bool),
    )
    return Prediction(probs, label, probability, total, aleatoric, epistemic, run, nothing)


def _labelled(choices: Tensor, constants: PerLabel | None) -> Prediction:
    """What is said of many labels, by each one's own temperature and threshold."""
    temperatures = None if constants is None else constants.temperatures
    probs = probs_of(choices, temperatures)
    probability, label = probs.max(dim=-1)
    total, aleatoric = doubts_of(choices, temperatures)
    run = torch.full_like(label, choices.shape[1])
    said = probs >= (
        0.5 if constants is None else torch.tensor(constants.thresholds, dtype=probs.dtype)
    )
    return Prediction(
        probs, label, probability, total, aleatoric, (total - aleatoric).clamp_min(0.0), run, said
    )


def decide(state: State, logits: Logits, features: Tensor | None) -> Decided:
    """What a state makes of logits and features."""
    record, logits = state.record, state.choices(logits)
    plain = (
        undecided(logits, record.temperature, record.joint, record.bias)
        if record.labels is None
        else _labelled(logits, record.labels)
    )
    score = state.ood_score(logits, features)
    threshold = 0.0 if record.abstain is None else record.abstain.threshold
    abstain = plain.probability < threshold
    if record.limits is not None:
        yes, no = plain.probs[:, 1] >= record.limits.yes, plain.probs[:, 1] < record.limits.no
        abstain = ~(yes | no)
        plain = replace(plain, label=torch.where(abstain, plain.label, yes.long()))
    return Decided(
        **vars(plain),
        sets=prediction_sets(record.conformal, plain.probs),
        ood_score=score,
        unfamiliar=score > record.ood.threshold,
        abstain=abstain,
    )


def rows_of(
    decided: Prediction,
    begun: Sequence[dict[str, Any]],
    *,
    names: Sequence[str] | None,
    top: int,
    problem: str = "single_label",
) -> list[dict[str, Any]]:
    """One row for each sample, continuing what is `begun`; without a decision state some columns
    are None.
    """
    state, count = decided if isinstance(decided, Decided) else None, len(begun)
    columns = ROWS[problem](decided, state, count, names, top)
    rows = zip(*columns.values(), strict=True)
    return [
        {**start, **dict(zip(columns, row, strict=True))}
        for start, row in zip(begun, rows, strict=True)
    ]


def _short(values: Tensor) -> list[float]:
    """Nine digits: more than the model's float32 has."""
    return [float(f"{value:.9g}") for value in values.tolist()]


def _doubts(decided: Prediction, state: Decided | None, count: int) -> dict[str, Sequence[Any]]:
    """How sure it is, and whether it knows such inputs."""
    nothing = [None] * count
    return {
        **{name: _short(getattr(decided, name)) for name in ("total", "aleatoric", "epistemic")},
        "ood_score": nothing if state is None else _short(state.ood_score),
        "unfamiliar": nothing if state is None else state.unfamiliar.tolist(),
        "members_run": decided.members_run.tolist(),
    }


Columns = dict[str, Iterable[Any]]
"""Name of a column → a value for each sample."""


def _of_classes(
    decided: Prediction, state: Decided | None, count: int, names: Sequence[str] | None, top: int
) -> Columns:
    """Which class."""

    def called(klass: int) -> str | int:
        return klass if names is None else names[klass]

    def held(state: Decided, i: int) -> list[str | int]:  # the most probable label first
        inside = state.sets[i].nonzero().flatten()
        order = torch.argsort(state.probs[i, inside], descending=True, stable=True)
        return [called(k) for k in inside[order].tolist()]

    values, order = decided.probs.topk(min(top, decided.probs.shape[-1]), dim=-1)
    tops = zip(order.tolist(), map(_short, values), strict=True)
    return {
        "label": map(called, decided.label.tolist()),
        "probability": _short(decided.probability),
        "top": ([[called(k), p] for k, p in zip(*pair, strict=True)] for pair in tops),
        "set": [None if state is None else held(state, i) for i in range(count)],
        **_doubts(decided, state, count),
        "answer": (called(each) if isinstance(each, int) else each for each in decided.answers()),
    }


def _of_one_logit(
    decided: Prediction, state: Decided | None, count: int, _: object, __: int
) -> Columns:
    """Yes or no, and how likely yes is."""
    no, yes = decided.probs.clamp_min(TINY).unbind(dim=-1)
    return {
        "probability": _short(decided.probs[:, 1]),
        "logit": _short(yes.log() - no.log()),
        **_doubts(decided, state, count),
        "answer": (YES_NO[each] if isinstance(each, int) else each for each in decided.answers()),
    }


def _of_many_labels(
    decided: Prediction, state: Decided | None, count: int, names: Sequence[str] | None, top: int
) -> Columns:
    """Which labels, the most probable first."""
    unfamiliar = [False] * count if state is None else state.unfamiliar.tolist()

    def ranked(i: int, among: Tensor | None = None) -> list[list[Any]]:
        order = decided.probs[i].argsort(descending=True, stable=True)
        chosen = order if among is None else order[among[i, order]]
        values = zip(chosen.tolist(), _short(decided.probs[i, chosen]), strict=True)
        return [[label if names is None else names[label], p] for label, p in values]

    held = [ranked(i, decided.said) for i in range(count)]
    return {
        "labels": held,
        "top": [ranked(i)[:top] for i in range(count)],
        "set": [
            None if state is None else [name for name, _ in ranked(i, state.sets)]
            for i in range(count)
        ],
        **_doubts(decided, state, count),
        "answer": [
            "unfamiliar" if ood else [name for name, _ in each]
            for ood, each in zip(unfamiliar, held, strict=True)
        ],
    }


YES_NO = ("no", "yes")
"""The answers of one logit."""
ROWS = {"single_label": _of_classes, "one_logit": _of_one_logit, "multi_label": _of_many_labels}
"""Kind of problem → what a row says."""
