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
    """Classifier of images → logits over the class names.

    Without class names, → normalised image features.
    """

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.model: Any = model
        self.classes = classes
        # Not persistent: which texts there are follows from the manifest.
        self.register_buffer("texts", None, persistent=False)
        self._cached_classes: tuple[Any, Tensor] | None = None

    # --- a library's own ---

    @abstractmethod
    def encode_images(self, pixels: Tensor) -> Tensor:
        """Return the features of images."""

    @abstractmethod
    def encode_texts(self, tokens: Tensor) -> Tensor:
        """Return the features of texts, from token ids."""

    @abstractmethod
    def text_anatomy(self) -> Anatomy:
        """Return the parts of the text tower: token ids → normalised features."""

    @property
    @abstractmethod
    def text_towers(self) -> Sequence[nn.Module | nn.Parameter | None]:
        """Modules and parameters that texts run through; None for missing ones."""

    # --- the same for all ---

    @property
    def log_scale(self) -> nn.Parameter:
        """The logarithm of what the products of features are multiplied by."""
        return self.model.logit_scale

    @property
    def shift(self) -> nn.Parameter | None:
        """Bias added to the products of features; None without one."""
        return getattr(self.model, "logit_bias", None)

    def disk_name(self, name: str) -> str:
        return name.removeprefix("model.")

    def forward(self, inputs: Any) -> Tensor:
        """Return the logits of images."""
        return self.logits(self.encode_images(images_in(inputs)))

    def text_features(self, tokens: Tensor) -> Tensor:
        return normalize(self.encode_texts(tokens), dim=-1)

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits of image features."""
        images = normalize(features, dim=-1)
        return images if self.texts is None else self.compare(images, self.class_features())

    def compare(self, images: Tensor, classes: Tensor) -> Tensor:
        """Return the logits for normalised features of images and classes."""
        note(self, images)
        logits: Tensor = self.log_scale.exp() * images @ classes.mT
        return logits if self.shift is None else logits + self.shift

    def text_parts(self) -> tuple[nn.Module | nn.Parameter, ...]:
        """Return all parts of the text tower, and the scale."""
        parts = (*self.text_towers, self.log_scale, self.shift)
        return tuple(part for part in parts if part is not None)

    def class_features(self) -> Tensor:
        """Return one normalised row for each class, the mean over its prompts.

        The rows are cached for as long as nothing can change them.
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
        if self._cached_classes is None or self._cached_classes[0] != state:
            # An inference tensor would be of no use to a later pass with gradients.
            with torch.inference_mode(False), torch.no_grad():
                self._cached_classes = state, self._encode_classes()
        return self._cached_classes[1]

    def text_sites(self) -> Iterator[Attention]:
        """Yield the attention of each layer of the text tower."""
        return (block.attention for block in self.text_anatomy().blocks)

    def _encode_classes(self) -> Tensor:
        assert isinstance(self.texts, Tensor)
        return _mean(
            torch.cat([self.text_features(some) for some in self.texts.split(CHUNK)]).unflatten(
                0, (self.classes, -1)
            )
        )

    def prompted(self, features: Callable[[Stack], Tensor]) -> Prompted | None:
        """Return the parts of the classifier, if there are class names."""
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
    """Return one normalised row for each class, from […, class, template, embed]."""
    return normalize(features.mean(dim=-2), dim=-1)


def images_in(inputs: Any) -> Tensor:
    return inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs


def read_first(hidden: Tensor, at: Tensor, causal: Tensor | None) -> Stack:
    """Return embedded tokens with the one at which a text is read in front, in the mask too.

    The last layer can then be computed for it alone. Under a causal mask nothing behind it counts,
    and padding is left out.
    """
    everywhere = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
    length = hidden.shape[1] if causal is None else int(at.max()) + 1
    order = everywhere[:, :length].clone()
    order.scatter_(1, at[:, None], 0)
    order[:, 0] = at
    bias = None if causal is None else causal[order[:, :, None], order[:, None]][:, None]
    return Stack(hidden.gather(1, order[..., None].expand(-1, -1, hidden.shape[-1])), bias)
