"""Write hydrasurgeon/families/timm_eva/timm_eva_architectures.json from the installed timm: run when timm gains rotary
ViTs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from timm.data.config import resolve_data_config
from timm.layers.attention import AttentionRope
from timm.models import eva, get_pretrained_cfg
from timm_architectures import IRRELEVANT, PREPROCESS, plain, write

from hydrasurgeon.families.timm_eva.family import weights
from hydrasurgeon.families.weights import shapes_of

TARGET = (
    Path(__file__).parents[1]
    / "hydrasurgeon"
    / "families"
    / "timm_eva"
    / "timm_eva_architectures.json"
)
SIGNATURE = inspect.signature(eva.Eva.__init__).parameters
DEFAULTS = {name: plain(p.default) for name, p in SIGNATURE.items() if p.default is not p.empty}


def main() -> None:
    defaults = {key: value for key, value in DEFAULTS.items() if key not in IRRELEVANT}
    captured: dict[str, Any] = {}
    original = eva.Eva.__init__

    def capture(self: Any, *args: Any, **kwargs: Any) -> None:
        captured.update(kwargs)
        original(self, *args, **kwargs)

    patch.object(eva.Eva, "__init__", capture).start()
    rows = []
    for name in sorted(timm.list_models(module="eva")):
        captured.clear()
        with torch.device("meta"):
            model: Any = timm.create_model(name, pretrained=False)
        args = {
            key: plain(value)
            for key, value in captured.items()
            if key not in IRRELEVANT and key in DEFAULTS and plain(value) != DEFAULTS[key]
        }
        why = obstacle(model, args)
        shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
        if why is None and shapes_of(weights({**defaults, **args})) != shapes:
            why = "its tensors are laid out in a way that is not known here"
        pretrained = get_pretrained_cfg(name)
        cfg = resolve_data_config(pretrained.to_dict()) if pretrained else {}
        row = {
            "name": name,
            "args": args,
            "preprocess": {k: plain(cfg[k]) for k in PREPROCESS if k in cfg},
        }
        rows.append(row | ({"why": why} if why else {}))
    write(TARGET, defaults, rows)


def obstacle(model: eva.Eva, args: dict[str, Any]) -> str | None:
    """Return why heads cannot be cut out of this model, or None."""
    if args.get("rope_type", "cat") == "mixed":
        return "it has rotations with weights for each head of each layer"
    if args.get("rope_type", "cat") not in ("cat", "dinov3"):
        return f"its rotary positions are of type {args['rope_type']}"
    if args.get("use_post_norm"):
        return "it normalises what each branch adds, all of its heads together"
    for block in model.blocks:
        attn: Any = block.attn
        if type(attn) not in (eva.EvaAttention, AttentionRope):
            return f"its attention is {type(attn).__name__}"
        if getattr(attn, "num_kv_groups", 1) > 1:
            return "several of its heads share keys and values"
        if not isinstance(attn.norm, torch.nn.Identity):
            return "its attention normalises over all heads at once"
        if attn.gate is not None:
            return "its attention output is gated"
    return None


if __name__ == "__main__":
    main()
