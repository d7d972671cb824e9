"""transformers' encoders as a table: tensor names on disk, and their shapes from config.json, without torch.

Names are those that `save_pretrained` of the classification model writes. Version 5 renamed modules in
memory (`vit.layers.0.attention.q_proj`), but reads and writes the old names; files know only those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.hf_encoder.configs import (
    BertConfig,
    Dinov2Config,
    DistilBertConfig,
    ElectraConfig,
    Encoder,
    ImageEncoder,
    MPNetConfig,
    RobertaConfig,
    TextEncoder,
)
from hydrasurgeon.families.settings import known, pair, parse, patches
from hydrasurgeon.families.weights import OUT, QUERIES, Weight, linear, norm
from hydrasurgeon.files.manifest import Model


@dataclass(frozen=True)
class Kind:
    """What one model type is called on disk; `{}` stands for the layer."""

    record: type[Encoder]
    """What is read of its config.json."""
    prefix: str
    tower: str
    classes: tuple[str, ...]
    """Classification models of transformers, the usual one first."""
    layer: str = "encoder.layer.{}"
    qkv: tuple[str, ...] = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
    out: str = "attention.output.dense"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    classifier: tuple[tuple[str, str], ...] = (("classifier", "classes"),)
    """Linear layers of the classifier with their output: `dim` or `classes`."""
    pooler: bool = False
    weights_dropout: str | None = None
    """The module within a layer that drops attention weights; None where there is only a rate."""


BERT = Kind(
    BertConfig,
    "bert",
    "text",
    ("BertForSequenceClassification",),
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    pooler=True,
    weights_dropout="attention.self.dropout",
)
"""The layout that all text encoders come from."""
ROBERTA = replace(
    BERT,
    record=RobertaConfig,
    prefix="roberta",
    classes=("RobertaForSequenceClassification",),
    classifier=(("classifier.dense", "dim"), ("classifier.out_proj", "classes")),
    pooler=False,
)
"""The same with a deeper classifier in the place of a pooler."""
VIT = Kind(ImageEncoder, "vit", "vision", ("ViTForImageClassification",))
"""The layout that all image encoders come from."""

KINDS: dict[str, Kind] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "electra": replace(ROBERTA, record=ElectraConfig, prefix="electra", classes=("ElectraForSequenceClassification",)),
    "distilbert": Kind(
        DistilBertConfig,
        "distilbert",
        "text",
        ("DistilBertForSequenceClassification",),
        "transformer.layer.{}",
        ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.out_lin",
        ("ffn.lin1", "ffn.lin2"),
        ("sa_layer_norm", "output_layer_norm"),
        (("pre_classifier", "dim"), ("classifier", "classes")),
        weights_dropout="attention.dropout",
    ),
    "mpnet": replace(
        ROBERTA,
        record=MPNetConfig,
        prefix="mpnet",
        classes=("MPNetForSequenceClassification",),
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        out="attention.attn.o",
        norms=("attention.LayerNorm", "output.LayerNorm"),
        weights_dropout="attention.attn.dropout",
    ),
    "vit": VIT,
    "deit": replace(
        VIT, prefix="deit", classes=("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
    ),
    "dinov2": replace(
        VIT,
        record=Dinov2Config,
        prefix="dinov2",
        classes=("Dinov2ForImageClassification",),
        mlp=("mlp.fc1", "mlp.fc2"),
        norms=("norm1", "norm2"),
    ),
}
"""Every supported architecture by the `model_type` of its config."""


def kind_of(config: Encoder) -> Kind:
    return KINDS[config.model_type]


def stock_config(raw: Mapping[str, Any], where: str, kinds: Mapping[str, Kind] = KINDS) -> Encoder:
    """The record of a config.json as transformers and its users write it: what it does not know is left out."""
    record = kinds[raw["model_type"]].record
    # null stands for the default, except where it says that there is none.
    said = {key: value for key, value in known(record, raw).items() if value is not None or key == "pad_token_id"}
    return parse(record, said, where)


def config_of(model: Model, where: str = "model.config", kinds: Mapping[str, Kind] = KINDS) -> Encoder:
    """The record of a manifest's config; ManifestError where it is none."""
    kind = model.config.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        hint = f"Supported model types: {', '.join(KINDS)}."
        raise ManifestError(f"{where}: model_type: {str(kind)[:60]!r} is not supported", hint=hint)
    return parse(kinds[kind].record, model.config, where, error=ManifestError)


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
    if isinstance(config, BertConfig):
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
    for name in kind.qkv:
        yield from linear(name, dim, dim, "attention", bias=bias, heads=QUERIES)
    yield from linear(kind.out, dim, dim, "output", heads=OUT)
    inner = config.intermediate_size
    if isinstance(config, Dinov2Config):
        inner = dim * config.mlp_ratio
    yield from linear(kind.mlp[0], inner, dim, "mlp", heads=QUERIES)
    yield from linear(kind.mlp[1], dim, inner, "mlp", heads=OUT)
    for name in kind.norms:
        # BERT's attention ends with a norm of its own.
        yield from norm(name, dim, "attention" if name.startswith("attention.") else "norm")
    if isinstance(config, Dinov2Config):
        yield Weight("layer_scale1.lambda1", (dim,), "scale")
        yield Weight("layer_scale2.lambda1", (dim,), "scale")
