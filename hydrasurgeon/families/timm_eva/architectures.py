"""timm's Eva class as a table, written by tools/timm_eva_architectures.py, without torch or timm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from hydrasurgeon.families.timm_vit.architectures import (
    TOWER,
    Architecture,
    attention_pool,
    read_table,
    tokens,
)
from hydrasurgeon.families.weights import GATED, OUT, PACKED, QUERIES, Weight, linear, norm, stack


@cache
def table() -> dict[str, Architecture]:
    return read_table("timm_eva", "timm_eva_architectures.json")


def weights(a: Mapping[str, Any]) -> Iterator[Weight]:
    """All tensors of an Eva with these arguments."""
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
            yield from linear(f"attn.{name}", dim, dim, "attention", bias=shifted, heads=QUERIES)
    elif a["attn_type"] == "rope" or not biased:
        yield from linear("attn.qkv", 3 * dim, dim, "attention", bias=biased, heads=PACKED)
    else:
        yield Weight("attn.q_bias", (dim,), "attention", heads=QUERIES)
        yield Weight("attn.v_bias", (dim,), "attention", heads=QUERIES)
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
    rows, columns = (None, None) if a["scale_mlp"] else (QUERIES, OUT)
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
