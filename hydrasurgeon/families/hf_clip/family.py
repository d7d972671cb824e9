"""transformers' CLIP and SigLIP with a classifier of images: transformers' files, towers of their
own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.hf_encoder.architectures import (
    Activation,
    EncoderConfig,
    Epsilon,
    Facts,
    ImageEncoder,
    Kind,
)
from hydrasurgeon.families.hf_encoder.companions import PREPROCESSOR
from hydrasurgeon.families.hf_encoder.family import HFVariant, stock
from hydrasurgeon.families.settings import Chance, Edge, patches
from hydrasurgeon.families.weights import OUT, ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.manifest import Model

ALONE = "_vision_model"
"""Ending of the `model_type` of an image tower with a config of its own."""


class ImageTowerConfig(ImageEncoder):
    """The image tower's part of config.json, the only part that an image classifier reads."""

    image_size: Edge = 224
    patch_size: Edge = 32
    attention_probs_dropout_prob: Chance = Field(0.0, alias="attention_dropout")

    def library(self) -> dict[str, Any]:
        tower = self.written()
        return {"model_type": tower.pop("model_type"), "vision_config": tower}


class ClipConfig(ImageTowerConfig):
    model_type: Literal["clip"]
    hidden_act: Activation = "quick_gelu"
    layer_norm_eps: Epsilon = 1e-5


class SiglipConfig(ImageTowerConfig):
    model_type: Literal["siglip"]
    patch_size: Edge = 16
    hidden_act: Activation = "gelu_pytorch_tanh"
    layer_norm_eps: Epsilon = 1e-6

    def library(self) -> dict[str, Any]:
        settings = super().library()
        # The classifier takes the mean of the patches: an attention pool would run for nothing.
        return {
            **settings,
            "vision_config": {**settings["vision_config"], "vision_use_head": False},
        }


CLIP = Kind(
    ClipConfig, "vision_model", "vision", ("CLIPForImageClassification",), layer="encoder.layers.{}"
)
"""Names of its modules."""
KINDS: dict[str, Kind] = {
    "clip": CLIP,
    "siglip": Kind(
        SiglipConfig, CLIP.prefix, CLIP.tower, ("SiglipForImageClassification",), layer=CLIP.layer
    ),
}
"""SigLIP 2 is SigLIP, but for its models that read images of any shape."""


def flat(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a config.json with the image tower's sizes at the top level."""
    kind = str(config.get("model_type"))
    # Where older files have both, the library takes this one.
    tower = (
        config
        if kind.endswith(ALONE)
        else config.get("vision_config_dict") or config.get("vision_config") or {}
    )
    if not isinstance(tower, Mapping):
        raise CheckpointError(f"{where}: config.json: vision_config: is not a JSON object")
    facts = Facts.names()
    outside = {key: value for key, value in config.items() if key in (*facts, "auto_map")}
    return {
        **{key: value for key, value in tower.items() if key not in facts},
        **outside,
        "model_type": kind.removesuffix(ALONE),
    }


def weights(config: ImageTowerConfig, classes: int) -> Iterator[Weight]:
    """Yield all tensors of an unpruned classifier; without classes there is no classifier."""
    dim = config.hidden_size
    for weight in _embedding(config):
        yield weight.within(CLIP.prefix, CLIP.tower)
    place, layers = f"{CLIP.prefix}.{CLIP.layer}", config.num_hidden_layers
    yield from stack(place, CLIP.tower, layers, layer_weights(config))
    # CLIP's classifier does not read it, but files have it.
    yield from norm(f"{CLIP.prefix}.post_layernorm", dim, "readout")
    if classes:
        yield from linear("classifier", classes, dim, "classifier")


def _embedding(config: ImageTowerConfig) -> Iterator[Weight]:
    dim, clip = config.hidden_size, isinstance(config, ClipConfig)
    projection, patch = "embeddings.patch_embedding", config.patch_size
    yield Weight(f"{projection}.weight", (dim, config.num_channels, patch, patch), "embedding")
    if clip:
        yield Weight("embeddings.class_embedding", (dim,), "embedding")
        yield from norm("pre_layrnorm", dim, "embedding")  # the library's own spelling
    else:
        yield Weight(f"{projection}.bias", (dim,), "embedding")
    tokens = patches(config.image_size, patch) + clip
    yield Weight("embeddings.position_embedding.weight", (tokens, dim), "embedding")


def layer_weights(config: EncoderConfig) -> Iterator[Weight]:
    dim, inner = config.hidden_size, config.intermediate_size
    yield from norm("layer_norm1", dim)
    for name in ("q_proj", "k_proj", "v_proj"):
        yield from linear(f"self_attn.{name}", dim, dim, "attention", heads=ROWS)
    yield from linear("self_attn.out_proj", dim, dim, "output", heads=OUT)
    yield from norm("layer_norm2", dim)
    yield from linear("mlp.fc1", inner, dim, "mlp", heads=ROWS)
    yield from linear("mlp.fc2", dim, inner, "mlp", heads=OUT)


def _pictures(present: Collection[str]) -> tuple[str, ...]:
    """Return the companions of an image classifier; a tokenizer belongs to the text tower."""
    return tuple(name for name in (PREPROCESSOR,) if name in present)


class HFClip(HFVariant):
    companions = staticmethod(_pictures)
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.hf_clip.modules"

    def recognises(self, bare: BareCheckpoint) -> bool:
        kind = None if bare.config is None else stock(bare.config)["model_type"]
        return isinstance(kind, str) and kind.removesuffix(ALONE) in KINDS

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        if any(bare.arch_name in kind.classes for kind in KINDS.values()):
            bare = replace(bare, arch=None)  # of a file with both towers, this one
        return super().identify(replace(bare, config=flat(self.required_config(bare), bare.where)))

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(flat(config, where), where)
