"""config.json of transformers' encoders as records: what a classifier's forward reads, with the library's defaults.

Only these fields reach transformers. `auto_map`, `attn_implementation`, `quantization_config` and the like have none.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.families.settings import Chance, Count, Pair, Positive, Settings, Size, patches

# Activations without parameters of their own, under all of transformers' names.
ACTIVATIONS = (
    "gelu|gelu_10|gelu_accurate|gelu_fast|gelu_new|gelu_python|gelu_pytorch_tanh|laplace|leaky_relu|linear|mish|"
    "quick_gelu|relu|relu2|relu6|sigmoid|silu|swish|tanh"
)
# One of them.
Activation = Annotated[str, Field(pattern=f"^({ACTIVATIONS})$")]
UNCLASSIFIED = ("add_pooling_layer", "prediction_head")
"""What a record says of a file without a classifier, and no config.json of a classifier does."""
# How far fresh weights lie apart.
Spread = Annotated[float, Field(ge=0)]


class Facts(Settings):
    """What config.json says of a file rather than of an architecture: it follows from the manifest later."""

    architectures: list[str] | None = None
    id2label: dict[str, str | int] | None = None
    problem_type: str | None = None


class Encoder(Settings):
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
    layer_norm_eps: Positive = 1e-12
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
    vocab_size: Size = 30522
    max_position_embeddings: Size = 512
    pad_token_id: Count | None = 0
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


class BertConfig(TextEncoder):
    """Tells the texts of a pair apart."""

    type_vocab_size: Size = 2


class RobertaConfig(BertConfig):
    vocab_size: Size = 50265
    pad_token_id: Count = 1

    @property
    def longest(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1  # positions count from behind it


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


class ImageEncoder(Encoder):
    hidden_dropout_prob: Chance = 0.0
    attention_probs_dropout_prob: Chance = 0.0
    image_size: Pair = 224
    patch_size: Pair = 16
    num_channels: Size = 3
    qkv_bias: bool = True

    @model_validator(mode="after")
    def _some_patches(self) -> Self:
        patches(self.image_size, self.patch_size)
        return self


class Dinov2Config(ImageEncoder):
    patch_size: Pair = 14
    mlp_ratio: Size = 4
    layer_norm_eps: Positive = 1e-6
    layerscale_value: float = 1.0
    drop_path_rate: Chance = 0.0
    use_mask_token: bool = True
