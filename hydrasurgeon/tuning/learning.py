"""What a classifier learns from: labels, teachers, or both, on inputs that may be perturbed.

    (1 − α)·CE(labels) + α·T²·KL(mean of the teachers ‖ model)

Teachers agree with the labels on what they were trained on. What they know besides shows on other inputs: two images
mixed, or a text with some tokens masked, the same for the teachers as for the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batch, moved
from hydrasurgeon.data.samples import UNLABELLED
from hydrasurgeon.errors import SurgeryError, UsageError

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Input, Model
    from hydrasurgeon.runtime.classifier import Classifier
    from hydrasurgeon.tuning.recipes import Recipe

Mixed = tuple[tuple[Tensor, float], ...]
"""Labels of every sample, and how much they count."""


@dataclass(frozen=True)
class Perturbation:
    """What is done to inputs, by torch's random numbers; nothing where all shares are 0."""

    mixup: float = 0.0
    """Two images are mixed in parts that are drawn from Beta(mixup, mixup)."""
    mask_tokens: float = 0.0
    """The share of a text's tokens that are masked."""
    mask: int = 0
    special: tuple[int, ...] = ()
    """Tokens that stay."""

    def __call__(self, inputs: Any, labels: Tensor) -> tuple[Any, Mixed]:
        """The inputs, and of which labels they are."""
        if isinstance(inputs, Mapping):
            if not self.mask_tokens:
                return inputs, ((labels, 1.0),)
            ids = inputs["input_ids"]
            gone = (torch.rand(ids.shape) < self.mask_tokens).to(ids.device)
            gone &= ~torch.isin(ids, torch.tensor(self.special, device=ids.device, dtype=ids.dtype))
            return {**inputs, "input_ids": ids.masked_fill(gone, self.mask)}, ((labels, 1.0),)
        if not self.mixup:
            return inputs, ((labels, 1.0),)
        part = float(torch.distributions.Beta(self.mixup, self.mixup).sample())
        other = torch.randperm(len(labels)).to(labels.device)
        return part * inputs + (1 - part) * inputs[other], ((labels, part), (labels[other], 1 - part))


@dataclass
class Learning:
    """The loss of a batch, and its gradients."""

    label_smoothing: float = 0.0
    perturb: Perturbation = Perturbation()
    teachers: Sequence[Classifier] = ()
    alpha: float = 0.0
    """How much the teachers count."""
    temperature: float = 1.0

    def backward(self, accelerator: Any, model: nn.Module, parts: Sequence[Batch]) -> float:
        """Gradients of the mean over some batches, which stay in the model, and the loss."""
        total = 0.0
        for i, batch in enumerate(parts):
            with accelerator.no_sync(model) if i + 1 < len(parts) else nullcontext():
                loss = self._loss(model, batch, accelerator.device) / len(parts)
                accelerator.backward(loss)
                total += float(loss.detach())
        return total

    def settle(self) -> None:
        """Nothing is left to do behind the optimizer's step."""

    def _loss(self, model: nn.Module, batch: Batch, device: torch.device) -> Tensor:
        count = len(batch.index)
        labels = torch.full((count,), UNLABELLED) if batch.labels is None else batch.labels
        inputs, mixed = self.perturb(moved(batch.inputs, device), labels.to(device))
        logits = model(inputs).float()
        loss = logits.new_zeros(())
        for some, part in mixed:
            if self.alpha < 1 and bool((some != UNLABELLED).any()):
                each = cross_entropy(logits, some, label_smoothing=self.label_smoothing, ignore_index=UNLABELLED)
                loss = loss + (1 - self.alpha) * part * each
        if self.teachers:
            said = (logits / self.temperature).log_softmax(dim=-1)
            loss = loss + self.alpha * self.temperature**2 * kl_div(said, self._taught(inputs), reduction="batchmean")
        return loss

    @torch.no_grad()
    def _taught(self, inputs: Any) -> Tensor:
        """The mean of all teachers' members."""
        each = [(teacher(inputs).float() / self.temperature).softmax(dim=-1) for teacher in self.teachers]
        return torch.cat(each, dim=1).mean(dim=1)


def perturbation(recipe: Recipe, transform: Any) -> Perturbation:
    """What a recipe does to inputs, in the words of the model's tokenizer."""
    if not recipe.mask_tokens or getattr(transform, "kind", "image") != "text":
        return Perturbation(mixup=recipe.mixup)
    tokenizer = transform.tokenizer
    mask = tokenizer.mask_token_id if tokenizer.mask_token_id is not None else tokenizer.unk_token_id
    if mask is None:
        raise UsageError("--set mask_tokens: the tokenizer has no token for it", hint="Give --set mask_tokens=0.")
    return Perturbation(mask_tokens=recipe.mask_tokens, mask=mask, special=tuple(tokenizer.all_special_ids))


def open_teachers(
    specs: Sequence[Any], model: Model, files: Mapping[str, str], device: str
) -> tuple[list[Classifier], list[Input]]:
    """The live teachers of a model, which answer in its classes and read its inputs, and their records."""
    from hydrasurgeon.runtime.classifier import as_classifier

    teachers, records = [], []
    for spec in specs:
        opened = open_checkpoint(spec)
        theirs = opened.manifest.model
        if theirs.num_classes != model.num_classes or (theirs.labels or model.labels) != (
            model.labels or theirs.labels
        ):
            raise SurgeryError(
                f"--teacher {spec}: answers in {_classes(theirs)}, the model in {_classes(model)}",
                hint="Teachers have the classes of what they teach, in its order.",
            )
        if theirs.preprocess != model.preprocess or dict(opened.files) != dict(files):
            raise SurgeryError(
                f"--teacher {spec}: reads other inputs than the model (another size, normalisation or tokenizer)",
                hint="Give teachers that were tuned from the same checkpoint.",
            )
        records.append(opened.record(opened.digests()))
        teachers.append(as_classifier(opened, device=device).requires_grad_(False))
    return teachers, records


def _classes(model: Model) -> str:
    names = "" if model.labels is None else f" ({', '.join(model.labels[:4])}, …)"
    return f"{model.num_classes} classes{names}"
