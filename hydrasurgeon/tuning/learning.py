"""The loss of a classifier: labels, teachers, or both, on inputs that may be perturbed.

    (1 − α)·CE(labels) + α·T²·KL(mean of the teachers ‖ model)

Teachers agree with the labels on what they were trained on. What they know besides shows on other
inputs: two images mixed, or a text with some tokens masked, the same for the teachers as for the
model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import Batch, moved
from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.errors import SurgeryError, UsageError
from hydrasurgeon.runtime.classifier import Classifier, as_classifier
from hydrasurgeon.runtime.processes import own_device
from hydrasurgeon.tasks import SINGLE, task_of
from hydrasurgeon.tasks.base import Task
from hydrasurgeon.tuning.losses import losses_of

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Input, Model
    from hydrasurgeon.tuning.recipes import Recipe

Mixed = tuple[tuple[Tensor, float], ...]
"""Labels of every sample, and how much they count."""


@dataclass(frozen=True)
class Perturbation:
    """Random changes of inputs, drawn by torch's generator; none if all fractions are 0."""

    mixup: float = 0.0
    """Two images are mixed in parts that are drawn from Beta(mixup, mixup)."""
    mask_tokens: float = 0.0
    """The fraction of a text's tokens that are masked."""
    mask: int = 0
    special: tuple[int, ...] = ()
    """Tokens that stay."""

    def __call__(self, inputs: Any, labels: Tensor) -> tuple[Any, Mixed]:
        """Return the perturbed inputs, and the labels with their weights."""
        if isinstance(inputs, Mapping):
            if not self.mask_tokens:
                return inputs, ((labels, 1.0),)
            ids = inputs["input_ids"]
            is_masked = (torch.rand(ids.shape) < self.mask_tokens).to(ids.device)
            is_masked &= ~torch.isin(
                ids, torch.tensor(self.special, device=ids.device, dtype=ids.dtype)
            )
            return {**inputs, "input_ids": ids.masked_fill(is_masked, self.mask)}, ((labels, 1.0),)
        if not self.mixup:
            return inputs, ((labels, 1.0),)
        part = float(torch.distributions.Beta(self.mixup, self.mixup).sample())
        other = torch.randperm(len(labels)).to(labels.device)
        mixed, other_labels = part * inputs + (1 - part) * inputs[other], labels[other]
        return mixed, ((labels, part), (other_labels, 1 - part))


Teacher = Classifier | Tensor
"""Whom a model learns from; of one only the answers to the training data may be known, as that data
is: logits [sample, member, class].
"""


@dataclass
class Learning:
    """The loss of a batch, and its gradients."""

    label_smoothing: float = 0.0
    perturb: Perturbation = Perturbation()
    teachers: Sequence[Teacher] = ()
    alpha: float = 0.0
    """Weight of the teachers in the loss."""
    temperature: float = 1.0
    task: Task = SINGLE
    weight: Tensor | None = None
    """Weight of a yes, for each label."""

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        """Compute the gradients of the mean over some batches, which stay in the model; return the
        loss.
        """
        total = 0.0
        for i, batch in enumerate(parts):
            with accelerator.no_sync(model) if i + 1 < len(parts) else nullcontext():
                loss = self._loss(model, batch, accelerator.device) / len(parts)
                accelerator.backward(loss)
                total += float(loss.detach())
        return total

    def _loss(self, model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
        labels = batch.truth
        if labels is None:
            labels = torch.full((len(batch.index),), UNLABELLED)
        inputs, mixed = self.perturb(moved(batch.inputs, device), labels.to(device))
        logits = model(inputs).float()
        loss, by = logits.new_zeros(()), losses_of(self.task)
        for some, part in mixed:
            labelled = by.is_labelled(some)
            if self.alpha < 1 and bool(labelled.any()):
                weight = None if self.weight is None else self.weight.to(logits.device)
                losses = by.losses(logits[labelled], some[labelled], self.label_smoothing, weight)
                loss = loss + (1 - self.alpha) * part * losses.mean()
        if self.teachers:
            with torch.no_grad():
                teachers = [
                    teacher[batch.index] if isinstance(teacher, Tensor) else teacher(inputs)
                    for teacher in self.teachers
                ]
            towards = by.distilled(logits, teachers, self.temperature)
            loss = loss + self.alpha * towards
        return loss


def perturbation(recipe: Recipe, transform: Any) -> Perturbation:
    """Return the perturbation of a recipe, with the tokens of the model's tokenizer."""
    if not recipe.mask_tokens or getattr(transform, "kind", "image") != "text":
        return Perturbation(mixup=recipe.mixup)
    tokenizer = transform.tokenizer
    mask = (
        tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
    )
    if mask is None:
        raise UsageError(
            "--set mask_tokens: the tokenizer has no token for it", hint="Give --set mask_tokens=0."
        )
    return Perturbation(
        mask_tokens=recipe.mask_tokens, mask=mask, special=tuple(tokenizer.all_special_ids)
    )


def positive_weight(recipe: Recipe, model: Model) -> Tensor | None:
    """Return the recipe's `pos_weight`, one for each label; refuse it for other tasks and
    counts.
    """
    weight = recipe.pos_weight
    if weight is None:
        return None
    weights = weight if isinstance(weight, tuple) else (weight,) * model.num_classes
    if (
        task_of(model).link != "sigmoid"
        or len(weights) != model.num_classes
        or not all(0 < one < inf for one in weights)
    ):
        raise UsageError(
            f"--set pos_weight={json.dumps(weight)}: is not one positive number for each of "
            f"{model.num_classes} labels"
            f" of a {model.task} model",
            hint="It belongs to models with one logit or many labels; classes have none.",
        )
    return torch.tensor(weights)


def open_teacher(
    spec: Any, model: Model, files: Mapping[str, str], device: str
) -> tuple[Teacher, Input]:
    """Open a teacher that answers in the model's classes and reads its inputs; return it and its
    record.
    """

    opened = open_checkpoint(spec)
    teacher = opened.manifest.model
    if (teacher.task, teacher.num_classes) != (model.task, model.num_classes) or (
        teacher.labels or model.labels
    ) != (model.labels or teacher.labels):
        raise SurgeryError(
            f"--teacher {spec}: answers in {_classes(teacher)}, the model in {_classes(model)}",
            hint="Give teachers with the same classes in the same order.",
        )
    texts = {teacher.inputs, model.inputs} - {None}
    if (
        teacher.preprocess != model.preprocess
        or dict(opened.files) != dict(files)
        or len(texts) > 1
    ):
        raise SurgeryError(
            f"--teacher {spec}: reads other inputs than the model (another size, normalisation or "
            "tokenizer, or pairs of texts)",
            hint="Give teachers that were tuned from the same checkpoint.",
        )
    return as_classifier(opened, device=own_device(device)).requires_grad_(False), opened.record(
        opened.digests()
    )


def _classes(model: Model) -> str:
    names = "" if model.labels is None else f" ({', '.join(model.labels[:4])}, …)"
    return f"{model.num_classes} classes{names}"
