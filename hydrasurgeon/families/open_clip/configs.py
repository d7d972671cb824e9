"""open_clip_config.json as records, with OpenCLIP's defaults: only these fields reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import CheckpointError, ManifestError, SurgeryError
from hydrasurgeon.families.prompts import Prompts
from hydrasurgeon.families.settings import (
    Chance,
    Colours,
    Count,
    Pair,
    Positive,
    Settings,
    Size,
    parse,
    patches,
)
from hydrasurgeon.files.manifest import Model

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


class Config(Settings):
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
        """The arguments of open_clip.CLIP."""
        return {key: value for key, value in self.written().items() if key != "zero_shot"}


class Preprocess(Settings):
    """preprocess_cfg, as far as it is read."""

    mean: Colours | None = None
    std: Colours | None = None
    interpolation: Literal["bicubic", "bilinear"] | None = None
    resize_mode: Literal["shortest", "squash"] | None = None


def stock_config(raw: Any, where: str) -> Config:
    """The record of a model_cfg as OpenCLIP writes it; SurgeryError for models whose heads lie
    elsewhere.
    """
    lacking = [
        part
        for part in PARTS[1:]
        if not isinstance(raw, dict) or not isinstance(raw.get(part), dict)
    ]
    if lacking:
        raise CheckpointError(f"{where}: model_cfg: {lacking[0]} is missing or no record")
    _refuse_others(raw, where)
    # open_clip itself refuses a key that it does not know.
    said = {key: value for key, value in raw.items() if key not in ("custom_text", "zero_shot")}
    for part in PARTS[1:]:
        said[part] = {
            k: v for k, v in raw[part].items() if k not in FOREIGN and not k.startswith(INERT)
        }
    return parse(Config, said, f"{where}: model_cfg")


def config_of(model: Model, where: str = "model.config") -> Config:
    """The record of a manifest's config; ManifestError where it is none."""
    return parse(Config, model.config, where, error=ManifestError)


def _refuse_others(raw: Mapping[str, Any], where: str) -> None:
    others = [
        f"{part}.{key}"
        for part in PARTS[1:]
        for key in FOREIGN
        if raw[part].get(key) not in (None, False, "default")
    ]
    if isinstance(raw["vision_cfg"].get("layers"), list):
        others.append("a ResNet as its image tower")
    others += [key for key in ("multimodal_cfg", "custom_text") if raw.get(key)]
    if others:
        raise SurgeryError(f"{where}: has {others[0]}, which is not supported", hint=SUPPORTED)
