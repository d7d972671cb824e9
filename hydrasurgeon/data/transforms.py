"""Image preprocessing and augmentation through timm's transforms, from a data config as timm writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

__all__ = ["eval_transform", "train_transform"]


@dataclass(frozen=True)
class ToMode:
    """Any picture → RGB or grey, as many channels as the model reads."""

    channels: int

    def __call__(self, image: Image.Image) -> Image.Image:
        if image.mode in ("I", "I;16", "I;16B", "I;16L"):
            image = image.point(lambda value: value / 256).convert("L")
        elif image.mode in ("P", "PA", "LA"):
            image = image.convert("RGBA").convert("RGB")
        return image.convert("L" if self.channels == 1 else "RGB")


def eval_transform(preprocess: Mapping[str, Any]) -> Callable[[Image.Image], Tensor]:
    """Resize, centre crop, to tensor, normalise."""
    return _transform(preprocess, is_training=False)


def train_transform(preprocess: Mapping[str, Any], augment: Mapping[str, Any]) -> Callable[[Image.Image], Tensor]:
    """`augment`: random_resized_crop [lo, hi] or null, hflip, rand_augment (timm's string) or null, pad_crop or null."""
    from torchvision.transforms import Compose, RandomCrop

    crop = augment.get("random_resized_crop")
    transform = _transform(
        preprocess,
        is_training=True,
        scale=tuple(crop) if crop else (1.0, 1.0),
        ratio=(3 / 4, 4 / 3) if crop else (1.0, 1.0),
        hflip=augment.get("hflip") or 0.0,
        auto_augment=augment.get("rand_augment"),
        color_jitter=0.0,
        re_prob=0.0,
    )
    if not augment.get("pad_crop"):
        return transform
    shift = RandomCrop(preprocess["input_size"][1:], padding=augment["pad_crop"], pad_if_needed=True)
    first, *rest = transform.transforms  # type: ignore[attr-defined]
    made: Callable[[Image.Image], Tensor] = Compose([first, shift, *rest])
    return made


def _transform(preprocess: Mapping[str, Any], **options: Any) -> Callable[[Image.Image], Tensor]:
    from timm.data import create_transform
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
    made: Callable[[Image.Image], Tensor] = Compose([ToMode(preprocess["input_size"][0]), *transform.transforms])
    return made
