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
)
from hydrasurgeon.families.settings import pair, patches
from hydrasurgeon.families.weights import OUT, QUERIES, Weight, linear, norm, shapes_of
from hydrasurgeon.files.manifest import Model

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
    weights_dropout: str | None = None
    """The module within a layer that drops attention weights; None where there is only a rate."""


def _bert(prefix: str, name: str, *, deep: bool) -> Kind:
    classifier = (
        (("classifier.dense", "dim"), ("classifier.out_proj", "classes")) if deep else (("classifier", "classes"),)
    )
    return Kind(
        prefix,
        "text",
        (f"{name}ForSequenceClassification",),
        "encoder.layer.{}",
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        ("intermediate.dense", "output.dense"),
        ("attention.output.LayerNorm", "output.LayerNorm"),
        classifier,
        pooler=not deep,
        weights_dropout="attention.self.dropout",
    )


def _vit(prefix: str, *classes: str) -> Kind:
    return Kind(
        prefix,
        "vision",
        classes,
        "encoder.layer.{}",
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
        ("intermediate.dense", "output.dense"),
        ("layernorm_before", "layernorm_after"),
        (("classifier", "classes"),),
        prenorm=True,
    )


KINDS: dict[str, Kind] = {
    "bert": _bert("bert", "Bert", deep=False),
    "roberta": _bert("roberta", "Roberta", deep=True),
    "electra": _bert("electra", "Electra", deep=True),
    "distilbert": Kind(
        "distilbert",
        "text",
        ("DistilBertForSequenceClassification",),
        "transformer.layer.{}",
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        ("ffn.lin1", "ffn.lin2"),
        ("sa_layer_norm", "output_layer_norm"),
        (("pre_classifier", "dim"), ("classifier", "classes")),
        weights_dropout="attention.dropout",
    ),
    "mpnet": Kind(
        "mpnet",
        "text",
        ("MPNetForSequenceClassification",),
        "encoder.layer.{}",
        "attention.attn.q",
        "attention.attn.k",
        "attention.attn.v",
        "attention.attn.o",
        ("intermediate.dense", "output.dense"),
        ("attention.LayerNorm", "output.LayerNorm"),
        (("classifier.dense", "dim"), ("classifier.out_proj", "classes")),
        weights_dropout="attention.attn.dropout",
    ),
    "vit": _vit("vit", "ViTForImageClassification"),
    "deit": _vit("deit", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    "dinov2": Kind(
        "dinov2",
        "vision",
        ("Dinov2ForImageClassification",),
        "encoder.layer.{}",
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
        ("mlp.fc1", "mlp.fc2"),
        ("norm1", "norm2"),
        (("classifier", "classes"),),
        prenorm=True,
    ),
}
"""Every supported architecture by the `model_type` of its config."""


def kind_of(config: Encoder) -> Kind:
    return KINDS[config.model_type]


def class_name(kind: Kind, model: Model) -> str:
    """The table's own spelling of a model's class: the only one that may reach code or an attribute's name."""
    return kind.classes[kind.classes.index(model.arch)]


def has_pooler(config: Encoder) -> bool:
    return kind_of(config).pooler and config.add_pooling_layer


def canonical(kind: Kind, stored: Iterable[str]) -> dict[str, str]:
    """Name as `save_pretrained` of the classifier writes it → name in this file.

    Files of the bare encoder lack the prefix; old BERT files say gamma and beta.
    """
    names = list(stored)
    dot = f"{kind.prefix}."
    bare = not any(name.startswith(dot) for name in names)
    classifiers = tuple(f"{name}." for name, _ in kind.classifier)
    stored_as = {}
    for name in names:
        plain = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        plain = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", plain)
        stored_as[f"{dot}{plain}" if bare and not plain.startswith(classifiers) else plain] = name
    return stored_as


def weights(config: Encoder, arch: str, classes: int) -> Iterator[Weight]:
    """All tensors of an unpruned classifier; without a classifier where there are no classes."""
    kind, dim = kind_of(config), config.hidden_size
    embeddings = _pictures(config) if isinstance(config, ImageEncoder) else _words(config)
    yield from (Weight(f"{kind.prefix}.{n}", s, "embedding", kind.tower) for n, s in embeddings)
    parts = list(_layer(config, kind))
    for layer in range(config.num_hidden_layers):
        place = f"{kind.prefix}.{kind.layer.format(layer)}"
        yield from (part.within(place, kind.tower, layer) for part in parts)
    if kind.tower == "vision":
        yield from norm(f"{kind.prefix}.layernorm", dim, "readout")
    if has_pooler(config):
        yield from linear(f"{kind.prefix}.pooler.dense", dim, dim, "readout")
    if not classes:
        return
    linears = kind.classifier
    if arch.endswith("WithTeacher"):
        linears = (("cls_classifier", "classes"), ("distillation_classifier", "classes"))
    into = 2 * dim if isinstance(config, Dinov2Config) else dim
    for name, out in linears:
        yield from linear(name, classes if out == "classes" else dim, into, "classifier")


def tensor_shapes(config: Encoder, arch: str, classes: int) -> Shapes:
    return shapes_of(weights(config, arch, classes))


Named = Iterator[tuple[str, tuple[int, ...]]]


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
    yield "embeddings.LayerNorm.weight", (width,)
    yield "embeddings.LayerNorm.bias", (width,)
    if width != dim:
        yield "embeddings_project.weight", (dim, width)
        yield "embeddings_project.bias", (dim,)
    if isinstance(config, MPNetConfig):
        # One column for each head of every layer.
        table = (config.relative_attention_num_buckets, config.num_attention_heads)
        yield "encoder.relative_attention_bias.weight", table


def _layer(config: Encoder, kind: Kind) -> Iterator[Weight]:
    dim = config.hidden_size
    bias = config.qkv_bias if isinstance(config, ImageEncoder) else True
    for name in (kind.q, kind.k, kind.v):
        yield from linear(name, dim, dim, "attention", bias=bias, heads=QUERIES)
    yield from linear(kind.out, dim, dim, "output", heads=OUT)
    inner = config.intermediate_size
    if isinstance(config, Dinov2Config):
        inner = dim * config.mlp_ratio
    yield from linear(kind.mlp[0], inner, dim, "mlp")
    yield from linear(kind.mlp[1], dim, inner, "mlp")
    for name in kind.norms:
        # BERT's attention ends with a norm of its own.
        yield from norm(name, dim, "attention" if name.startswith("attention.") else "norm")
    if isinstance(config, Dinov2Config):
        yield Weight("layer_scale1.lambda1", (dim,), "scale")
        yield Weight("layer_scale2.lambda1", (dim,), "scale")
