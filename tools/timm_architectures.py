"""Write hydrasurgeon/families/timm_vit/timm_architectures.json from the installed timm: run when timm gains ViTs.

Bare checkpoints are recognised against this table, so that `inspect` and `prune` need neither timm nor torch.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from timm.data.config import resolve_data_config
from timm.layers.attention import Attention
from timm.layers.patch_embed import PatchEmbed
from timm.models import get_pretrained_cfg
from timm.models import vision_transformer as vit

from hydrasurgeon.families.timm_vit.architectures import weights
from hydrasurgeon.families.weights import shapes_of

TARGET = (
    Path(__file__).parents[1] / "hydrasurgeon" / "families" / "timm_vit" / "timm_architectures.json"
)
SIGNATURE = inspect.signature(vit.VisionTransformer.__init__).parameters
DEFAULTS = {
    name: p.default for name, p in SIGNATURE.items() if p.default is not inspect.Parameter.empty
}
# Arguments that neither shapes nor the inference result depend on.
IRRELEVANT = {
    "drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
    "drop_path_rate",
    "weight_init",
    "fix_init",
    "device",
    "dtype",
    "dynamic_img_size",
    "dynamic_img_pad",
}
# What the constructor takes where None is its default.
CLASSES = {"norm_layer": "LayerNorm", "act_layer": "GELU", "class": "VisionTransformer"}
PREPROCESS = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")


def main() -> None:
    defaults = {k: plain(v) for k, v in DEFAULTS.items() if k not in IRRELEVANT} | CLASSES
    captured: dict[str, Any] = {}
    original = vit.VisionTransformer.__init__

    def capture(self: Any, *args: Any, **kwargs: Any) -> None:
        captured.update(kwargs)
        original(self, *args, **kwargs)

    patch.object(vit.VisionTransformer, "__init__", capture).start()
    rows = []
    for name in sorted(
        set(timm.list_models(module="vision_transformer") + timm.list_models(module="deit"))
    ):
        captured.clear()
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
        if not isinstance(model, vit.VisionTransformer):
            continue
        args = {
            k: plain(v)
            for k, v in captured.items()
            if k not in IRRELEVANT and k in DEFAULTS and v is not DEFAULTS[k]
        }
        if type(model) is not vit.VisionTransformer:
            args["class"] = type(model).__name__
        why = obstacle(model)
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        if why is None and shapes_of(weights({**defaults, **args})) != shapes:
            why = "its tensors are laid out in a way that is not known here"
        pretrained = get_pretrained_cfg(name)
        cfg = resolve_data_config(pretrained.to_dict()) if pretrained else {}
        rows.append(
            {
                "name": name,
                "args": args,
                "preprocess": {k: plain(cfg[k]) for k in PREPROCESS if k in cfg},
            }
            | ({"why": why} if why else {})
        )
    write(TARGET, defaults, rows)


def write(target: Path, defaults: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write a table of architectures, one a line, with the arguments that differ from the class's
    defaults.
    """
    head = f'{{"timm": "{timm.__version__}",\n"defaults": {json.dumps(defaults, separators=(",", ":"))},\n'
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    target.write_text(f'{head}"architectures": [\n{lines}\n]}}\n', encoding="utf-8")


def plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "func"):  # functools.partial
        inner = ",".join(f"{k}={plain(v)}" for k, v in sorted(value.keywords.items()))
        return f"{plain(value.func)}({inner})"
    return getattr(value, "__name__", str(value))


def obstacle(model: vit.VisionTransformer) -> str | None:
    """Return why heads cannot be cut out of this model, or None."""
    if not isinstance(model.patch_embed, PatchEmbed):
        return f"its patch embedding is a {type(model.patch_embed).__name__}"
    for block in model.blocks:
        if type(block) is not vit.Block:
            return f"its layers are {type(block).__name__}, not standard blocks"
        if type(block.attn) is not Attention:
            return f"its attention is {type(block.attn).__name__}"
        if not isinstance(block.attn.norm, torch.nn.Identity):
            return "its attention normalises over all heads at once"
        if block.attn.gate is not None:
            return "its attention output is gated"
    return None


if __name__ == "__main__":
    main()
