"""OpenCLIP's models of a ViT and a text transformer: two towers, and a zero-shot classifier between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import CheckpointError, ManifestError, SurgeryError, UsageError
from hydrasurgeon.families.base import Identified, Usage
from hydrasurgeon.families.open_clip.zero_shot import zero_shot
from hydrasurgeon.files.manifest import Manifest, Model, Tower
from hydrasurgeon.slicing import HeadTensor

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hydrasurgeon.files.tensors import TensorInfo
    from hydrasurgeon.heads import Kept

__all__ = ["OpenCLIP"]

SUPPORTED = (
    "Supported: a ViT with class token (ViT-B-32, ViT-L-14, …) and OpenCLIP's own text transformer."
)
# What OpenCLIP's own configurations of ViTs are called; only shown, never looked up.
NAME = re.compile(r"CLIP|ViT-[A-Za-z0-9._-]{1,60}")
LAYER = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.")
PREFIX = {"vision": "visual.transformer", "text": "transformer"}
PARTS = ("embed_dim", "vision_cfg", "text_cfg")
OPTIONS = ("quick_gelu", "init_logit_scale", "init_logit_bias", "nonscalar_logit_scale")
# What a tower's config may not ask for, and how to say it.
FOREIGN = {
    "timm_model_name": "a timm model as its image tower",
    "hf_model_name": "a transformers model as its text tower",
    "hf_tokenizer_name": "a tokenizer that is not OpenCLIP's own",
    "attentional_pool": "attentional pooling",
    "embed_cls": "a class token in its text tower (CoCa)",
    "output_tokens": "token outputs (CoCa)",
    **dict.fromkeys(
        ("block_type", "qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"),
        "a custom attention block",
    ),
}  # fmt: skip
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
        given = (config or {}).get("model_cfg")
        if not isinstance(given, Mapping) or any(part not in given for part in PARTS):
            raise CheckpointError(
                f"{where}: open_clip_config.json has no model_cfg with {', '.join(PARTS)}"
            )
        _check(given, where)
        known = {key: given[key] for key in (*PARTS, *OPTIONS) if key in given}
        model = Model(
            family="open_clip",
            arch=_name(known),
            config=known,
            num_classes=0,
            preprocess=_preprocess(known, (config or {}).get("preprocess_cfg") or {}, where),
        )
        return Identified(model, _towers(known, where))

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        if not NAME.fullmatch(model.arch):
            raise ManifestError(f"{where}: OpenCLIP calls no model {model.arch!r}", hint=SUPPORTED)

    def companions(self, present: Collection[str]) -> tuple[str, ...]:
        return ()

    def check_files(self, model: Model, files: Mapping[str, str]) -> str | None:
        return None

    def names(self, model: Model, stored: Iterable[str]) -> Mapping[str, str]:
        ours = tensor_shapes(model.config)
        return {name: name for name in stored if name in ours}

    def head_tensors(self, model: Model, tower: str, layer: int) -> tuple[HeadTensor, ...]:
        attn = f"{PREFIX[tower]}.resblocks.{layer}.attn"
        return (
            HeadTensor(f"{attn}.in_proj_weight", 0, 3),
            HeadTensor(f"{attn}.in_proj_bias", 0, 3),
            HeadTensor(f"{attn}.out_proj.weight", 1),
        )

    def expected(self, model: Model, towers: Mapping[str, Tower]) -> Mapping[str, tuple[int, ...]]:
        return tensor_shapes(model.config)

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
        told = model.preprocess
        config = {
            "model_cfg": {key: model.config[key] for key in (*PARTS, *OPTIONS) if key in model.config},
            "preprocess_cfg": {
                "mean": told["mean"],
                "std": told["std"],
                "interpolation": told["interpolation"],
                "resize_mode": next(name for name, mode in CROP.items() if mode == told["crop_mode"]),
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


def _check(config: Mapping[str, Any], where: str) -> None:
    """SurgeryError for models whose heads lie elsewhere."""
    found = None
    if "multimodal_cfg" in config:
        found = "a text decoder (CoCa)"
    elif not isinstance(config["vision_cfg"].get("layers", 12), int):
        found = "a ResNet as its image tower"
    for part in PARTS[1:]:
        for key, what in FOREIGN.items():
            if config[part].get(key) not in (None, False, "default"):
                found = found or what
    if found is None and config.get("custom_text"):
        found = "a text tower of another layout (custom_text)"
    if found is not None:
        raise SurgeryError(f"{where}: has {found}, which is not supported", hint=SUPPORTED)


def _name(config: Mapping[str, Any]) -> str:
    """What OpenCLIP calls this config; read from its files, without importing it."""
    spec = find_spec("open_clip")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder, "model_configs").glob("ViT-*.json")):
            if json.loads(path.read_text(encoding="utf-8")) == config:
                return path.stem
    return "CLIP"


def _vision(config: Mapping[str, Any]) -> dict[str, Any]:
    """The image tower's settings, with OpenCLIP's defaults for what the file leaves out."""
    defaults = {"layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16, "image_size": 224}  # fmt: skip
    return {**defaults, **config["vision_cfg"]}


def _text(config: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12, "mlp_ratio": 4.0}  # fmt: skip
    return {**defaults, **config["text_cfg"]}


def _towers(config: Mapping[str, Any], where: str) -> dict[str, Tower]:
    vision, text = _vision(config), _text(config)
    # Inputs run through the first tower; the second one makes the classifier.
    sizes = {
        "vision": (vision["layers"], vision["width"] // vision["head_width"], vision["width"]),
        "text": (text["layers"], text["heads"], text["width"]),
    }
    for tower, (_, heads, dim) in sizes.items():
        if dim % heads:
            raise CheckpointError(f"{where}: {tower} width {dim} is not a multiple of {heads} heads")  # fmt: skip
    return {
        tower: Tower(layers=layers, heads=heads, head_dim=dim // heads, dim=dim)
        for tower, (layers, heads, dim) in sizes.items()
    }


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _preprocess(config: Mapping[str, Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """preprocess_cfg in the words of timm's data configs."""
    mode = given.get("resize_mode", "shortest")
    if mode not in CROP:
        raise CheckpointError(
            f"{where}: resize_mode {mode!r} is not supported", hint=f"Known: {', '.join(CROP)}."
        )
    return {
        "input_size": [3, *_pair(_vision(config)["image_size"])],
        "interpolation": given.get("interpolation", "bicubic"),
        "crop_pct": 1.0,
        "crop_mode": CROP[mode],
        "mean": list(given.get("mean", COLOURS["mean"])),
        "std": list(given.get("std", COLOURS["std"])),
    }


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights of the unpruned model."""
    vision, text, embed = _vision(config), _text(config), int(config["embed_dim"])
    width, words = int(vision["width"]), int(text["width"])
    (height, across), (patch_h, patch_w) = _pair(vision["image_size"]), _pair(vision["patch_size"])
    tokens = (height // patch_h) * (across // patch_w) + 1
    scalar = (1,) if config.get("nonscalar_logit_scale") else ()
    shapes: dict[str, tuple[int, ...]] = {
        "positional_embedding": (int(text["context_length"]), words),
        "logit_scale": scalar,
        "visual.class_embedding": (width,),
        "visual.positional_embedding": (tokens, width),
        "visual.proj": (width, embed),
        "visual.conv1.weight": (width, 3, patch_h, patch_w),
        "token_embedding.weight": (int(text["vocab_size"]), words),
        **_norm("visual.ln_post", width),
        **_norm("ln_final", words),
    }
    if config.get("init_logit_bias") is not None:
        shapes["logit_bias"] = scalar
    if not vision.get("no_ln_pre"):
        shapes |= _norm("visual.ln_pre", width)
    if text.get("proj_type", "linear") != "none":
        shapes |= (
            {"text_projection.weight": (embed, words), "text_projection.bias": (embed,)}
            if text.get("proj_bias")
            else {"text_projection": (words, embed)}
        )
    for prefix, tower in ((PREFIX["vision"], vision), (PREFIX["text"], text)):
        for layer in range(int(tower["layers"])):
            shapes |= _block(f"{prefix}.resblocks.{layer}", tower)
    return shapes


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _block(place: str, tower: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    width = int(tower["width"])
    hidden = int(width * tower["mlp_ratio"])
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
    if tower.get("ls_init_value") is not None:
        shapes |= {f"{place}.ls_1.gamma": (width,), f"{place}.ls_2.gamma": (width,)}
    return shapes
