"""What logits mean: one record for each kind of problem.

    single_label   one of k classes                softmax over k logits      cross-entropy
    one_logit      yes or no                       sigmoid of one logit       binary cross-entropy
    multi_label    any number of k labels          sigmoid of each            its mean over the
    labels

The last two are decisions between two classes, no and yes, with the logits 0 and z: `choices` makes
them so, and all that is measured of classes then holds for decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.files.decided import LOGITS, OF_LABELS
from hydrasurgeon.files.manifest import Model, ProblemName
from hydrasurgeon.statistics.metrics import YES
from hydrasurgeon.statistics.probabilities import yes_or_no
from hydrasurgeon.statistics.scores.on_logits import score_of

WHOLE = "Give a classifier that chooses one of several classes."
"""What next, where only such can be used."""


@dataclass(frozen=True)
class Problem:
    """How the logits of a model are read, and what its labels are."""

    name: ProblemName
    choices: Callable[[Tensor], Tensor]
    """Logits [..., k] → logits of choices between classes [..., class], or [..., k, class] of many
    labels.
    """
    losses: Callable[..., Tensor]
    """Logits [sample, k], labels and `smoothing` → the loss of each sample."""
    truth: Callable[[Tensor], Tensor]
    """Labels → the number of the class that each choice should have made."""
    shares: Callable[[Tensor, int], Tensor]
    """Labels → how much of each choice's classes is true, in a last dimension of this size."""
    scores: Sequence[str]
    """OOD scores of `choices`."""

    def __reduce__(self) -> tuple[Callable[[ProblemName], Problem], tuple[ProblemName]]:
        """Processes that exchange answers send its name: functions without a name cannot be sent."""
        return _named, (self.name,)

    def score(self, kind: str, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """How unfamiliar each sample looks, by a score of the logits."""
        return score_of(kind, self.choices(logits), temperature)

    def probs(self, logits: Tensor) -> Tensor:
        """Probabilities [..., k]: of classes, of yes, or of each label."""
        chosen = self.choices(logits).softmax(dim=-1)
        return chosen if self.name == "single_label" else chosen[..., 1].reshape(logits.shape)

    def rows(self, logits: Tensor) -> Tensor:
        """[sample, member, k] → [choice, member, class]: each label of a sample is a choice of its
        own.
        """
        chosen = self.choices(logits)
        return chosen if chosen.dim() == 3 else chosen.transpose(1, 2).flatten(0, 1)

    def judged(self, log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Of the logarithms of chosen probabilities: each sample's share of right choices, and its
        mean loss.
        """
        right = (log_probs.argmax(dim=-1) == self.truth(labels)).double()
        shares = self.shares(labels, log_probs.shape[-1])
        # What has no share counts nothing, however improbable.
        loss = -torch.where(shares > 0, shares * log_probs, 0).sum(dim=-1)
        count = len(labels)
        return right.reshape(count, -1).mean(dim=1), loss.reshape(count, -1).mean(dim=1)


def _named(name: ProblemName) -> Problem:
    return PROBLEMS[name]


def known(labels: Tensor) -> Tensor:
    """Which samples have a label."""
    return (
        (labels != UNLABELLED).flatten(1).all(dim=1) if labels.dim() > 1 else labels != UNLABELLED
    )


def _of_classes(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    return cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")


def _of_labels(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, weight: Tensor | None = None
) -> Tensor:
    target = (labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2).reshape(logits.shape)
    each = binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
    return each.mean(dim=-1)


def _parts(labels: Tensor, _: int) -> Tensor:
    return torch.stack([1 - labels, labels], dim=-1)


def _said(labels: Tensor) -> Tensor:
    return (labels >= YES).long()


PROBLEMS: dict[str, Problem] = {
    "single_label": Problem(
        "single_label",
        lambda logits: logits,
        _of_classes,
        lambda labels: labels,
        lambda labels, count: torch.nn.functional.one_hot(labels, count),
        (*LOGITS,),
    ),
    "one_logit": Problem("one_logit", yes_or_no, _of_labels, _said, _parts, (*LOGITS,)),
    "multi_label": Problem(
        "multi_label",
        lambda logits: yes_or_no(logits[..., None]),
        _of_labels,
        _said,
        _parts,
        OF_LABELS,
    ),
}
"""Every kind of problem, by the name that manifests have for it."""
SINGLE = PROBLEMS["single_label"]
"""The usual one."""


def problem_of(model: Model) -> Problem:
    """How a model's logits are read."""
    return PROBLEMS[model.problem]


def need_single(model: Model, what: str, name: str, *, but: Sequence[str] = ()) -> None:
    """Refuse other problems where a stage knows no more than classes."""
    if model.problem not in ("single_label", *but):
        raise SurgeryError(
            f"{what}: is for models that choose one class, and {name} is {model.problem}",
            hint=WHOLE,
        )
