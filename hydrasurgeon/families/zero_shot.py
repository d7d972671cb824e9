"""Modules of an image and a text tower as a classifier of class names.

logits = exp(log_scale) · cos(image, class) + shift; the text tower that makes the classes is a part
of the readout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hydrasurgeon.anatomy.notes import note
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Prompted, Stack
from hydrasurgeon.families.disk_names import DiskNamed

# Texts that run through the text tower at once.
CHUNK = 256


class ZeroShot(DiskNamed):
    """Images → logits over the class names; without class names, → normalised image features."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model: Any = model
        self.classes = classes
        # Not persistent: which texts there are follows from the manifest.
        self.register_buffer("texts", None, persistent=False)
        self._known: tuple[Any, Tensor] | None = None

    # --- a library's own ---

    @abstractmethod
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Pixels → features."""

    @abstractmethod
    def encode_texts(self, tokens: Tensor) -> Tensor:
        """Token ids → features."""

    @abstractmethod
    def text_anatomy(self) -> Anatomy:
        """Token ids → normalised text features, taken apart."""

    @property
    @abstractmethod
    def text_towers(self) -> Sequence[nn.Module | nn.Parameter | None]:
        """What texts run through, as far as there is such a part."""

    # --- the same for all ---

    @property
    def log_scale(self) -> nn.Parameter:
        """The logarithm of what the products of features are multiplied by."""
        return self.model.logit_scale

    @property
    def shift(self) -> nn.Parameter | None:
        """What is added to them."""
        return getattr(self.model, "logit_bias", None)

    def disk_name(self, name: str) -> str:
        return name.removeprefix("model.")

    def forward(self, inputs: Any) -> Tensor:
        """Images → logits."""
        return self.logits(self.encode_images(images_in(inputs)))

    def text_features(self, tokens: Tensor) -> Tensor:
        return normalize(self.encode_texts(tokens), dim=-1)

    def logits(self, features: Tensor) -> Tensor:
        """Image features → logits."""
        images = normalize(features, dim=-1)
        return images if self.texts is None else self.compare(images, self.class_features())

    def compare(self, images: Tensor, classes: Tensor) -> Tensor:
        """Normalised features of images and classes → logits."""
        note(self, images)
        logits: Tensor = self.log_scale.exp() * images @ classes.mT
        return logits if self.shift is None else logits + self.shift

    def text_parts(self) -> tuple[nn.Module | nn.Parameter, ...]:
        """All that the text tower consists of, and the scale."""
        parts = (*self.text_towers, self.log_scale, self.shift)
        return tuple(part for part in parts if part is not None)

    def class_features(self) -> Tensor:
        """One normalised row for each class, the mean over its prompts; kept for as long as nothing
        can change it.
        """
        parameters = [
            parameter
            for part in self.text_parts()
            for parameter in (part.parameters() if isinstance(part, nn.Module) else (part,))
        ]
        # Hooks turn heads off; their numbers are never given twice.
        hooks = [number for site in self.text_sites() for number in site.out._forward_pre_hooks]
        if torch.is_grad_enabled() and (hooks or any(p.requires_grad for p in parameters)):
            return self._encode_classes()
        versions = [0 if p.is_inference() else p._version for p in parameters]
        state = hooks, versions, [(p.data_ptr(), p.dtype) for p in parameters]
        if self._known is None or self._known[0] != state:
            # An inference tensor would be of no use to a later pass with gradients.
            with torch.inference_mode(False), torch.no_grad():
                self._known = state, self._encode_classes()
        return self._known[1]

    def text_sites(self) -> Iterator[Attention]:
        """Where the text tower attends."""
        return (block.attention for block in self.text_anatomy().blocks)

    def _encode_classes(self) -> Tensor:
        assert isinstance(self.texts, Tensor)
        return _mean(
            torch.cat([self.text_features(some) for some in self.texts.split(CHUNK)]).unflatten(
                0, (self.classes, -1)
            )
        )

    def prompted(self, features: Callable[[Stack], Tensor]) -> Prompted | None:
        """The classifier taken apart, where there are class names."""
        if not isinstance(self.texts, Tensor):
            return None
        return Prompted(
            prompts=self.texts,
            count=self.classes,
            tower=self.text_anatomy(),
            classes=_mean,
            features=lambda stack: normalize(features(stack), dim=-1),
            compare=self.compare,
        )


def _mean(features: Tensor) -> Tensor:
    """[…, class, template, embed] → one normalised row for each class."""
    return normalize(features.mean(dim=-2), dim=-1)


def images_in(inputs: Any) -> Tensor:
    return inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs


def read_first(hidden: Tensor, at: Tensor, causal: Tensor | None) -> Stack:
    """Embedded tokens with the one at which a text is read in front, in the mask too, so that the
    last layer can be computed for it alone. Under a causal mask nothing behind it counts, and
    padding is left out.
    """
    everywhere = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
    length = hidden.shape[1] if causal is None else int(at.max()) + 1
    order = everywhere[:, :length].clone()
    order.scatter_(1, at[:, None], 0)
    order[:, 0] = at
    bias = None if causal is None else causal[order[:, :, None], order[:, None]][:, None]
    return Stack(hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[-1])), bias)
