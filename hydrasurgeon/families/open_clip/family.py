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
from typing import TYPE_CHECKING

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.base import WEIGHTS, Bare, Usage
from hydrasurgeon.families.open_clip.configs import (
    SUPPORTED,
    Config,
    Preprocess,
    Text,
    Vision,
    config_of,
    stock_config,
)
from hydrasurgeon.families.prompts import NamedClasses, check_prompts
from hydrasurgeon.families.settings import Images, known, pair, parse, patches
from hydrasurgeon.families.weights import OUT, PACKED, QUERIES, Weight, linear, norm, stack
from hydrasurgeon.files.decided import BESIDE
from hydrasurgeon.files.manifest import Manifest, Model, Tower

if TYPE_CHECKING:
    from torch import Tensor

# What OpenCLIP's own configurations of ViTs are called; only shown, never looked up.
NAME = re.compile(r"CLIP|ViT-[A-Za-z0-9._-]{1,60}")
PREFIX = {"vision": "visual.transformer", "text": "transformer"}
"""Where each tower's layers lie in the module."""
COLOURS = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
"""OpenAI's mean and deviation: what OpenCLIP takes unless a config names others."""
CROP = {"shortest": "center", "squash": "squash"}
"""OpenCLIP's word for how images become square, and timm's."""
USAGE = """
import hydrasurgeon as hs

model = hs.load("DIR")  # open_clip.create_model("local-dir:DIR") too, if no head is gone
"""
"""How a model card says to run it with OpenCLIP."""


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

    def identify(self, bare: Bare) -> tuple[Model, str | None]:
        config, where = self.required_config(bare), f"{bare.where}: open_clip_config.json"
        read = stock_config(config.get("model_cfg"), where)
        at = f"{where}: preprocess_cfg"
        said = parse(Preprocess, known(Preprocess, config.get("preprocess_cfg") or {}), at)
        images = {  # in the words of timm's data configs
            "input_size": [3, *pair(read.vision_cfg.image_size)],
            "interpolation": said.interpolation or "bicubic",
            "crop_pct": 1.0,
            "crop_mode": CROP[said.resize_mode or "shortest"],
            "mean": said.mean or COLOURS["mean"],
            "std": said.std or COLOURS["std"],
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


def _name(config: Config) -> str:
    """What OpenCLIP calls this config; read from its files, without importing it."""
    spec = find_spec("open_clip")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder, "model_configs").glob("ViT-*.json")):
            if json.loads(path.read_text(encoding="utf-8")) == config.library():
                return path.stem
    return "CLIP"


def weights(config: Config) -> Iterator[Weight]:
    """All weights of the unpruned model."""
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
    yield from linear("mlp.c_fc", hidden, width, "mlp", heads=QUERIES)
    yield from linear("mlp.c_proj", width, hidden, "mlp", heads=OUT)
    if tower.ls_init_value is not None:
        yield Weight("ls_1.gamma", (width,), "scale")
        yield Weight("ls_2.gamma", (width,), "scale")
