"""What the classifier of each member reads: the features behind its logits, out of the same forward pass.

For a linear classifier its input, and its weight and bias (of a distilled model both, side by side); for a zero-shot
one
the normalised image features, and the class features times the scale. logits = features @ weightᵀ + bias, for every
member.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families import family_of
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.hydra import Hydra


@dataclass(frozen=True)
class Linear:
    """A member's classifier: logits = features @ weightᵀ + bias."""

    weight: Float[Tensor, "klass width"]
    bias: Float[Tensor, " klass"]


class _ZeroShot(Protocol):
    """A module that compares features of inputs with those of classes."""

    compare: Callable[[Tensor, Tensor], Tensor]

    def class_features(self) -> Tensor: ...


def classifiers(model: Classifier) -> list[Linear]:
    """Every member's, in float64 on the CPU."""
    return [_weights(parts) for parts in _parts(model)]


@torch.inference_mode()
def _weights(parts: Sequence[Any]) -> Linear:
    if all(isinstance(part, nn.Linear) for part in parts):
        # Several classifiers answer by their mean, each for features of its own.
        weights = [part.weight.detach().double().cpu() / len(parts) for part in parts]
        biases = [part.bias.detach().double().cpu() / len(parts) for part in parts if part.bias is not None]
        bias = torch.zeros(len(weights[0]), dtype=torch.float64)
        return Linear(torch.cat(weights, dim=1), sum(biases, bias))
    (part,) = parts
    classes = part.class_features()
    # Of a linear function, the constant is what it gives for nothing, the slope what it adds for each unit.
    nothing = torch.zeros(1, classes.shape[-1], dtype=classes.dtype, device=classes.device)
    bias = part.compare(nothing, classes)[0]
    unit = torch.eye(classes.shape[-1], dtype=classes.dtype, device=classes.device)
    return Linear((part.compare(unit, classes) - bias).T.double().cpu(), bias.double().cpu())


def _parts(model: Classifier) -> list[list[Any]]:
    """What each member classifies with: its last linear layer (two, with distillation), or the zero-shot module
    itself."""
    if isinstance(model.module, Hydra):
        pairs = zip(model.module.members, model.module.anatomies, strict=True)
        return [_of_member(module, model, anatomy) for module, anatomy in pairs]
    return [_of_member(model.module, model)]


def _of_member(module: nn.Module, model: Classifier, anatomy: Anatomy | None = None) -> list[Any]:
    """`anatomy`: the module's, where it has been taken apart already."""
    about = model.manifest.model
    if about.num_classes == 0:
        raise SurgeryError(
            f"{model.name}: answers with features, not with classes",
            hint="Give a CLIP class names by --classes; finetune gives others a classifier.",
        )
    if hasattr(module, "class_features"):
        return [module]
    anatomy = anatomy or family_of(about).anatomy(module)
    reads = [part for part in anatomy.readout_parts if isinstance(part, nn.Module)]
    # A distilled model has two classifiers side by side; others may have a hidden layer before the last.
    side_by_side = [part for part in reads if _answers(part, about.num_classes)]
    nested = [part for each in reads for part in each.modules() if _answers(part, about.num_classes)]
    return side_by_side or nested[-1:]


def _answers(part: nn.Module, classes: int) -> bool:
    return isinstance(part, nn.Linear) and part.out_features == classes


class Reading:
    """Calls a model and tells, with its logits, the features they were made of."""

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self._read: dict[int, list[Tensor]] = {}

    def __call__(self, inputs: Any) -> tuple[Float[Tensor, "batch member klass"], Float[Tensor, "batch member width"]]:
        return self.of(self.model, inputs)

    def of(
        self, run: Callable[[Any], Tensor], inputs: Any
    ) -> tuple[Float[Tensor, "batch member klass"], Float[Tensor, "batch member width"]]:
        """The same where something else than the model's own call runs its modules."""
        self._read.clear()
        logits = run(inputs)
        # Member after member, whether they were read one by one or in one piece.
        each = [torch.cat(self._read[part]) for part in sorted(self._read)]
        self._read.clear()
        members = logits.shape[1]
        return logits, torch.cat(each, dim=-1).unflatten(0, (members, -1)).transpose(0, 1)

    def note(self, part: int, features: Tensor) -> None:
        self._read.setdefault(part, []).append(features)


@contextlib.contextmanager
def reading(model: Classifier) -> Iterator[Reading]:
    """Within the block the model can be asked for features too; its weights and outputs stay as they are."""
    reader = Reading(model)
    with contextlib.ExitStack() as stack:
        for parts in _parts(model):
            for number, part in enumerate(parts):
                if isinstance(part, nn.Linear):
                    hook = part.register_forward_pre_hook(partial(_noted, reader, number))
                    stack.callback(hook.remove)
                else:
                    stack.enter_context(_compared(part, reader))
        yield reader


def _noted(reader: Reading, number: int, module: nn.Module, arguments: Sequence[Tensor]) -> None:
    reader.note(number, arguments[0])


@contextlib.contextmanager
def _compared(part: _ZeroShot, reader: Reading) -> Iterator[None]:
    """A zero-shot module whose comparison tells what it is given."""
    compare = part.compare

    def noting(images: Tensor, classes: Tensor) -> Tensor:
        reader.note(0, images)
        return compare(images, classes)

    part.compare = noting
    try:
        yield
    finally:
        del part.compare
