"""transformers' encoders as tables: what config.json says, tensor names on disk, and their shapes,
without torch.

Only the records' fields reach transformers: `auto_map`, `attn_implementation`,
`quantization_config` have none. Names are those that `save_pretrained` of the classification model
writes, whatever modules are called in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.settings import (
    Chance,
    Count,
    Pair,
    Settings,
    Size,
    pair,
    parse,
    patches,
    pick_fields,
)
from hydrasurgeon.families.weights import OUT, ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.manifest import Model, Tower
from hydrasurgeon.files.untrusted import must

# Activations without parameters of their own, under all of transformers' names.
ACTIVATIONS = "gelu|gelu_10|gelu_accurate|gelu_fast|gelu_new|gelu_python|gelu_pytorch_tanh|laplace|leaky_relu|linear|mish|quick_gelu|relu|relu2|relu6|sigmoid|silu|swish|tanh"
# One of them.
Activation = Annotated[str, Field(pattern=f"^({ACTIVATIONS})$")]
UNCLASSIFIED = ("add_pooling_layer", "prediction_head")
"""Settings of a record for a file without a classifier, which a classifier's config.json never has.
"""
# What norms add to a variance: transformers takes no whole number for it.
Epsilon = Annotated[float, Field(gt=0, le=1e12)]
NONE = ("attn_logit_softcapping", "pad_token_id", "sliding_window")
"""Settings of which null says that there is none; of others it stands for the default."""
# How far fresh weights lie apart.
Spread = Annotated[float, Field(ge=0)]


class Facts(Settings):
    """Settings of config.json that belong to a file, not to an architecture.

    Later they follow from the manifest.
    """

    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None
    problem_type: str | None = None


class EncoderConfig(Settings):
    """Sizes under their common names, and what every type knows."""

    model_type: str
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Chance = 0.1
    attention_probs_dropout_prob: Chance = 0.1
    initializer_range: Spread = 0.02
    layer_norm_eps: Epsilon = 1e-12
    # transformers' own word for a BERT without pooler.
    add_pooling_layer: bool = True
    # Layouts that are not supported have no other value.
    is_decoder: Literal[False] | None = None
    add_cross_attention: Literal[False] | None = None
    position_embedding_type: Literal["absolute"] | None = None
    use_swiglu_ffn: Literal[False] | None = None

    def library(self) -> dict[str, Any]:
        """Return the settings for the library's own record."""
        return self.written()

    @property
    def tower(self) -> Tower:
        """Its sizes."""
        return Tower.of(self.num_hidden_layers, self.num_attention_heads, self.hidden_size)

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        dim, heads = self.hidden_size, self.num_attention_heads
        must((not dim % heads, f"dim {dim} is not a multiple of {heads} heads"))
        return self


class TextEncoder(EncoderConfig):
    vocab_size: Size = 30522
    max_position_embeddings: Size = 512
    pad_token_id: Count | None = 0
    classifier_dropout: Chance | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        pad, words = self.pad_token_id, self.vocab_size
        places = f"max_position_embeddings {self.max_position_embeddings}"
        must(
            ((pad or 0) < words, f"pad_token_id {pad} is none of {words} words (vocab_size)"),
            (self.longest > 0, f"{places} leaves no place for a token"),
        )
        return self

    @property
    def longest(self) -> int:
        """Number of tokens for which there are positions."""
        return self.max_position_embeddings


class BertConfig(TextEncoder):
    """Tells the texts of a pair apart."""

    type_vocab_size: Size = 2


class RobertaConfig(BertConfig):
    vocab_size: Size = 50265
    pad_token_id: Count = 1

    @property
    def longest(self) -> int:
        return (
            self.max_position_embeddings - self.pad_token_id - 1
        )  # positions count from behind it


class XLMRobertaConfig(RobertaConfig):
    vocab_size: Size = 30522


class ElectraConfig(BertConfig):
    embedding_size: Size = 128
    hidden_size: Size = 256
    num_attention_heads: Size = 4
    intermediate_size: Size = 1024


class MPNetConfig(TextEncoder):
    vocab_size: Size = 30527
    pad_token_id: Count | None = 1
    relative_attention_num_buckets: Annotated[Size, Field(ge=4)] = 32

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - 2  # its padding is token 1, whatever its config says


class DistilBertConfig(TextEncoder):
    """The same in words of its own."""

    hidden_size: Size = Field(768, alias="dim")
    num_hidden_layers: Size = Field(6, alias="n_layers")
    num_attention_heads: Size = Field(12, alias="n_heads")
    intermediate_size: Size = Field(3072, alias="hidden_dim")
    hidden_act: Activation = Field("gelu", alias="activation")
    hidden_dropout_prob: Chance = Field(0.1, alias="dropout")
    attention_probs_dropout_prob: Chance = Field(0.1, alias="attention_dropout")
    seq_classif_dropout: Chance = 0.2
    sinusoidal_pos_embds: bool = False


class ImageEncoder(EncoderConfig):
    hidden_dropout_prob: Chance = 0.0
    attention_probs_dropout_prob: Chance = 0.0
    image_size: Pair = 224
    patch_size: Pair = 16
    num_channels: Size = 3
    qkv_bias: bool = True
    # Of fewer heads, which then do not add up to the width.
    head_dim: Size | None = None

    @model_validator(mode="after")
    def _some_patches(self) -> Self:
        patches(self.image_size, self.patch_size)
        return self


class Dinov2Config(ImageEncoder):
    patch_size: Pair = 14
    mlp_ratio: Size = 4
    layer_norm_eps: Epsilon = 1e-6
    layerscale_value: float = 1.0
    drop_path_rate: Chance = 0.0
    use_mask_token: bool = True


class RegistersConfig(Dinov2Config):
    """Tokens beside the class token that no patch is in and nothing reads."""

    patch_size: Pair = 16
    num_register_tokens: Size = 4


@dataclass(frozen=True)
class Kind:
    """Names of one model type on disk; `{}` stands for the layer."""

    record: type[EncoderConfig]
    """Record of its config.json."""
    prefix: str
    tower: str
    classes: tuple[str, ...]
    """Classification models of transformers, the usual one first."""
    layer: str = "encoder.layer.{}"
    qkv: tuple[str, ...] = (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    )
    out: str = "attention.output.dense"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    of_words: str | None = None
    """The model that answers for every token, where the type has one."""
    word_head: bool = False
    """True if its classifier stands behind the same head as the usual one's."""
    classifier: tuple[tuple[str, str], ...] = (("classifier", "classes"),)
    """Linear layers of the classifier with their output: `dim` or `classes`."""
    pooler: bool = False
    fewer_heads: bool = False
    """True if the library builds heads that do not add up to the width."""
    weights_dropout: tuple[str, ...] = ()
    """The modules within a layer that drop what makes attention weights; none where there is only a
    rate.
    """

    @property
    def all_classes(self) -> tuple[str, ...]:
        """With the one that answers for every token."""
        return self.classes if self.of_words is None else (*self.classes, self.of_words)


BERT = Kind(
    BertConfig,
    "bert",
    "text",
    ("BertForSequenceClassification",),
    of_words="BertForTokenClassification",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    pooler=True,
    weights_dropout=("attention.self.dropout",),
)
"""The layout that all text encoders come from."""
ROBERTA = replace(
    BERT,
    record=RobertaConfig,
    prefix="roberta",
    classes=("RobertaForSequenceClassification",),
    of_words="RobertaForTokenClassification",
    classifier=(("classifier.dense", "dim"), ("classifier.out_proj", "classes")),
    pooler=False,
)
"""The same with a deeper classifier in the place of a pooler."""
VIT = Kind(ImageEncoder, "vit", "vision", ("ViTForImageClassification",), fewer_heads=True)
"""The layout that all image encoders come from."""
DINOV2 = replace(
    VIT,
    record=Dinov2Config,
    prefix="dinov2",
    classes=("Dinov2ForImageClassification",),
    mlp=("mlp.fc1", "mlp.fc2"),
    norms=("norm1", "norm2"),
)
"""The same with scaled branches; its classifier reads the patches too."""

KINDS: dict[str, Kind] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": replace(
        ROBERTA,
        record=XLMRobertaConfig,
        classes=("XLMRobertaForSequenceClassification",),
        of_words="XLMRobertaForTokenClassification",
    ),
    "camembert": replace(
        ROBERTA,
        record=XLMRobertaConfig,
        classes=("CamembertForSequenceClassification",),
        of_words="CamembertForTokenClassification",
    ),
    "electra": replace(
        ROBERTA,
        record=ElectraConfig,
        prefix="electra",
        classes=("ElectraForSequenceClassification",),
        of_words="ElectraForTokenClassification",
    ),
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
        classifier=(("pre_classifier", "dim"), ("classifier", "classes")),
        of_words="DistilBertForTokenClassification",
        weights_dropout=("attention.dropout",),
    ),
    "mpnet": replace(
        ROBERTA,
        record=MPNetConfig,
        prefix="mpnet",
        classes=("MPNetForSequenceClassification",),
        of_words="MPNetForTokenClassification",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        out="attention.attn.o",
        norms=("attention.LayerNorm", "output.LayerNorm"),
        weights_dropout=("attention.attn.dropout",),
    ),
    "vit": VIT,
    "deit": replace(
        VIT,
        prefix="deit",
        classes=("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    ),
    "dinov2": DINOV2,
    "dinov2_with_registers": replace(
        DINOV2,
        record=RegistersConfig,
        prefix="dinov2_with_registers",
        classes=("Dinov2WithRegistersForImageClassification",),
    ),
}
"""Every supported architecture by the `model_type` of its config."""


def stock_config(
    raw: Mapping[str, Any], where: str, kinds: Mapping[str, Kind] = KINDS
) -> EncoderConfig:
    """Parse a config.json as transformers and its users write it, without unknown settings."""
    record = kinds[raw["model_type"]].record
    settings = {
        key: value
        for key, value in pick_fields(record, raw).items()
        if value is not None or key in NONE
    }
    return parse(record, settings, where)


def config_of(
    model: Model, where: str = "model.config", kinds: Mapping[str, Kind] = KINDS
) -> EncoderConfig:
    """Parse a manifest's config; raise ManifestError for an invalid one."""
    kind = model.config.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        hint = f"Supported model types: {', '.join(KINDS)}."
        raise ManifestError(f"{where}: model_type: {str(kind)[:60]!r} is not supported", hint=hint)
    return parse(kinds[kind].record, model.config, where, error=ManifestError)


def class_name(kind: Kind, model: Model) -> str:
    """Return the table's own spelling of a model's class.

    Only this spelling may reach code or an attribute's name.
    """
    return kind.all_classes[kind.all_classes.index(model.arch)]


def has_pooler(config: EncoderConfig, kind: Kind) -> bool:
    return kind.pooler and config.add_pooling_layer


def canonical(kind: Kind, stored: Iterable[str]) -> dict[str, str]:
    """Name as `save_pretrained` of the classifier writes it → name in this file, which may lack the
    prefix.
    """
    stored_as, dot = {name: name for name in stored}, f"{kind.prefix}."
    bare = not any(name.startswith(dot) for name in stored_as)
    classifiers = tuple(f"{name}." for name, _ in kind.classifier)
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        stored_as = {
            n.removesuffix(old) + new if n.endswith(old) else n: name
            for n, name in stored_as.items()
        }
    return {
        n if not bare or n.startswith(classifiers) else f"{dot}{n}": name
        for n, name in stored_as.items()
    }


def weights(config: EncoderConfig, arch: str, classes: int) -> Iterator[Weight]:
    """Yield all tensors of an unpruned classifier; without classes there is no classifier."""
    kind, dim = KINDS[config.model_type], config.hidden_size
    embeddings = _pictures(config) if isinstance(config, ImageEncoder) else _words(config)
    yield from (Weight(f"{kind.prefix}.{n}", s, "embedding", kind.tower) for n, s in embeddings)
    place = f"{kind.prefix}.{kind.layer}"
    yield from stack(place, kind.tower, config.num_hidden_layers, _layer(config, kind))
    if kind.tower == "vision":
        yield from norm(f"{kind.prefix}.layernorm", dim, "readout")
    if has_pooler(config, kind):
        yield from linear(f"{kind.prefix}.pooler.dense", dim, dim, "readout")
    if not classes:
        return
    linears = kind.classifier
    if arch.endswith("WithTeacher"):
        linears = (("cls_classifier", "classes"), ("distillation_classifier", "classes"))
    into = 2 * dim if isinstance(config, Dinov2Config) else dim
    for name, out in linears:
        yield from linear(name, classes if out == "classes" else dim, into, "classifier")


def pooled(table: Iterable[Weight], dim: int, classes: int) -> Iterator[Weight]:
    """Yield the tensors of a model whose pooled tokens one linear layer classifies."""
    replaced = re.compile(r"pooler\.|head\.")
    for weight in table:
        if weight.part == "classifier" or (
            weight.part == "readout" and replaced.search(weight.name)
        ):
            continue
        yield weight
    if classes:
        yield from linear("classifier", classes, dim, "classifier")


Named = Iterator[tuple[str, tuple[int, ...]]]


def _pictures(config: ImageEncoder) -> Named:
    dim, deit = config.hidden_size, config.model_type == "deit"
    yield "embeddings.cls_token", (1, 1, dim)
    if deit:
        yield "embeddings.distillation_token", (1, 1, dim)
    if isinstance(config, Dinov2Config) and config.use_mask_token:
        yield "embeddings.mask_token", (1, dim)
    if isinstance(config, RegistersConfig):
        yield "embeddings.register_tokens", (1, config.num_register_tokens, dim)
    tokens = patches(config.image_size, config.patch_size) + (2 if deit else 1)
    yield "embeddings.position_embeddings", (1, tokens, dim)
    projection = "embeddings.patch_embeddings.projection"
    yield f"{projection}.weight", (dim, config.num_channels, *pair(config.patch_size))
    yield f"{projection}.bias", (dim,)


def _words(config: EncoderConfig) -> Named:
    assert isinstance(config, TextEncoder)
    dim = config.hidden_size
    width = config.embedding_size if isinstance(config, ElectraConfig) else dim
    yield "embeddings.word_embeddings.weight", (config.vocab_size, width)
    yield "embeddings.position_embeddings.weight", (config.max_position_embeddings, width)
    if isinstance(config, BertConfig):
        yield "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width)
    yield from (("embeddings.LayerNorm.weight", (width,)), ("embeddings.LayerNorm.bias", (width,)))
    if width != dim:
        yield from (
            ("embeddings_project.weight", (dim, width)),
            ("embeddings_project.bias", (dim,)),
        )
    if isinstance(config, MPNetConfig):
        # One column for each head of every layer.
        table = (config.relative_attention_num_buckets, config.num_attention_heads)
        yield "encoder.relative_attention_bias.weight", table


def _layer(config: EncoderConfig, kind: Kind) -> Iterator[Weight]:
    dim = config.hidden_size
    bias = config.qkv_bias if isinstance(config, ImageEncoder) else True
    for name in kind.qkv:
        yield from linear(name, dim, dim, "attention", bias=bias, heads=ROWS)
    yield from linear(kind.out, dim, dim, "output", heads=OUT)
    inner = config.intermediate_size
    if isinstance(config, Dinov2Config):
        inner = dim * config.mlp_ratio
    yield from linear(kind.mlp[0], inner, dim, "mlp", heads=ROWS)
    yield from linear(kind.mlp[1], dim, inner, "mlp", heads=OUT)
    for name in kind.norms:  # BERT's attention ends with a norm of its own
        yield from norm(name, dim, "attention" if name.startswith("attention.") else "norm")
    if isinstance(config, Dinov2Config):
        yield Weight("layer_scale1.lambda1", (dim,), "scale")
        yield Weight("layer_scale2.lambda1", (dim,), "scale")
