"""Pictures as tensors, and their augmentation through timm's transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from hydrasurgeon.data.pictures import Pictures, Pixels


def eval_transform(pictures: Pictures) -> Callable[[Image.Image], Tensor]:
    """Resize, centre crop, to tensor, normalise."""
    pictures.resized = resized
    return partial(_tensor, pictures)


def resized(pixels: Pixels, size: Sequence[int], way: str) -> Pixels:
    """Resize pixels as `data.pictures` does without torch, bit for bit, in a fraction of the time."""
    batch = torch.from_numpy(np.ascontiguousarray(pixels))[None]
    resized_pixels: Pixels = interpolate(batch, tuple(size), mode=way, antialias=True)[0].numpy()
    return resized_pixels


def _tensor(pictures: Pictures, image: Image.Image) -> Tensor:
    return torch.from_numpy(pictures(image))


def train_transform(
    pictures: Pictures, augment: Mapping[str, Any]
) -> Callable[[Image.Image], Tensor]:
    """Build the training transform. `augment` has random_resized_crop [low, high], hflip,
    rand_augment [operations, magnitude] of torchvision, pad_crop; null for none.
    """
    from timm.data.transforms_factory import create_transform
    from torchvision.transforms import Compose, InterpolationMode, RandAugment, RandomCrop

    pictures.resized = resized
    preprocess, crop = pictures.preprocess, augment.get("random_resized_crop")
    created: Any = create_transform
    training = created(
        input_size=tuple(preprocess["input_size"]),
        interpolation=pictures.way,
        mean=tuple(preprocess["mean"]),
        std=tuple(preprocess["std"]),
        is_training=True,
        scale=tuple(crop) if crop else None,
        hflip=augment.get("hflip") or 0.0,
        color_jitter=None,
        re_prob=0.0,
    )
    left_out = ("ColorJitter",) if crop else ("ColorJitter", "RandomResized")
    later_steps = [
        step for step in training.transforms if not type(step).__name__.startswith(left_out)
    ]
    steps: list[Any] = [pictures.converted]
    if not crop:
        # The crop of the evaluation takes the place of the random one.
        steps.append(pictures.picture)
    if augment.get("pad_crop"):
        steps.append(RandomCrop(preprocess["input_size"][1:], padding=augment["pad_crop"]))
    drawn = augment.get("rand_augment")
    if drawn:
        # Behind crop and flip, while it is still a picture; what turns out of it is filled with the mean colour.
        at = next(i for i, step in enumerate(later_steps) if "Tensor" in type(step).__name__)
        fill = [round(255 * value) for value in preprocess["mean"]]
        operations, magnitude = drawn
        later_steps.insert(
            at,
            RandAugment(operations, magnitude, interpolation=InterpolationMode.BILINEAR, fill=fill),
        )
    return Compose([*steps, *later_steps])
