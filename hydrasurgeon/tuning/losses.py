"""Training losses for each task."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div

from hydrasurgeon.anatomy.word_logits import are_there, widened
from hydrasurgeon.data.labels import UNLABELLED
from hydrasurgeon.lookup import imported
from hydrasurgeon.runtime.kinds import yes_or_no
from hydrasurgeon.tasks.base import Task

Losses = Float[Tensor, " sample"]


class SingleLabelLosses:
    """Cross-entropy."""

    def is_labelled(self, labels: Tensor) -> Bool[Tensor, " sample"]:
        """Return True for each sample that has a label."""
        return (labels != UNLABELLED).reshape(len(labels), -1).all(dim=1)

    def choices(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        """Return the logits of choices between classes."""
        return logits

    def losses(
        self,
        logits: Float[Tensor, "sample klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Losses:
        """Return the training loss of each sample."""
        if labels.is_floating_point():  # probabilities of classes
            labels = labels.to(logits)
        return cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")

    def distilled(
        self, logits: Float[Tensor, "sample klass"], teachers: Sequence[Tensor], temperature: float
    ) -> Tensor:
        """Return the loss towards the mean of the teachers, whose logits are [sample, member,
        klass]: T²·KL(mean of the teachers' members ‖ model), a mean over samples and labels.
        """
        return temperature**2 * self.diverging(logits, teachers, temperature).mean()

    def diverging(self, logits: Tensor, teachers: Sequence[Tensor], temperature: float) -> Tensor:
        """Return KL(mean of the teachers' members ‖ model) of each choice."""
        warmed = [
            self.choices(teacher.to(logits) / temperature).softmax(dim=-1) for teacher in teachers
        ]
        mean = torch.cat(warmed, dim=1).mean(dim=1)
        logs = self.choices(logits / temperature).log_softmax(dim=-1)
        return kl_div(logs, mean, reduction="none").sum(dim=-1)


class BinaryLosses(SingleLabelLosses):
    """Binary cross-entropy."""

    def choices(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return yes_or_no(logits)

    def losses(
        self,
        logits: Float[Tensor, "sample klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Losses:
        target = (labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2).reshape(logits.shape)
        losses = binary_cross_entropy_with_logits(
            logits, target, pos_weight=weight, reduction="none"
        )
        return losses.mean(dim=-1)


class MultiLabelLosses(BinaryLosses):
    """The same of each label."""

    def choices(self, logits: Float[Tensor, "*any klass"]) -> Tensor:
        return yes_or_no(logits[..., None])


class RegressionLosses(SingleLabelLosses):
    """Squared errors, or the Gaussian NLL where there is a variance."""

    def is_labelled(self, labels: Tensor) -> Bool[Tensor, " sample"]:
        if not labels.is_floating_point():
            return torch.zeros_like(labels, dtype=torch.bool)
        return labels.isfinite()

    def losses(
        self,
        logits: Float[Tensor, "sample klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Losses:
        squares = (logits[:, 0] - labels.to(logits)).square()
        if logits.shape[-1] == 1:
            return squares
        return (logits[:, 1] + squares / logits[:, 1].exp()) / 2

    def distilled(
        self, logits: Float[Tensor, "sample klass"], teachers: Sequence[Tensor], temperature: float
    ) -> Tensor:
        mean = torch.cat([teacher.to(logits)[..., 0] for teacher in teachers], dim=1).mean(dim=1)
        return (logits[:, 0] - mean).square().mean()


class TokenLosses(SingleLabelLosses):
    """Cross-entropy, a mean over the labelled words of each text."""

    def is_labelled(self, labels: Tensor) -> Bool[Tensor, " text"]:
        return (labels != UNLABELLED).reshape(len(labels), -1).any(dim=1)

    def losses(
        self,
        logits: Float[Tensor, "text word klass"],
        labels: Tensor,
        smoothing: float = 0.0,
        weight: Tensor | None = None,
    ) -> Losses:
        if logits.ndim == 2:  # each word is a row
            return super().losses(logits, labels, smoothing, weight)
        words = logits.shape[-2]
        truth = widened(labels[:, :words], words, 1)
        losses = cross_entropy(
            logits.movedim(-1, 1),
            truth,
            ignore_index=UNLABELLED,
            label_smoothing=smoothing,
            reduction="none",
        )
        return losses.sum(dim=1) / (truth != UNLABELLED).sum(dim=1).clamp_min(1)

    def distilled(
        self,
        logits: Float[Tensor, "text word klass"],
        teachers: Sequence[Tensor],
        temperature: float,
    ) -> Tensor:
        """Return the distillation loss as a mean over the words of each text."""
        words = logits.shape[-2]
        widened_teachers = [
            widened(teacher[..., :words, :].to(logits), words, 2) for teacher in teachers
        ]
        there = are_there(logits)
        losses = self.diverging(logits, widened_teachers, temperature) * there
        return temperature**2 * (losses.sum(dim=1) / there.sum(dim=1).clamp_min(1)).mean()


@cache
def losses_of(task: Task) -> SingleLabelLosses:
    """Return the losses of a task."""
    losses: SingleLabelLosses = imported(task.trained_by)()
    return losses
