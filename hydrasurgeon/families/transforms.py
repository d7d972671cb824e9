"""Image preprocessing and augmentation through timm's transforms, from a data config as timm writes
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from PIL import Image
from torch import Tensor

from hydrasurgeon.data.images import plain

SIZING = ("Resize", "ResizeKeepRatio", "CenterCrop", "CenterCropOrPad")
"""Transforms that decide the size of a picture."""


def converted(image: Image.Image, *, mode: str) -> Image.Image:
    """Any picture → RGB or grey."""
    return plain(image).convert(mode)


def eval_transform(preprocess: Mapping[str, Any]) -> Callable[[Image.Image], Tensor]:
    """Resize, centre crop, to tensor, normalise."""
    return _transform(preprocess, is_training=False)


def train_transform(
    preprocess: Mapping[str, Any],
    augment: Mapping[str, Any],
    *,
    convert: Callable[[Image.Image], Image.Image] | None = None,
    sizing: Callable[[Image.Image], Image.Image] | None = None,
) -> Callable[[Image.Image], Tensor]:
    """`augment`: random_resized_crop [lo, hi], hflip, rand_augment (timm's string), pad_crop; null
    for none. `convert` and `sizing` are a library's own, where they are not timm's.
    """
    from torchvision.transforms import Compose, RandomCrop

    crop = augment.get("random_resized_crop")
    training = _transform(
        preprocess,
        is_training=True,
        scale=tuple(crop) if crop else None,
        hflip=augment.get("hflip") or 0.0,
        auto_augment=augment.get("rand_augment"),
        color_jitter=None,
        re_prob=0.0,
    ).transforms
    first, *others = (step for step in training if type(step).__name__ != "ColorJitter")
    steps = [convert or first]
    if not crop:
        # The crop of the evaluation takes the place of the random one.
        evaluation = _transform(preprocess, is_training=False).transforms
        sized = [step for step in evaluation if type(step).__name__ in SIZING]
        steps += sized if sizing is None else [sizing]
        others = [step for step in others if not type(step).__name__.startswith("RandomResized")]
    if augment.get("pad_crop"):
        steps.append(RandomCrop(preprocess["input_size"][1:], padding=augment["pad_crop"]))
    return Compose([*steps, *others])


def _transform(preprocess: Mapping[str, Any], **options: Any) -> Any:
    from timm.data.transforms_factory import create_transform
    from torchvision.transforms import Compose

    transform = create_transform(
        input_size=tuple(preprocess["input_size"]),
        interpolation=preprocess.get("interpolation", "bicubic"),
        mean=tuple(preprocess["mean"]),
        std=tuple(preprocess["std"]),
        crop_pct=preprocess.get("crop_pct"),
        crop_mode=preprocess.get("crop_mode"),
        **options,
    )
    # Any picture → RGB or grey, as many channels as the model reads.
    mode = "L" if preprocess["input_size"][0] == 1 else "RGB"
    return Compose([partial(converted, mode=mode), *transform.transforms])
