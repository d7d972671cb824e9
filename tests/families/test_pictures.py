"""Pictures of real sizes and kinds become the pixels that each family's own library makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data.images import decode
from hydrasurgeon.families.transforms import eval_transform

SIZES = ((640, 427), (1000, 667), (500, 375), (333, 500), (64, 64), (50, 1), (1, 50), (3, 2))


def scene(width: int, height: int) -> Image.Image:
    """Slopes and edges: a pixel's place shows everywhere."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    channels = ((3 * x + y) % 256, (x // 9 + y // 7) % 2 * 255, (x * y) % 251)
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def files(folder: Path) -> dict[str, Path]:
    """The same scene in the sizes and kinds that people have."""
    made = {f"{width}x{height}": scene(width, height) for width, height in SIZES}
    made["grey"] = made["500x375"].convert("L")
    made["grey with alpha"] = made["500x375"].convert("LA")
    made["grey with alpha"].putalpha(made["grey"])
    made["colours with alpha"] = made["500x375"].convert("RGBA")
    made["colours with alpha"].putalpha(made["grey"])
    made["palette"] = made["500x375"].quantize(16)
    paths = {}
    for name, picture in made.items():
        paths[name] = folder / f"{name}.png"
        picture.save(paths[name])
    paths["transparent palette"] = folder / "transparent.png"
    made["palette"].save(paths["transparent palette"], transparency=3)
    paths["palette of many transparencies"] = folder / "transparencies.png"
    made["palette"].save(paths["palette of many transparencies"], transparency=bytes(range(16)))
    exif = Image.Exif()
    exif[0x0112] = 6
    paths["a phone's"] = folder / "phone.jpg"
    made["640x427"].save(paths["a phone's"], exif=exif)
    return paths


def processors() -> dict[str, Any]:
    from transformers import (
        BitImageProcessor,
        CLIPImageProcessor,
        DeiTImageProcessor,
        SiglipImageProcessor,
        ViTImageProcessor,
    )

    square = {"height": 28, "width": 28}
    larger = {"height": 32, "width": 32}
    return {
        "DINOv2": BitImageProcessor(size={"shortest_edge": 32}, crop_size=square),
        "CLIP": CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=square),
        "DeiT": DeiTImageProcessor(size=larger, crop_size=square),
        "ViT": ViTImageProcessor(size=square),
        "SigLIP 2": SiglipImageProcessor(size=square),
    }


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("kind", ["DINOv2", "CLIP", "DeiT", "ViT", "SigLIP 2"])
def test_as_transformers_image_classification_pipeline(tmp_path: Path, kind: str) -> None:
    from transformers.image_utils import load_image

    processor = processors()[kind]
    FAMILIES[kind].write(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    transform = hs.load(tmp_path / "model", device="cpu").transform
    for name, path in files(tmp_path).items():
        expected = processor(load_image(str(path)), return_tensors="pt")["pixel_values"][0]
        found = transform(decode(path.read_bytes(), name))
        assert found.shape == (3, 28, 28), name
        assert (found - expected).abs().max() < 1e-5, name


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
def test_as_timm(tmp_path: Path, crop_mode: str) -> None:
    """Neither turned by EXIF nor put on white: timm does not."""
    from timm.data.transforms_factory import create_transform

    told = {"crop_pct": 0.9, "crop_mode": crop_mode, "interpolation": "bicubic"}
    colours = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    stock = create_transform(input_size=(3, 28, 28), **told, **colours)
    transform = eval_transform({"input_size": [3, 28, 28], **told, **colours})
    for name, path in files(tmp_path).items():
        expected = stock(Image.open(path).convert("RGB"))
        assert torch.equal(transform(decode(path.read_bytes(), name)), expected), name


def test_damaged_exif_data_turn_nothing(tmp_path: Path) -> None:
    FAMILIES["CLIP"].write(tmp_path / "model")
    transform = hs.load(tmp_path / "model", device="cpu").transform
    picture = scene(40, 30)
    damaged = picture.copy()
    damaged.info["exif"] = b"Exif\0\0II*\0\xff\xff\xff\xff"
    assert torch.equal(transform(damaged), transform(picture))
