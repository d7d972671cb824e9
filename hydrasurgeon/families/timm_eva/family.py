"""timm's rotary vision transformers: DINOv3, EVA, EVA02, and others that timm builds of its Eva
class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import CheckpointError, HydraError, ManifestError
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.settings import Count, Pair, Positive
from hydrasurgeon.families.timm_vit.architectures import (
    RELATIVE_TABLE,
    TOWER,
    Architecture,
    Match,
    Shapes,
    Sizes,
    attention_pool,
    only,
    read_table,
    tokens,
)
from hydrasurgeon.families.timm_vit.family import TimmViT
from hydrasurgeon.families.weights import GATED, OUT, PACKED, ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.manifest import Model, Tower

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.heads import Kept

MARKS = ("blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "blocks.0.gamma_1")
"""Tensors that an Eva has and a VisionTransformer has not."""


class EvaArguments(Sizes):
    """Those that VisionTransformer has too, and what Eva has besides."""

    qkv_fused: bool | None = None
    swiglu_mlp: bool | None = None
    swiglu_align_to: Count | None = None
    scale_mlp: bool | None = None
    scale_attn_inner: Literal[False] | None = None
    num_reg_tokens: Count | None = None
    use_abs_pos_emb: bool | None = None
    use_rot_pos_emb: bool | None = None
    use_fc_norm: bool | None = None
    ref_feat_shape: Pair | None = None
    rope_temperature: Positive | None = None
    rope_rotate_half: bool | None = None


@cache
def table() -> dict[str, Architecture]:
    return read_table("timm_eva", "timm_eva_architectures.json")


def weights(a: Mapping[str, Any]) -> Iterator[Weight]:
    """Yield all tensors of an Eva with these arguments."""
    dim, bias = a["embed_dim"], _biased(a)
    fc_norm = a["global_pool"] == "avg" if a["use_fc_norm"] is None else a["use_fc_norm"]
    last = a["use_post_transformer_norm"]
    yield from (Weight(w.name, w.shape, w.part, TOWER) for w in _embedding(a))
    yield from stack("blocks.{}", TOWER, a["depth"], _block(a))
    if not fc_norm if last is None else last:
        yield from norm("norm", dim, "readout", bias=bias)
    if a["global_pool"] == "map":
        hidden = int(dim * (a["attn_pool_mlp_ratio"] or a["mlp_ratio"]))
        yield from attention_pool(dim, hidden, bias=bias)
    if fc_norm:
        yield from norm("fc_norm", dim, "readout", bias=bias)
    if a["num_classes"]:
        yield from linear("head", a["num_classes"], dim, "classifier")


def _embedding(a: Mapping[str, Any]) -> Iterator[Weight]:
    before = a["use_pre_transformer_norm"]
    yield from tokens(
        a, a["num_reg_tokens"], distilled=False, learned=a["use_abs_pos_emb"], bias=not before
    )
    if before:
        yield from norm("norm_pre", a["embed_dim"], "embedding", bias=_biased(a))


def _block(a: Mapping[str, Any]) -> Iterator[Weight]:
    dim, biased = a["embed_dim"], a["qkv_bias"]
    scaled = a["init_values"] is not None and not a["use_post_norm"]
    if scaled:
        yield Weight("gamma_1", (dim,), "scale")
        if not a["attn_only_layer_scale"]:
            yield Weight("gamma_2", (dim,), "scale")
    yield from norm("norm1", dim, bias=_biased(a))
    if not a["qkv_fused"]:
        for name in ("q_proj", "k_proj", "v_proj"):
            # EVA's keys have no bias.
            shifted = biased and (name != "k_proj" or a["attn_type"] == "rope")
            yield from linear(f"attn.{name}", dim, dim, "attention", bias=shifted, heads=ROWS)
    elif a["attn_type"] == "rope" or not biased:
        yield from linear("attn.qkv", 3 * dim, dim, "attention", bias=biased, heads=PACKED)
    else:
        yield Weight("attn.q_bias", (dim,), "attention", heads=ROWS)
        yield Weight("attn.v_bias", (dim,), "attention", heads=ROWS)
        yield from linear("attn.qkv", 3 * dim, dim, "attention", bias=False, heads=PACKED)
    if a["qk_norm"]:
        yield from norm("attn.q_norm", dim // a["num_heads"], "attention", bias=_biased(a))
        yield from norm("attn.k_norm", dim // a["num_heads"], "attention", bias=_biased(a))
    yield from linear("attn.proj", dim, dim, "output", heads=OUT)
    yield from norm("norm2", dim, bias=_biased(a))
    yield from _mlp(a, int(dim * a["mlp_ratio"]))


def _mlp(a: Mapping[str, Any], hidden: int) -> Iterator[Weight]:
    dim = a["embed_dim"]
    # A norm over all neurons would not be the same over some.
    rows, columns = (None, None) if a["scale_mlp"] else (ROWS, OUT)
    aligned = a["swiglu_align_to"] and not a["use_post_norm"]
    if a["swiglu_mlp"] and (a["scale_mlp"] or aligned):
        if a["swiglu_align_to"]:
            hidden += -hidden % a["swiglu_align_to"]
        yield from linear("mlp.fc1_g", hidden, dim, "mlp", heads=rows)
        yield from linear("mlp.fc1_x", hidden, dim, "mlp", heads=rows)
    elif a["swiglu_mlp"]:
        yield from linear("mlp.fc1", 2 * hidden, dim, "mlp", heads=rows and GATED)
    else:
        yield from linear("mlp.fc1", hidden, dim, "mlp", heads=rows)
    if a["scale_mlp"]:
        yield from norm("mlp.norm", hidden, "mlp", bias=_biased(a))
    yield from linear("mlp.fc2", dim, hidden, "mlp", heads=columns)


def _biased(a: Mapping[str, Any]) -> bool:
    return "rms" not in str(a["norm_layer"]).lower()


class TimmEva(TimmViT):
    example_id = "timm:vit_small_patch16_dinov3.lvd1689m"
    arguments: ClassVar[type[Sizes]] = EvaArguments
    table = staticmethod(table)
    listed = staticmethod(weights)

    def recognises(self, bare: BareCheckpoint) -> bool:
        config = bare.config or {}
        name = bare.arch_name.partition(",")[0] if bare.arch_name else config.get("architecture")
        if name is not None:
            return self.registered(str(name)) is not None
        marked = any(mark in bare.tensors for mark in MARKS)
        tables = any(RELATIVE_TABLE in name for name in bare.tensors)  # BEiT
        return "patch_embed.proj.weight" in bare.tensors and marked and not tables

    def identify(self, bare: BareCheckpoint) -> tuple[Model, str | None]:
        config = dict(bare.config or {})
        args, pretrained = config.get("model_args") or {}, config.get("pretrained_cfg") or {}
        size = pretrained.get("input_size") if isinstance(pretrained, Mapping) else None
        if isinstance(args, Mapping) and "img_size" not in args and isinstance(size, list):
            # Rotations fit images of any size: they are made for those that the data config names.
            bare = replace(bare, config={**config, "model_args": {**args, "img_size": size[1:]}})
        model, note = super().identify(bare)
        self._check_divisors(model, bare.where, CheckpointError)
        return model, note

    def check(self, model: Model, towers: Mapping[str, Tower], where: str) -> None:
        super().check(model, towers, where)
        self._check_divisors(model, where, ManifestError)

    def _check_divisors(self, model: Model, where: str, error: type[HydraError]) -> None:
        """Refuse sizes that cannot be rotated or pooled.

        Rotations turn pairs of numbers in both directions; an attention pool has heads of its own.
        """
        args = self._args(model)
        dim, heads = args["embed_dim"], args["num_heads"]
        pools, why = args.get("attn_pool_num_heads") or heads, None
        if args["use_rot_pos_emb"] and dim // heads % 4:
            why = f"heads of {dim // heads} numbers cannot be rotated, which takes fours"
        elif args["global_pool"] == "map" and dim % pools:
            why = f"embed_dim {dim} is not a multiple of the pool's {pools} heads"
        if why is not None:
            raise error(f"{where}: {why}")

    def covers(self, model: Model) -> bool:
        return self.registered(model.arch) is not None

    @staticmethod
    def infer(shapes: Shapes, where: str = "the file") -> Match:
        overrides = {"num_classes": next(iter(shapes.get("head.weight", ())), 0)}
        fit = ((one, overrides) for one in table().values() if one.prunable)
        message = f"{where}: no registered rotary vision transformer of timm has these sizes"
        unknown = CheckpointError(message, hint="Say which: --arch timm:NAME[,key=value…].")
        return only(fit, shapes, where, unknown, weights)

    def build(self, model: Model, kept: Kept, *, fresh: bool = False) -> nn.Module:
        from hydrasurgeon.families.timm_eva.modules import build

        name = self.named(model.arch, "the manifest").name
        size = {"img_size": tuple(model.preprocess["input_size"][1:])}
        args = {**self._overrides(model), **size}
        return build(name, args, model.num_classes, kept[TOWER], fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.timm_eva.modules import anatomy

        return anatomy(module)
