"""preprocessor_config.json and the tokenizer's limits as a manifest's preprocess record, in the words of timm's data
configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hydrasurgeon.errors import CheckpointError, HydraError
from hydrasurgeon.families.hf_encoder.configs import Encoder, ImageEncoder, TextEncoder
from hydrasurgeon.families.hf_encoder.tokenizer import PREPROCESSOR, companion, files_sha256, tokenizer_config
from hydrasurgeon.families.settings import Colours, Edge, Images, Settings, Texts, pair, parse

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's colours: what the library takes unless a config names others."""
HALVES = ((0.5,), (0.5,))
"""What the library takes for ViTs, and for images of other than three colours."""
# PIL's numbers.
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class Box(Settings):
    height: Edge
    width: Edge


class Shortest(Settings):
    shortest_edge: Edge


class Processor(Settings):
    """preprocessor_config.json, as far as it says what pixels a model sees."""

    size: Edge | Box | Shortest | None = None
    crop_size: Edge | Box | None = None
    do_center_crop: bool | None = None
    do_normalize: bool | None = None
    resample: Annotated[int, Field(ge=0, le=5)] | None = None
    image_mean: Colours | None = None
    image_std: Colours | None = None


def preprocess(config: Encoder, files: Mapping[str, str], where: str) -> dict[str, Any]:
    """What the companions say, else what is usual for the type."""
    recorded = {"files_sha256": files_sha256(files)} if files else {}
    if isinstance(config, TextEncoder):
        limit = tokenizer_config(files, where).model_max_length
        length = config.longest if limit is None else min(config.longest, int(limit))
        return parse(Texts, {"max_length": length, **recorded}, where).written()
    assert isinstance(config, ImageEncoder)
    processor_config = companion(Processor, files, PREPROCESSOR, where)
    said = {**_sizing(config, processor_config), **_colours(config, processor_config), **recorded}
    images = parse(Images, said, f"{where}: {PREPROCESSOR}")
    check_size(config, images, f"{where}: {PREPROCESSOR}", CheckpointError)
    return images.written()


def check_processor(files: Mapping[str, str], where: str) -> None:
    """CheckpointError for a preprocessor_config.json that says what it may not."""
    companion(Processor, files, PREPROCESSOR, where)


def check_size(config: ImageEncoder, images: Images, where: str, error: type[HydraError]) -> None:
    """Refuse images of another size or with other channels than the model reads."""
    # DINOv2 stretches its table of positions over images of any size.
    size = images.input_size[1:] if config.model_type == "dinov2" else pair(config.image_size)
    reads = (config.num_channels, *size)
    if images.input_size != reads:
        made, read = ("×".join(map(str, each)) for each in (images.input_size, reads))
        raise error(f"{where}: makes images of {made}, the model reads {read} (config: image_size)")


def _sizing(config: ImageEncoder, processor: Processor) -> dict[str, Any]:
    """Resizing and cropping."""
    kind = config.model_type
    size, crop = (processor.size, processor.crop_size) if processor.size is not None else _usual(config)
    if isinstance(size, int):
        size = Shortest(shortest_edge=size) if kind == "dinov2" else Box(height=size, width=size)
    if isinstance(crop, int):
        crop = Box(height=crop, width=crop)
    squash = isinstance(size, Box)
    edge = size.height if isinstance(size, Box) else size.shortest_edge
    whole = size if isinstance(size, Box) else Box(height=edge, width=edge)
    target = whole if crop is None or processor.do_center_crop is False else crop
    # Half a pixel keeps timm's floor(crop / crop_pct) at the edge.
    share = 1.0 if target.height == edge else target.height / (edge + 0.5)
    resample = processor.resample if processor.resample is not None else 2 if kind == "vit" else 3
    return {
        "input_size": [config.num_channels, target.height, target.width],
        "interpolation": RESAMPLE[resample],
        "crop_pct": share,
        "crop_mode": "squash" if squash else "center",
    }


def _usual(config: ImageEncoder) -> tuple[Box | Shortest, Box | None]:
    """How images are resized for models of this type, and what is cut out."""
    height, width = pair(config.image_size)
    # DINOv2 was trained at 518 and is used at 224, and so are the others with the size they have.
    if config.model_type == "dinov2" and min(height, width) >= 224:
        height = width = 224
    crop = Box(height=height, width=width)
    if config.model_type == "vit":
        return crop, None
    larger = [round(edge * 256 / 224) for edge in (height, width)]
    if config.model_type == "dinov2":
        return Shortest(shortest_edge=min(larger)), crop
    return Box(height=larger[0], width=larger[1]), crop


def _colours(config: ImageEncoder, processor: Processor) -> dict[str, Any]:
    channels = config.num_channels
    if processor.do_normalize is False:
        return {"mean": [0.0] * channels, "std": [1.0] * channels}
    usual = HALVES if config.model_type == "vit" or channels != 3 else IMAGENET
    mean = processor.image_mean if processor.image_mean is not None else usual[0]
    std = processor.image_std if processor.image_std is not None else usual[1]
    return {
        name: list(one if len(one) == channels else one[:1] * channels) for name, one in (("mean", mean), ("std", std))
    }


def processor(images: Images) -> dict[str, Any]:
    """A preprocessor_config.json for a checkpoint that came without one."""
    _, height, width = images.input_size
    share = images.crop_pct or 1.0
    edge = round(height / share - (0 if share == 1.0 else 0.5))
    squash = images.crop_mode == "squash"
    return {
        "image_processor_type": "BitImageProcessor" if not squash else "DeiTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_center_crop": edge != height,
        "size": {"height": edge, "width": edge} if squash else {"shortest_edge": edge},
        "crop_size": {"height": height, "width": width},
        "resample": next(n for n, name in RESAMPLE.items() if name == images.interpolation),
        "rescale_factor": 1 / 255,
        "image_mean": list(images.mean),
        "image_std": list(images.std),
    }
