"""transformers' encoders as a table: tensor names on disk, and their shapes from config.json, without torch.

Names are those that `save_pretrained` of the classification model writes. Version 5 renamed modules in
memory (`vit.layers.0.attention.q_proj`), but reads and writes the old names; files know only those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hydrasurgeon.families.hf_encoder.configs import (
    Dinov2Config,
    ElectraConfig,
    Encoder,
    ImageEncoder,
    MPNetConfig,
    TextEncoder,
    TypedTextEncoder,
    config_of,
)
from hydrasurgeon.families.settings import pair, patches
from hydrasurgeon.files.manifest import Model

__all__ = ["KINDS", "Kind", "canonical", "class_name", "has_pooler", "kind_of", "tensor_shapes"]

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


def kind_of(config: Encoder) -> Kind:
    return KINDS[config.model_type]


def class_name(model: Model) -> str:
    """The table's own spelling of a model's class: the only one that may reach code or an attribute's name."""
    classes = kind_of(config_of(model)).classes
    return classes[classes.index(model.arch)]


def has_pooler(config: Encoder) -> bool:
    return kind_of(config).pooler and config.add_pooling_layer


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


def tensor_shapes(config: Encoder, arch: str, classes: int) -> Shapes:
    """All tensors of an unpruned classifier; without a classifier where there are no classes."""
    kind, dim = kind_of(config), config.hidden_size
    embeddings = _pictures(config) if isinstance(config, ImageEncoder) else _words(config)
    shapes = {f"{kind.prefix}.{name}": shape for name, shape in embeddings}
    one = dict(_layer(config, kind))
    for layer in range(config.num_hidden_layers):
        place = f"{kind.prefix}.{kind.layer.format(layer)}"
        shapes |= {f"{place}.{name}": shape for name, shape in one.items()}
    if kind.tower == "vision":
        shapes |= dict(_norm(f"{kind.prefix}.layernorm", dim))
    if has_pooler(config):
        shapes |= dict(_linear(f"{kind.prefix}.pooler.dense", dim, dim))
    if not classes:
        return shapes
    linears = kind.classifier
    if arch.endswith("WithTeacher"):
        linears = (("cls_classifier", "classes"), ("distillation_classifier", "classes"))
    into = 2 * dim if isinstance(config, Dinov2Config) else dim
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


def _pictures(config: ImageEncoder) -> Named:
    dim, deit = config.hidden_size, config.model_type == "deit"
    yield "embeddings.cls_token", (1, 1, dim)
    if deit:
        yield "embeddings.distillation_token", (1, 1, dim)
    if isinstance(config, Dinov2Config) and config.use_mask_token:
        yield "embeddings.mask_token", (1, dim)
    tokens = patches(config.image_size, config.patch_size) + (2 if deit else 1)
    yield "embeddings.position_embeddings", (1, tokens, dim)
    projection = "embeddings.patch_embeddings.projection"
    yield f"{projection}.weight", (dim, config.num_channels, *pair(config.patch_size))
    yield f"{projection}.bias", (dim,)


def _words(config: Encoder) -> Named:
    assert isinstance(config, TextEncoder)
    dim = config.hidden_size
    width = config.embedding_size if isinstance(config, ElectraConfig) else dim
    yield "embeddings.word_embeddings.weight", (config.vocab_size, width)
    yield "embeddings.position_embeddings.weight", (config.max_position_embeddings, width)
    if isinstance(config, TypedTextEncoder):
        yield "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width)
    yield from _norm("embeddings.LayerNorm", width)
    if width != dim:
        yield from _linear("embeddings_project", dim, width)
    if isinstance(config, MPNetConfig):
        # One column for each head of every layer.
        table = (config.relative_attention_num_buckets, config.num_attention_heads)
        yield "encoder.relative_attention_bias.weight", table


def _layer(config: Encoder, kind: Kind) -> Named:
    dim = config.hidden_size
    bias = config.qkv_bias if isinstance(config, ImageEncoder) else True
    for name in (kind.q, kind.k, kind.v):
        yield from _linear(name, dim, dim, bias)
    yield from _linear(kind.out, dim, dim)
    inner = config.intermediate_size
    if isinstance(config, Dinov2Config):
        inner = dim * config.mlp_ratio
    yield from _linear(kind.mlp[0], inner, dim)
    yield from _linear(kind.mlp[1], dim, inner)
    for norm in kind.norms:
        yield from _norm(norm, dim)
    if isinstance(config, Dinov2Config):
        yield "layer_scale1.lambda1", (dim,)
        yield "layer_scale2.lambda1", (dim,)
