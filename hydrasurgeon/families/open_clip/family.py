"""OpenCLIP's models of a ViT and a text transformer: two towers, and a zero-shot classifier between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import CheckpointError, ManifestError, UsageError
from hydrasurgeon.families.base import Identified, Usage
from hydrasurgeon.families.open_clip.configs import (
    SUPPORTED,
    Config,
    Preprocess,
    Text,
    Vision,
    config_of,
    stock_config,
)
from hydrasurgeon.families.open_clip.zero_shot import check_prompts, zero_shot
from hydrasurgeon.families.settings import (
    Images,
    agree,
    known,
    pair,
    parse,
    patches,
)
from hydrasurgeon.files.manifest import Manifest, Model, Tower
from hydrasurgeon.slicing import HeadTensor

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept

__all__ = ["OpenCLIP"]

# What OpenCLIP's own configurations of ViTs are called; only shown, never looked up.
NAME = re.compile(r"CLIP|ViT-[A-Za-z0-9._-]{1,60}")
LAYER = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.")
PREFIX = {"vision": "visual.transformer", "text": "transformer"}
COLOURS = {
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
}
CROP = {"shortest": "center", "squash": "squash"}
USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")  # open_clip.create_model("local-dir:DIR") too, if no head is gone
"""


class OpenCLIP:
    family = "open_clip"

    def identify(
        self,
        tensors: Mapping[str, TensorInfo],
        *,
        arch: str | None,
        config: Mapping[str, Any] | None,
        files: Mapping[str, str],
        where: str,
    ) -> Identified:
        if arch is not None:
            raise UsageError(
                f"--arch open_clip:{arch}: an OpenCLIP model is known by its open_clip_config.json",
                hint="Give the directory that holds it and the weights.",
            )
        where = f"{where}: open_clip_config.json"
        given = (config or {}).get("model_cfg")
        if not isinstance(given, dict):
            raise CheckpointError(f"{where}: has no model_cfg")
        read = stock_config(given, where)
        model = Model(
            family="open_clip",
            arch=_name(read),
            config=read.written(),
            num_classes=0,
            preprocess=_preprocess(read, (config or {}).get("preprocess_cfg") or {}, where),
        )
        return Identified(model, _towers(read))

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        if not NAME.fullmatch(model.arch):
            raise ManifestError(f"{where}: model.arch: OpenCLIP calls no model {model.arch[:60]!r}", hint=SUPPORTED)  # fmt: skip
        config = config_of(model, f"{where}: model.config")
        agree(model, towers, _towers(config), where)
        check_prompts(model, config.zero_shot, where)
        at = f"{where}: model.preprocess"
        images = parse(Images, model.preprocess, at, error=ManifestError)
        reads = (3, *pair(config.vision_cfg.image_size))
        if images.input_size != reads:
            raise ManifestError(f"{at}: input_size: {images.input_size}, the model reads {reads} (image_size)")  # fmt: skip

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        return ()

    def check_files(self, model: Model, files: Mapping[str, str], where: str) -> None:
        assert not files  # there are no companions

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str]:
        ours = tensor_shapes(config_of(model))
        return {name: name for name in stored if name in ours}

    def head_tensors(self, model: Model, tower: str, layer: int) -> tuple[HeadTensor, ...]:
        attn = f"{PREFIX[tower]}.resblocks.{layer}.attn"
        return (
            HeadTensor(f"{attn}.in_proj_weight", 0, 3),
            HeadTensor(f"{attn}.in_proj_bias", 0, 3),
            HeadTensor(f"{attn}.out_proj.weight", 1),
        )

    def expected(self, model: Model, towers: Mapping[str, Tower]) -> Mapping[str, tuple[int, ...]]:
        return tensor_shapes(config_of(model))

    def is_mlp(self, name: str) -> bool:
        return LAYER.match(name) is not None and ".mlp." in name

    def layer_of(self, name: str) -> tuple[str, int] | None:
        match = LAYER.match(name)
        return None if match is None else ("vision" if match[1] else "text", int(match[2]))

    def embedding_of(self, name: str) -> str | None:
        if name.startswith(("token_embedding.", "positional_embedding")):
            return "text"
        parts = ("class_embedding", "positional_embedding", "conv1.", "ln_pre.")
        return "vision" if name.startswith(tuple(f"visual.{part}" for part in parts)) else None

    def is_classifier(self, name: str) -> bool:
        return False  # it is made of class names, by the text tower

    def with_classes(self, model: Model, count: int, labels: tuple[str, ...] | None) -> Model:
        names = labels if labels is not None else model.labels
        if names is None or len(names) != count:
            raise UsageError(
                f"zero-shot classification needs the names of the {count} classes",
                hint="Give --classes, or data with class names.",
            )
        return zero_shot(model, names)

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        images = parse(Images, model.preprocess, "model.preprocess", error=ManifestError)
        config = {
            "model_cfg": config_of(model).library(),
            "preprocess_cfg": {
                "mean": list(images.mean),
                "std": list(images.std),
                "interpolation": images.interpolation,
                "resize_mode": next(name for name, mode in CROP.items() if mode == images.crop_mode),
            },
        }  # fmt: skip
        return {"open_clip_config.json": json.dumps(config, indent=2) + "\n"}

    def usage(self, manifest: Manifest) -> Usage:
        return Usage(library="open_clip", task="zero-shot-image-classification", code=USAGE)

    def build(
        self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False
    ) -> nn.Module:
        from hydrasurgeon.families.open_clip.modules import ZeroShot

        return ZeroShot.build(model, kept, fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.open_clip.modules import ZeroShot, anatomy

        assert isinstance(module, ZeroShot)
        return anatomy(module)

    def transform(
        self,
        model: Model,
        augment: Mapping[str, Any] | None = None,
        *,
        files: Mapping[str, str] | None = None,
    ) -> Callable[[Any], Any]:
        from hydrasurgeon.data.transforms import eval_transform, train_transform

        if augment is not None:
            return train_transform(model.preprocess, augment)
        return eval_transform(model.preprocess)

    def example(self, model: Model, batch: int, *, device: torch.device, dtype: torch.dtype) -> Any:
        from torch import randn

        return randn(batch, *model.preprocess["input_size"], device=device, dtype=dtype)


def _name(config: Config) -> str:
    """What OpenCLIP calls this config; read from its files, without importing it."""
    spec = find_spec("open_clip")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder, "model_configs").glob("ViT-*.json")):
            if json.loads(path.read_text(encoding="utf-8")) == config.library():
                return path.stem
    return "CLIP"


def _towers(config: Config) -> dict[str, Tower]:
    # Inputs run through the first tower; the second one makes the classifier.
    return {
        name: Tower(layers=tower.layers, heads=tower.heads, head_dim=tower.width // tower.heads, dim=tower.width)
        for name, tower in (("vision", config.vision_cfg), ("text", config.text_cfg))
    }  # fmt: skip


def _preprocess(config: Config, given: object, where: str) -> dict[str, Any]:
    """preprocess_cfg in the words of timm's data configs."""
    at = f"{where}: preprocess_cfg"
    if not isinstance(given, dict):
        raise CheckpointError(f"{at}: is not a record")
    said = parse(Preprocess, known(Preprocess, given), at)
    images = {
        "input_size": [3, *pair(config.vision_cfg.image_size)],
        "interpolation": said.interpolation or "bicubic",
        "crop_pct": 1.0,
        "crop_mode": CROP[said.resize_mode or "shortest"],
        "mean": said.mean or COLOURS["mean"],
        "std": said.std or COLOURS["std"],
    }
    return parse(Images, images, at).written()


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights of the unpruned model."""
    vision, text, embed = config.vision_cfg, config.text_cfg, config.embed_dim
    width, words = vision.width, text.width
    tokens = patches(vision.image_size, vision.patch_size) + 1
    scalar = (1,) if config.nonscalar_logit_scale else ()
    shapes: dict[str, tuple[int, ...]] = {
        "positional_embedding": (text.context_length, words),
        "logit_scale": scalar,
        "visual.class_embedding": (width,),
        "visual.positional_embedding": (tokens, width),
        "visual.proj": (width, embed),
        "visual.conv1.weight": (width, 3, *pair(vision.patch_size)),
        "token_embedding.weight": (text.vocab_size, words),
        **_norm("visual.ln_post", width),
        **_norm("ln_final", words),
    }
    if config.init_logit_bias is not None:
        shapes["logit_bias"] = scalar
    if not vision.no_ln_pre:
        shapes |= _norm("visual.ln_pre", width)
    if text.proj_type != "none":
        shapes |= (
            {"text_projection.weight": (embed, words), "text_projection.bias": (embed,)}
            if text.proj_bias
            else {"text_projection": (words, embed)}
        )
    for prefix, tower in ((PREFIX["vision"], vision), (PREFIX["text"], text)):
        for layer in range(tower.layers):
            shapes |= _block(f"{prefix}.resblocks.{layer}", tower)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _block(place: str, tower: Vision | Text) -> dict[str, tuple[int, ...]]:
    width, hidden = tower.width, int(tower.width * tower.mlp_ratio)
    shapes: dict[str, tuple[int, ...]] = {
        **_norm(f"{place}.ln_1", width),
        f"{place}.attn.in_proj_weight": (3 * width, width),
        f"{place}.attn.in_proj_bias": (3 * width,),
        f"{place}.attn.out_proj.weight": (width, width),
        f"{place}.attn.out_proj.bias": (width,),
        **_norm(f"{place}.ln_2", width),
        f"{place}.mlp.c_fc.weight": (hidden, width),
        f"{place}.mlp.c_fc.bias": (hidden,),
        f"{place}.mlp.c_proj.weight": (width, hidden),
        f"{place}.mlp.c_proj.bias": (width,),
    }
    if tower.ls_init_value is not None:
        shapes |= {f"{place}.ls_1.gamma": (width,), f"{place}.ls_2.gamma": (width,)}
    return shapes
