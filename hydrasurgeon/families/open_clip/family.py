"""OpenCLIP's models of a ViT and a text transformer: two towers, and a zero-shot classifier between
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import CheckpointError, ManifestError, SurgeryError
from hydrasurgeon.families.base import WEIGHTS, BareCheckpoint, Usage
from hydrasurgeon.families.prompts import NamedClasses, Prompts, check_prompts
from hydrasurgeon.families.settings import (
    Chance,
    Colours,
    Count,
    Images,
    Pair,
    Positive,
    Settings,
    Size,
    pair,
    parse,
    patches,
    pick_fields,
)
from hydrasurgeon.families.weights import OUT, PACKED, ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.decided import BESIDE
from hydrasurgeon.files.manifest import Manifest, Model, Tower

if TYPE_CHECKING:
    from torch import Tensor

# What OpenCLIP's own configurations of ViTs are called; only shown, never looked up.
NAME = re.compile(r"CLIP|ViT-[A-Za-z0-9._-]{1,60}")
PREFIX = {"vision": "visual.transformer", "text": "transformer"}
"""Prefix of each tower's layers in the module."""
COLOURS = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
"""OpenAI's mean and deviation: what OpenCLIP takes unless a config names others."""
CROP = {"shortest": "center", "squash": "squash"}
"""OpenCLIP's word for how images become square, and timm's."""
USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")  # open_clip.create_model("local-dir:DIR") too, if no head is gone
"""
"""Code in a model card that runs the model with OpenCLIP."""


SUPPORTED = (
    "Supported: a ViT with class token (ViT-B-32, ViT-L-14, …) and OpenCLIP's own text transformer."
)
"""The hint wherever a model is refused."""
PARTS = ("embed_dim", "vision_cfg", "text_cfg")
"""The parts of OpenCLIP's model config: the width both towers end in, and each tower's sizes."""
# What a tower's config may not ask for.
FOREIGN = (
    *(
        "timm_model_name",
        "hf_model_name",
        "hf_tokenizer_name",
        "tokenizer_kwargs",
        "tokenizer_mode",
    ),
    *(
        "attentional_pool",
        "embed_cls",
        "output_tokens",
        "block_type",
        "qk_norm",
        "scaled_cosine_attn",
    ),
    *("scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"),
)
# How the names begin of what OpenCLIP reads only together with one of them.
INERT = ("attn_pooler_", "hf_", "timm_")


# What GELU and norms may be told.
Activation = dict[Literal["approximate"], Literal["none", "tanh"]]
Norm = dict[Literal["eps"], Positive]


class Vision(Settings):
    layers: Size = 12
    width: Size = 768
    head_width: Size = 64
    mlp_ratio: Positive = 4.0
    patch_size: Pair = 16
    image_size: Pair = 224
    ls_init_value: float | None = None
    patch_dropout: Chance = 0.0
    no_ln_pre: bool = False
    pos_embed_type: Literal["learnable", "sin_cos_2d"] = "learnable"
    final_ln_after_pool: bool = False
    pool_type: Literal["tok", "avg"] = "tok"
    act_kwargs: Activation | None = None
    norm_kwargs: Norm | None = None

    @property
    def heads(self) -> int:
        return self.width // self.head_width


class Text(Settings):
    context_length: Annotated[Size, Field(ge=2)] = 77
    vocab_size: Size = 49408
    width: Size = 512
    heads: Size = 8
    layers: Size = 12
    mlp_ratio: Positive = 4.0
    ls_init_value: float | None = None
    pad_id: Count = 0
    eos_id: Count = 2
    no_causal_mask: bool = False
    final_ln_after_pool: bool = False
    pool_type: Literal["first", "last", "argmax", "eos"] = "argmax"
    proj_bias: bool = False
    proj_type: Literal["linear", "none"] = "linear"
    act_kwargs: Activation | None = None
    norm_kwargs: Norm | None = None


class OpenClipConfig(Settings):
    """Both towers and what lies between them; `zero_shot` is ours."""

    embed_dim: Size
    vision_cfg: Vision
    text_cfg: Text
    quick_gelu: bool = False
    init_logit_scale: float = 2.66
    init_logit_bias: float | None = None
    nonscalar_logit_scale: bool = False
    zero_shot: Prompts | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        vision, text, why = self.vision_cfg, self.text_cfg, None
        for tower in (vision, text):
            if not tower.heads or tower.width % tower.heads:
                why = f"width {tower.width} is not a multiple of {tower.heads} heads"
        if text.proj_type == "none" and text.width != self.embed_dim:
            why = f"text_cfg.width {text.width} is not projected to embed_dim {self.embed_dim}"
        if self.quick_gelu and (vision.act_kwargs or text.act_kwargs):
            why = "act_kwargs are for GELU, and quick_gelu asks for another"
        if why is not None:
            raise ValueError(why)
        patches(vision.image_size, vision.patch_size)
        return self

    def library(self) -> dict[str, Any]:
        """Return the arguments of open_clip.CLIP."""
        return {key: value for key, value in self.written().items() if key != "zero_shot"}


class Preprocess(Settings):
    """preprocess_cfg, as far as it is read."""

    mean: Colours | None = None
    std: Colours | None = None
    interpolation: Literal["bicubic", "bilinear"] | None = None
    resize_mode: Literal["shortest", "squash"] | None = None


def stock_config(raw: Any, where: str) -> OpenClipConfig:
    """Parse a model_cfg as OpenCLIP writes it; raise SurgeryError if its heads lie elsewhere."""
    lacking = [
        part
        for part in PARTS[1:]
        if not isinstance(raw, dict) or not isinstance(raw.get(part), dict)
    ]
    if lacking:
        raise CheckpointError(f"{where}: model_cfg: {lacking[0]} is missing or not a JSON object")
    unsupported = [
        f"{part}.{key}"
        for part in PARTS[1:]
        for key in FOREIGN
        if raw[part].get(key) not in (None, False, "default")
    ]
    if isinstance(raw["vision_cfg"].get("layers"), list):
        unsupported.append("a ResNet as its image tower")
    unsupported += [key for key in ("multimodal_cfg", "custom_text") if raw.get(key)]
    if unsupported:
        raise SurgeryError(f"{where}: has {unsupported[0]}, which is not supported", hint=SUPPORTED)
    # open_clip itself refuses a key that it does not know.
    settings = {key: value for key, value in raw.items() if key not in ("custom_text", "zero_shot")}
    for part in PARTS[1:]:
        settings[part] = {
            k: v for k, v in raw[part].items() if k not in FOREIGN and not k.startswith(INERT)
        }
    return parse(OpenClipConfig, settings, f"{where}: model_cfg")


def config_of(model: Model, where: str = "model.config") -> OpenClipConfig:
    """Parse a manifest's config; raise ManifestError for an invalid one."""
    return parse(OpenClipConfig, model.config, where, error=ManifestError)


class OpenCLIP(NamedClasses):
    name = "open_clip"
    scheme = "open_clip"
    example_id = "open_clip:ViT-B-32/laion2b_s34b_b79k"
    weight_files = ("open_clip_model.safetensors", WEIGHTS)
    config_file = "open_clip_config.json"
    layout = ("open_clip_config.json",)
    needs_config = True
    modules = "hydrasurgeon.families.open_clip.modules"
    # Not `*.safetensors`: OpenCLIP's repositories hold transformers' weights of the same model too.
    downloads = ("open_clip_model.safetensors", BESIDE, "open_clip_config.json", "heads.json")

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        config, where = self.required_config(bare), f"{bare.where}: open_clip_config.json"
        read = stock_config(config.get("model_cfg"), where)
        at = f"{where}: preprocess_cfg"
        prepared = parse(
            Preprocess, pick_fields(Preprocess, config.get("preprocess_cfg") or {}), at
        )
        images = {  # in the words of timm's data configs
            "input_size": [3, *pair(read.vision_cfg.image_size)],
            "interpolation": prepared.interpolation or "bicubic",
            "crop_pct": 1.0,
            "crop_mode": CROP[prepared.resize_mode or "shortest"],
            "mean": prepared.mean or COLOURS["mean"],
            "std": prepared.std or COLOURS["std"],
        }
        model = Model(
            family="open_clip",
            arch=_name(read),
            config=read.written(),
            num_classes=0,
            preprocess=parse(Images, images, at).written(),
        )
        return model, None

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        if not NAME.fullmatch(model.arch):
            raise ManifestError(
                f"{where}: model.arch: OpenCLIP calls no model {model.arch[:60]!r}", hint=SUPPORTED
            )
        config = config_of(model, f"{where}: model.config")
        super().check(model, towers, where)
        check_prompts(model, config.zero_shot, where)
        at = f"{where}: model.preprocess"
        images = parse(Images, model.preprocess, at, error=ManifestError)
        images.check(3, config.vision_cfg.image_size, at, ManifestError)

    def repository(self, name: str) -> str:
        from open_clip.pretrained import get_pretrained_cfg

        model, _, tag = name.partition("/")
        listed = str(get_pretrained_cfg(model, tag).get("hf_hub") or name)
        return "/".join(listed.split("/")[:2])  # a file's name may follow

    def towers(self, model: Model) -> dict[str, Tower]:
        config = config_of(model)
        # Inputs run through the first tower; the second one makes the classifier.
        return {
            name: Tower.of(tower.layers, tower.heads, tower.width)
            for name, tower in (("vision", config.vision_cfg), ("text", config.text_cfg))
        }

    def weights(self, model: Model) -> Iterator[Weight]:
        return weights(config_of(model))

    def tokenizing(
        self, model: Model, files: Mapping[str, str]
    ) -> Callable[[Sequence[str]], Tensor]:
        from hydrasurgeon.families.open_clip.modules import tokens

        text = config_of(model).text_cfg
        return partial(tokens, length=text.context_length, words=text.vocab_size)

    def directory(self, manifest: Manifest) -> dict[str, str]:
        model = manifest.model
        images = parse(Images, model.preprocess, "model.preprocess", error=ManifestError)
        config = {
            "model_cfg": config_of(model).library(),
            "preprocess_cfg": {
                "mean": list(images.mean),
                "std": list(images.std),
                "interpolation": images.interpolation,
                "resize_mode": next(
                    name for name, mode in CROP.items() if mode == images.crop_mode
                ),
            },
        }
        return {"open_clip_config.json": json.dumps(config, indent=2) + "\n"}

    def usage(self, manifest: Manifest) -> Usage:
        return "open_clip", "zero-shot-image-classification", USAGE


def _name(config: OpenClipConfig) -> str:
    """Return OpenCLIP's name of this config, from its files, without importing it."""
    spec = find_spec("open_clip")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder, "model_configs").glob("ViT-*.json")):
            if json.loads(path.read_text(encoding="utf-8")) == config.library():
                return path.stem
    return "CLIP"


def weights(config: OpenClipConfig) -> Iterator[Weight]:
    """Yield all tensors of the unpruned model."""
    vision, text, embed = config.vision_cfg, config.text_cfg, config.embed_dim
    width, words = vision.width, text.width
    tokens = patches(vision.image_size, vision.patch_size) + 1
    scalar = (1,) if config.nonscalar_logit_scale else ()
    patch = (width, 3, *pair(vision.patch_size))
    yield Weight("positional_embedding", (text.context_length, words), "embedding", "text")
    yield Weight("logit_scale", scalar, "readout")
    yield Weight("visual.class_embedding", (width,), "embedding", "vision")
    yield Weight("visual.positional_embedding", (tokens, width), "embedding", "vision")
    yield Weight("visual.proj", (width, embed), "readout")
    yield Weight("visual.conv1.weight", patch, "embedding", "vision")
    yield Weight("token_embedding.weight", (text.vocab_size, words), "embedding", "text")
    yield from norm("visual.ln_post", width, "readout")
    yield from norm("ln_final", words, "readout")
    if config.init_logit_bias is not None:
        yield Weight("logit_bias", scalar, "readout")
    if not vision.no_ln_pre:
        yield from (part.within("visual", "vision") for part in norm("ln_pre", width, "embedding"))
    if text.proj_type != "none" and text.proj_bias:
        yield from linear("text_projection", embed, words, "readout")
    elif text.proj_type != "none":
        yield Weight("text_projection", (words, embed), "readout")
    for name, tower in (("vision", vision), ("text", text)):
        yield from stack(f"{PREFIX[name]}.resblocks.{{}}", name, tower.layers, _block(tower))


def _block(tower: Vision | Text) -> Iterator[Weight]:
    width, hidden = tower.width, int(tower.width * tower.mlp_ratio)
    yield from norm("ln_1", width)
    yield Weight("attn.in_proj_weight", (3 * width, width), "attention", heads=PACKED)
    yield Weight("attn.in_proj_bias", (3 * width,), "attention", heads=PACKED)
    yield from linear("attn.out_proj", width, width, "output", heads=OUT)
    yield from norm("ln_2", width)
    yield from linear("mlp.c_fc", hidden, width, "mlp", heads=ROWS)
    yield from linear("mlp.c_proj", width, hidden, "mlp", heads=OUT)
    if tower.ls_init_value is not None:
        yield Weight("ls_1.gamma", (width,), "scale")
        yield Weight("ls_2.gamma", (width,), "scale")
