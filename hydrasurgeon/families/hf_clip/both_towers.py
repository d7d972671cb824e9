"""transformers' CLIP and SigLIP with both towers, as tables: what config.json says, and tensors on
disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import CheckpointError, ManifestError
from hydrasurgeon.families.hf_clip import family as images
from hydrasurgeon.families.hf_clip.family import ClipConfig, SiglipConfig, flat
from hydrasurgeon.families.hf_encoder.architectures import (
    Activation,
    Epsilon,
    Kind,
    TextEncoder,
    stock_config,
)
from hydrasurgeon.families.prompts import Prompts
from hydrasurgeon.families.settings import Chance, Count, Settings, Size, parse
from hydrasurgeon.families.weights import Weight, linear, norm, stack
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.files.untrusted import must

TEXT = "text_model"
"""Prefix of its modules' names."""


class ClipText(TextEncoder):
    model_type: Literal["clip"]
    vocab_size: Size = 49408
    hidden_size: Size = 512
    num_attention_heads: Size = 8
    intermediate_size: Size = 2048
    max_position_embeddings: Size = 77
    hidden_act: Activation = "quick_gelu"
    layer_norm_eps: Epsilon = 1e-5
    attention_probs_dropout_prob: Chance = Field(0.0, alias="attention_dropout")
    pad_token_id: Count | None = 1
    # A text is read at it; 2 stands for the token of the highest number.
    eos_token_id: Count = 49407


class SiglipText(TextEncoder):
    model_type: Literal["siglip"]
    vocab_size: Size = 32000
    max_position_embeddings: Size = 64
    hidden_act: Activation = "gelu_pytorch_tanh"
    layer_norm_eps: Epsilon = 1e-6
    attention_probs_dropout_prob: Chance = Field(0.0, alias="attention_dropout")
    pad_token_id: Count | None = 1
    projection_size: Size | None = None


TEXTS = {"clip": Kind(ClipText, TEXT, "text", ()), "siglip": Kind(SiglipText, TEXT, "text", ())}
"""Layouts of text towers, by the model type."""


class TwoTowerConfig(Settings):
    """Both towers and what lies between them; `zero_shot` is ours."""

    model_type: Literal["clip", "siglip"]
    vision_config: Annotated[ClipConfig | SiglipConfig, Field(discriminator="model_type")]
    text_config: Annotated[ClipText | SiglipText, Field(discriminator="model_type")]
    projection_dim: Size = 512
    zero_shot: Prompts | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        vision, text = self.vision_config, self.text_config
        kinds, end = {vision.model_type, text.model_type}, vision.hidden_size
        if isinstance(text, SiglipText):
            end = text.projection_size or text.hidden_size
        must(
            (kinds == {self.model_type}, f"towers of {kinds} in a {self.model_type}"),
            (end == vision.hidden_size, f"texts end in {end}, images in {vision.hidden_size}"),
        )
        return self

    @property
    def embed_dim(self) -> int:
        """Width of the space in which images and texts are compared."""
        return self.projection_dim if self.model_type == "clip" else self.vision_config.hidden_size

    def library(self) -> dict[str, Any]:
        """Return config.json, as far as the library needs it."""
        settings = {key: value for key, value in self.written().items() if key != "zero_shot"}
        towers = {
            key: {name: value for name, value in settings[key].items() if name != "model_type"}
            for key in ("vision_config", "text_config")
        }
        return {**settings, **towers}


ARCHS = {"clip": "CLIPModel", "siglip": "SiglipModel"}
"""The library's model of both towers, by the `model_type` of a config."""


def read_towers(config: Mapping[str, Any], where: str) -> TwoTowerConfig:
    """Parse a config.json as transformers and its users write it."""
    kind, at = config["model_type"], f"{where}: config.json"
    text = config.get("text_config_dict") or config.get("text_config") or {}
    if not isinstance(text, Mapping):
        raise CheckpointError(f"{at}: text_config: is not a JSON object")
    towers = {
        "vision_config": stock_config(
            flat(config, where), f"{at}: vision_config", images.KINDS
        ).written(),
        "text_config": stock_config(
            {**text, "model_type": kind}, f"{at}: text_config", TEXTS
        ).written(),
    }
    width = (
        {"projection_dim": config["projection_dim"]}
        if kind == "clip" and "projection_dim" in config
        else {}
    )
    return parse(TwoTowerConfig, {"model_type": kind, **towers, **width}, at)


def towers_of(model: Model, where: str = "model.config") -> TwoTowerConfig:
    """Parse a manifest's config; raise ManifestError for an invalid one."""
    return parse(TwoTowerConfig, model.config, where, error=ManifestError)


def weights(config: TwoTowerConfig) -> Iterator[Weight]:
    """Yield all tensors of the unpruned model."""
    clip, vision, text = config.model_type == "clip", config.vision_config, config.text_config
    width = text.hidden_size
    scalar = () if clip else (1,)
    yield Weight("logit_scale", scalar, "readout")
    if not clip:
        yield Weight("logit_bias", scalar, "readout")
    yield from images.weights(vision, 0)
    if clip:
        yield from linear(
            "visual_projection", config.embed_dim, vision.hidden_size, "readout", bias=False
        )
    else:
        yield from (part.within("vision_model.head", None) for part in _pool(vision))
    yield Weight(
        f"{TEXT}.embeddings.token_embedding.weight", (text.vocab_size, width), "embedding", "text"
    )
    positions = (text.max_position_embeddings, width)
    yield Weight(f"{TEXT}.embeddings.position_embedding.weight", positions, "embedding", "text")
    place, layers = f"{TEXT}.{images.CLIP.layer}", text.num_hidden_layers
    yield from stack(place, "text", layers, images.layer_weights(text))
    yield from norm(f"{TEXT}.final_layer_norm", width, "readout")
    if clip:
        yield from linear("text_projection", config.embed_dim, width, "readout", bias=False)
    else:
        yield from linear(f"{TEXT}.head", config.embed_dim, width, "readout")


def _pool(vision: ClipConfig | SiglipConfig) -> Iterator[Weight]:
    """Yield SigLIP's attention pool, which is not cut."""
    dim, inner = vision.hidden_size, vision.intermediate_size
    yield Weight("probe", (1, 1, dim), "readout")
    yield Weight("attention.in_proj_weight", (3 * dim, dim), "readout")
    yield Weight("attention.in_proj_bias", (3 * dim,), "readout")
    yield from linear("attention.out_proj", dim, dim, "readout")
    yield from norm("layernorm", dim, "readout")
    yield from linear("mlp.fc1", inner, dim, "readout")
    yield from linear("mlp.fc2", dim, inner, "readout")
