"""Features that each member's classifier reads, out of the same forward pass as its logits.

For a linear classifier its input, and its weight and bias (of a distilled model both, side by
side); for a zero-shot one the normalised image features, and the class features times the scale.
logits = features @ weightᵀ + bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn

from hydrasurgeon.anatomy.notes import note_inputs, noting
from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.anatomy.word_logits import WORDS, mean_of_words, of_words
from hydrasurgeon.data.readers import parted
from hydrasurgeon.decision.state import State
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families import family_of
from hydrasurgeon.files.manifest import Manifest
from hydrasurgeon.runtime.hydra import Hydra


class LiveModel(nn.Module):
    """Any checkpoint as one kind of module: logits are [batch, member, class]; a single model has
    one member.
    """

    def __init__(
        self,
        module: nn.Module,
        manifest: Manifest,
        transform: Callable[[Any], Any],
        *,
        name: str = "the model",
        state: State | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.state = state
        self.manifest = manifest
        self.transform = transform
        self.name = name

    @property
    def anatomy(self) -> Anatomy:
        """A single model taken apart, as it is now."""
        return family_of(self.manifest.model).anatomy(self.module)

    @property
    def members(self) -> int:
        if self.manifest.kind == "hydra":
            return len(self.manifest.members)
        return 1

    def forward(self, inputs: Any) -> Float[Tensor, "batch member klass"]:
        logits: Tensor = self.module(parted(inputs)[0])
        return logits if isinstance(self.module, Hydra) else logits[:, None]


Linear = tuple[Float[ndarray, "klass width"], Float[ndarray, " klass"]]
"""Weight and bias of a member's classifier: logits = features @ weightᵀ + bias."""


@torch.inference_mode()
def classifiers(model: LiveModel) -> list[Linear]:
    """Return the linear classifier of each member, in float64."""
    pairs: list[tuple[Tensor, Tensor]] = []
    for parts in last_layers(model):
        if isinstance(parts[0], nn.Linear):
            # Several classifiers answer by their mean, each for features of its own.
            weights = [part.weight.detach().double().cpu() / len(parts) for part in parts]
            biases = [
                part.bias.detach().double().cpu() / len(parts)
                for part in parts
                if part.bias is not None
            ]
            bias = torch.zeros(len(weights[0]), dtype=torch.float64)
            pairs.append((torch.cat(weights, dim=1), sum(biases, bias)))
            continue
        compare, classes = parts[0].compare, parts[0].class_features()
        # Of a linear function, the constant is what it gives for nothing, the slope what it adds
        # for each unit.
        bias = compare(torch.zeros_like(classes[:1]), classes)[0]
        unit = torch.eye(classes.shape[-1], dtype=classes.dtype, device=classes.device)
        pairs.append(((compare(unit, classes) - bias).T, bias))
    return [(w.double().cpu().numpy(), b.double().cpu().numpy()) for w, b in pairs]


def last_layers(model: LiveModel) -> list[list[Any]]:
    """Return the layers that each member classifies with: its last linear layer (two, with
    distillation), or the zero-shot module.
    """
    classes = model.manifest.model.num_classes
    if classes == 0:
        raise SurgeryError(
            f"{model.name}: answers with features, not with classes",
            hint="Give a CLIP class names by --classes; finetune gives others a classifier.",
        )

    def of_member(module: nn.Module, anatomy: Callable[[], Anatomy]) -> list[Any]:
        if hasattr(module, "class_features"):
            return [module]
        reads = [part for part in anatomy().readout_parts if isinstance(part, nn.Module)]
        # A distilled model has two classifiers side by side; others may have a hidden layer before
        # the last.
        side_by_side = [part for part in reads if _answers(part, classes)]
        return (
            side_by_side
            or [
                part
                for container in reads
                for part in container.modules()
                if _answers(part, classes)
            ][-1:]
        )

    if not isinstance(model.module, Hydra):
        return [of_member(model.module, lambda: model.anatomy)]
    pairs = zip(model.module.members, model.module.anatomies, strict=True)
    return [of_member(module, lambda anatomy=anatomy: anatomy) for module, anatomy in pairs]  # type: ignore[misc]


def _answers(part: nn.Module, classes: int) -> bool:
    return isinstance(part, nn.Linear) and part.out_features == classes


class WithFeatures:
    """Calls a model and returns its logits with the features they were made of; of words their mean,
    unless `each_word` is wanted.

    Nothing is kept between calls: threads may share a model, and each gets its own features.
    """

    def __init__(self, model: LiveModel, *, each_word: bool = False) -> None:
        self.model, self.each_word = model, each_word
        self._places = {
            part: place for parts in last_layers(model) for place, part in enumerate(parts)
        }
        for part in self._places:
            if isinstance(part, nn.Linear):
                note_inputs(part)

    def __call__(
        self, inputs: Any
    ) -> tuple[Float[Tensor, "batch member klass"], Float[Tensor, "batch member width"]]:
        return self.of(self.model, inputs)

    def of(
        self, run: Callable[[Any], Tensor], inputs: Any
    ) -> tuple[Float[Tensor, "batch member klass"], Float[Tensor, "batch member width"]]:
        """Return logits and features of a function that runs the model's modules."""
        read: dict[int, list[Tensor]] = {}
        with noting() as notes:
            logits = run(inputs)
        for part, features in notes:
            if part in self._places:
                read.setdefault(self._places[part], []).append(features)
        # Member after member, whether they were read one by one or in one piece.
        joined = torch.cat([torch.cat(read[place]) for place in sorted(read)], dim=-1)
        member_features = joined.unflatten(0, (logits.shape[1], -1)).transpose(0, 1)
        if isinstance(inputs, Mapping) and WORDS in inputs:
            member_features = of_words(member_features, inputs[WORDS])
            return logits, member_features if self.each_word else mean_of_words(member_features)
        return logits, member_features
