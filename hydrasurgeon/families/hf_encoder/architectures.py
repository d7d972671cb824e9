"""transformers' encoders as a table: tensor names on disk, and their shapes from config.json, without torch.

Names are those that `save_pretrained` of the classification model writes. Version 5 renamed modules in
memory (`vit.layers.0.attention.q_proj`), but reads and writes the old names; files know only those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydrasurgeon.files.manifest import Model

__all__ = ["KINDS", "Kind", "canonical", "class_name", "has_pooler", "sizes", "tensor_shapes"]

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Kind:
    """What one model type is called on disk; `{}` stands for the layer."""

    prefix: str
    tower: str
    classes: tuple[str, ...]
    """Classification models of transformers, the usual one first."""
    layer: str
    q: str
    k: str
    v: str
    out: str
    mlp: tuple[str, str]
    norms: tuple[str, str]
    classifier: tuple[tuple[str, str], ...]
    """Linear layers of the classifier with their output: `dim` or `classes`."""
    prenorm: bool = False
    pooler: bool = False
    keys: Mapping[str, str] | None = None
    """Where this type's config.json uses its own words."""


def _bert(prefix: str, name: str, *, deep: bool) -> Kind:
    classifier = (
        (("classifier.dense", "dim"), ("classifier.out_proj", "classes"))
        if deep
        else (("classifier", "classes"),)
    )
    return Kind(
        prefix, "text", (f"{name}ForSequenceClassification",), "encoder.layer.{}",
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        ("intermediate.dense", "output.dense"), ("attention.output.LayerNorm", "output.LayerNorm"),
        classifier, pooler=not deep,
    )  # fmt: skip


def _vit(prefix: str, *classes: str) -> Kind:
    return Kind(
        prefix, "vision", classes, "encoder.layer.{}",
        "attention.attention.query", "attention.attention.key", "attention.attention.value",
        "attention.output.dense", ("intermediate.dense", "output.dense"),
        ("layernorm_before", "layernorm_after"), (("classifier", "classes"),), prenorm=True,
    )  # fmt: skip


KINDS: dict[str, Kind] = {
    "bert": _bert("bert", "Bert", deep=False),
    "roberta": _bert("roberta", "Roberta", deep=True),
    "electra": _bert("electra", "Electra", deep=True),
    "distilbert": Kind(
        "distilbert", "text", ("DistilBertForSequenceClassification",), "transformer.layer.{}",
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        ("ffn.lin1", "ffn.lin2"), ("sa_layer_norm", "output_layer_norm"),
        (("pre_classifier", "dim"), ("classifier", "classes")),
        keys={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
              "intermediate_size": "hidden_dim"},
    ),
    "mpnet": Kind(
        "mpnet", "text", ("MPNetForSequenceClassification",), "encoder.layer.{}",
        "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o",
        ("intermediate.dense", "output.dense"), ("attention.LayerNorm", "output.LayerNorm"),
        (("classifier.dense", "dim"), ("classifier.out_proj", "classes")),
    ),
    "vit": _vit("vit", "ViTForImageClassification"),
    "deit": _vit("deit", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    "dinov2": Kind(
        "dinov2", "vision", ("Dinov2ForImageClassification",), "encoder.layer.{}",
        "attention.attention.query", "attention.attention.key", "attention.attention.value",
        "attention.output.dense", ("mlp.fc1", "mlp.fc2"), ("norm1", "norm2"),
        (("classifier", "classes"),), prenorm=True,
    ),
}  # fmt: skip

# What transformers assumes where config.json is silent.
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 512, "type_vocab_size": 2, "vocab_size": 30522, "image_size": 224,
    "patch_size": 16, "num_channels": 3, "mlp_ratio": 4, "qkv_bias": True, "use_mask_token": True,
    "relative_attention_num_buckets": 32,
}  # fmt: skip
OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "distilbert": {"n_layers": 6},
    "electra": {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128},
    "roberta": {"vocab_size": 50265},
    "mpnet": {"vocab_size": 30527},
    "dinov2": {"patch_size": 14},
}  # fmt: skip


def sizes(config: Mapping[str, Any], key: str) -> Any:
    """One number of config.json under its common name, or transformers' default."""
    kind = str(config["model_type"])
    own = (KINDS[kind].keys or {}).get(key, key)
    if config.get(own) is not None:
        return config[own]
    return OWN_DEFAULTS.get(kind, {}).get(own, DEFAULTS.get(key))


def class_name(model: Model) -> str:
    """The table's own spelling of a model's class: the only one that may reach code or an attribute's name."""
    classes = KINDS[model.config["model_type"]].classes
    return classes[classes.index(model.arch)]


def has_pooler(config: Mapping[str, Any]) -> bool:
    return KINDS[str(config["model_type"])].pooler and config.get("add_pooling_layer", True)


def canonical(kind: Kind, stored: Iterable[str]) -> dict[str, str]:
    """Name as `save_pretrained` of the classifier writes it → name in this file.

    Files of the bare encoder lack the prefix; old BERT files say gamma and beta.
    """
    names = list(stored)
    dot = f"{kind.prefix}."
    bare = not any(name.startswith(dot) for name in names)
    own = tuple(f"{name}." for name, _ in kind.classifier)
    found = {}
    for name in names:
        plain = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        plain = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", plain)
        found[f"{dot}{plain}" if bare and not plain.startswith(own) else plain] = name
    return found


def tensor_shapes(config: Mapping[str, Any], arch: str, classes: int) -> Shapes:
    """All tensors of an unpruned classifier; without a classifier where there are no classes."""
    kind = KINDS[str(config["model_type"])]
    shapes: Shapes = {}
    for name, shape in _embeddings(config):
        shapes[f"{kind.prefix}.{name}"] = shape
    for layer in range(sizes(config, "num_hidden_layers")):
        place = f"{kind.prefix}.{kind.layer.format(layer)}"
        for name, shape in _layer(config, kind):
            shapes[f"{place}.{name}"] = shape
    dim = sizes(config, "hidden_size")
    if kind.tower == "vision":
        shapes |= dict(_norm(f"{kind.prefix}.layernorm", dim))
    if has_pooler(config):
        shapes |= dict(_linear(f"{kind.prefix}.pooler.dense", dim, dim))
    if not classes:
        return shapes
    linears = kind.classifier
    if arch.endswith("WithTeacher"):
        linears = (("cls_classifier", "classes"), ("distillation_classifier", "classes"))
    into = 2 * dim if config["model_type"] == "dinov2" else dim
    for name, out in linears:
        shapes |= dict(_linear(name, classes if out == "classes" else dim, into))
    return shapes


Named = Iterator[tuple[str, tuple[int, ...]]]


def _linear(name: str, out: int, into: int, bias: bool = True) -> Named:
    yield f"{name}.weight", (out, into)
    if bias:
        yield f"{name}.bias", (out,)


def _norm(name: str, dim: int) -> Named:
    yield f"{name}.weight", (dim,)
    yield f"{name}.bias", (dim,)


def _embeddings(config: Mapping[str, Any]) -> Named:
    kind, dim = str(config["model_type"]), sizes(config, "hidden_size")
    if KINDS[kind].tower == "vision":
        patch, image = _pair(sizes(config, "patch_size")), _pair(sizes(config, "image_size"))
        yield "embeddings.cls_token", (1, 1, dim)
        if kind == "deit":
            yield "embeddings.distillation_token", (1, 1, dim)
        if kind == "dinov2" and sizes(config, "use_mask_token"):
            yield "embeddings.mask_token", (1, dim)
        tokens = (image[0] // patch[0]) * (image[1] // patch[1]) + (2 if kind == "deit" else 1)
        yield "embeddings.position_embeddings", (1, tokens, dim)
        projection = "embeddings.patch_embeddings.projection"
        yield f"{projection}.weight", (dim, sizes(config, "num_channels"), *patch)
        yield f"{projection}.bias", (dim,)
        return
    width = sizes(config, "embedding_size") if kind == "electra" else dim
    yield "embeddings.word_embeddings.weight", (sizes(config, "vocab_size"), width)
    yield "embeddings.position_embeddings.weight", (sizes(config, "max_position_embeddings"), width)
    if kind in ("bert", "roberta", "electra"):
        yield "embeddings.token_type_embeddings.weight", (sizes(config, "type_vocab_size"), width)
    yield from _norm("embeddings.LayerNorm", width)
    if width != dim:
        yield from _linear("embeddings_project", dim, width)
    if kind == "mpnet":
        # Fixed by the model's code, whatever the config says: one column for each head of every layer.
        buckets = sizes(config, "relative_attention_num_buckets")
        heads = sizes(config, "num_attention_heads")
        yield "encoder.relative_attention_bias.weight", (buckets, heads)


def _layer(config: Mapping[str, Any], kind: Kind) -> Named:
    dim = sizes(config, "hidden_size")
    bias = bool(sizes(config, "qkv_bias")) if kind.tower == "vision" else True
    for name in (kind.q, kind.k, kind.v):
        yield from _linear(name, dim, dim, bias)
    yield from _linear(kind.out, dim, dim)
    dinov2 = config["model_type"] == "dinov2"
    inner = int(dim * sizes(config, "mlp_ratio")) if dinov2 else sizes(config, "intermediate_size")
    yield from _linear(kind.mlp[0], inner, dim)
    yield from _linear(kind.mlp[1], dim, inner)
    for norm in kind.norms:
        yield from _norm(norm, dim)
    if dinov2:
        yield "layer_scale1.lambda1", (dim,)
        yield "layer_scale2.lambda1", (dim,)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])
