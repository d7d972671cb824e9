"""config.json of transformers' encoders as records: what a classifier's forward reads, with the library's defaults.

Only these fields reach transformers. `auto_map`, `attn_implementation`, `quantization_config` and the like have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import ManifestError
from hydrasurgeon.families.settings import (
    MAX_WORDS,
    Chance,
    Channels,
    Depth,
    Epsilon,
    Heads,
    Label,
    Pair,
    Positions,
    Settings,
    Width,
    Words,
    known,
    parse,
    patches,
)
from hydrasurgeon.files.manifest import Model

# Activations without parameters of their own, under all of transformers' names.
Activation = Literal[
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_pytorch_tanh",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "swish",
    "tanh",
]
UNCLASSIFIED = ("add_pooling_layer", "prediction_head")
"""What a record says of a file without a classifier, and no config.json of a classifier does."""
# How far fresh weights lie apart.
Spread = Annotated[float, Field(ge=0, le=10)]
Token = Annotated[int, Field(ge=0, lt=MAX_WORDS)]

# What transformers writes into config.json and no classifier's forward reads. Our own manifests of before config.json
# was read by the field hold them too.
INERT = frozenset(
    {
        "apply_layernorm",
        "bos_token_id",
        "chunk_size_feed_forward",
        "cls_token_id",
        "directionality",
        "encoder_stride",
        "eos_token_id",
        "gradient_checkpointing",
        "is_encoder_decoder",
        "model_max_length",
        "out_features",
        "out_indices",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pooler_act",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_output_size",
        "pooler_size_per_head",
        "pooler_type",
        "qa_dropout",
        "reshape_hidden_states",
        "return_dict",
        "sep_token_id",
        "stage_names",
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
        "tie_weights_",
        "tie_word_embeddings",
        "tokenizer_class",
        "use_cache",
    }
)


class Facts(Settings):
    """What config.json says of a file rather than of an architecture: it follows from the manifest later."""

    architectures: list[str] | None = None
    id2label: dict[str, Label | int] | None = None
    problem_type: str | None = None


class Encoder(Settings):
    """Sizes under their common names, and what every type knows."""

    model_type: str
    hidden_size: Width = 768
    num_hidden_layers: Depth = 12
    num_attention_heads: Heads = 12
    intermediate_size: Width = 3072
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

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"dim {self.hidden_size} is not a multiple of {self.num_attention_heads} heads")
        return self


class TextEncoder(Encoder):
    vocab_size: Words = 30522
    max_position_embeddings: Positions = 512
    pad_token_id: Token | None = 0
    classifier_dropout: Chance | None = None

    @model_validator(mode="after")
    def _padding_is_a_word(self) -> Self:
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is none of {self.vocab_size} words (vocab_size)")
        if self.longest < 1:
            raise ValueError(f"max_position_embeddings {self.max_position_embeddings} leaves no place for a token")
        return self

    @property
    def longest(self) -> int:
        """How many tokens there are positions for."""
        return self.max_position_embeddings


class TypedTextEncoder(TextEncoder):
    """Tells the texts of a pair apart."""

    type_vocab_size: Words = 2


class BertConfig(TypedTextEncoder):
    model_type: Literal["bert"]


class RobertaConfig(TypedTextEncoder):
    model_type: Literal["roberta"]
    vocab_size: Words = 50265
    pad_token_id: Token = 1

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1  # positions count from behind it


class ElectraConfig(TypedTextEncoder):
    model_type: Literal["electra"]
    embedding_size: Width = 128
    hidden_size: Width = 256
    num_attention_heads: Heads = 4
    intermediate_size: Width = 1024


class MPNetConfig(TextEncoder):
    model_type: Literal["mpnet"]
    vocab_size: Words = 30527
    pad_token_id: Token | None = 1
    relative_attention_num_buckets: Annotated[int, Field(ge=4, le=4_096)] = 32

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - 2  # its padding is token 1, whatever its config says


class DistilBertConfig(TextEncoder):
    """The same in words of its own."""

    model_type: Literal["distilbert"]
    hidden_size: Width = Field(768, alias="dim")
    num_hidden_layers: Depth = Field(6, alias="n_layers")
    num_attention_heads: Heads = Field(12, alias="n_heads")
    intermediate_size: Width = Field(3072, alias="hidden_dim")
    hidden_act: Activation = Field("gelu", alias="activation")
    hidden_dropout_prob: Chance = Field(0.1, alias="dropout")
    attention_probs_dropout_prob: Chance = Field(0.1, alias="attention_dropout")
    seq_classif_dropout: Chance = 0.2
    sinusoidal_pos_embds: bool = False


class ImageEncoder(Encoder):
    hidden_dropout_prob: Chance = 0.0
    attention_probs_dropout_prob: Chance = 0.0
    image_size: Pair = 224
    patch_size: Pair = 16
    num_channels: Channels = 3
    qkv_bias: bool = True

    @model_validator(mode="after")
    def _some_patches(self) -> Self:
        patches(self.image_size, self.patch_size)
        return self


class ViTConfig(ImageEncoder):
    model_type: Literal["vit"]


class DeiTConfig(ImageEncoder):
    model_type: Literal["deit"]


class Dinov2Config(ImageEncoder):
    model_type: Literal["dinov2"]
    patch_size: Pair = 14
    mlp_ratio: Annotated[int, Field(ge=1, le=64)] = 4
    layer_norm_eps: Epsilon = 1e-6
    layerscale_value: Annotated[float, Field(ge=-1_000, le=1_000)] = 1.0
    drop_path_rate: Chance = 0.0
    use_mask_token: bool = True


CONFIGS: dict[str, type[Encoder]] = {
    "bert": BertConfig,
    "roberta": RobertaConfig,
    "electra": ElectraConfig,
    "distilbert": DistilBertConfig,
    "mpnet": MPNetConfig,
    "vit": ViTConfig,
    "deit": DeiTConfig,
    "dinov2": Dinov2Config,
}
"""What is read of a config.json, by its `model_type`."""


def stock_config(raw: Mapping[str, Any], where: str, records: Mapping[str, type[Encoder]] = CONFIGS) -> Encoder:
    """The record of a config.json as transformers and its users write it: what it does not know is left out."""
    record = records[raw["model_type"]]
    # null stands for the default, except where it says that there is none.
    said = {key: value for key, value in known(record, raw).items() if value is not None or key == "pad_token_id"}
    return parse(record, said, where)


def config_of(model: Model, where: str = "model.config", records: Mapping[str, type[Encoder]] = CONFIGS) -> Encoder:
    """The record of a manifest's config; ManifestError where it is none."""
    kind = model.config.get("model_type")
    if not isinstance(kind, str) or kind not in records:
        raise ManifestError(
            f"{where}: model_type: {str(kind)[:60]!r} is not supported",
            hint=f"Supported model types: {', '.join(CONFIGS)}.",
        )
    said = {key: value for key, value in model.config.items() if key not in INERT}
    return parse(records[kind], said, where, error=ManifestError)
