"""Decoders that classify texts by their last token: Llama, Mistral, Qwen 2, 2.5 and 3, Gemma 2 and
3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.hf_encoder.architectures import (
    Activation,
    EncoderConfig,
    Epsilon,
    Kind,
    TextEncoder,
)
from hydrasurgeon.families.hf_encoder.companions import GENERIC
from hydrasurgeon.families.hf_encoder.family import HFVariant, check_rotation
from hydrasurgeon.families.modernbert.family import GLOBAL, LOCAL, LayerType, Theta
from hydrasurgeon.families.settings import Chance, Count, Positive, Settings, Size
from hydrasurgeon.families.weights import ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.manifest import Tower
from hydrasurgeon.files.untrusted import must
from hydrasurgeon.heads import HeadAxis

ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Supported stretching of rotary positions, by factors that do not depend on a text's length."""


class DecoderRotation(Settings):
    """Settings of the rotation of positions; `type` is the older name of `rope_type`."""

    rope_type: Literal[ROTATIONS] | None = None  # type: ignore[valid-type]
    type: Literal[ROTATIONS] | None = None  # type: ignore[valid-type]
    rope_theta: Theta | None = None
    factor: Positive | None = None
    original_max_position_embeddings: Size | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: bool | None = None


class DecoderConfig(TextEncoder):
    """Llama's, which the others are like."""

    vocab_size: Size = 32000
    hidden_size: Size = 4096
    intermediate_size: Size = 11008
    num_hidden_layers: Size = 32
    num_attention_heads: Size = 32
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size = 2048
    rms_norm_eps: Epsilon = 1e-6
    pad_token_id: Count | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: Chance = 0.0
    rope_theta: Theta | None = None
    rope_scaling: DecoderRotation | None = None
    rope_parameters: DecoderRotation | dict[LayerType, DecoderRotation | None] | None = None
    layer_types: list[LayerType] | None = None
    sliding_window: Size | None = None
    use_bidirectional_attention: Literal[False] | None = None

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        heads, listed = self.num_attention_heads, len(self.types)
        must(
            (not heads % self.groups, f"{heads} heads cannot share {self.groups} keys alike"),
            (not self.width % 2, "a head of an odd number of dimensions cannot be rotated"),
            (
                listed == self.num_hidden_layers,
                f"layer_types lists {listed} layers of {self.num_hidden_layers}",
            ),
        )
        return self

    @property
    def groups(self) -> int:
        """Number of keys, and with them of heads that can be cut."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def width(self) -> int:
        """Dimensions of a key."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def tower(self) -> Tower:
        layers, dim = self.num_hidden_layers, self.hidden_size
        return Tower(layers=layers, heads=self.groups, head_dim=self.width, dim=dim)

    @property
    def types(self) -> tuple[str, ...]:
        """GLOBAL or LOCAL, layer by layer."""
        return tuple(self.layer_types or [GLOBAL] * self.num_hidden_layers)

    @property
    def window(self) -> int | None:
        """At how many tokens, itself among them, a token of a local layer looks."""
        return self.sliding_window


class MistralConfig(DecoderConfig):
    intermediate_size: Size = 14336
    num_key_value_heads: Size | None = 8
    max_position_embeddings: Size = 131072
    sliding_window: Size | None = 4096
    layer_types: None = None

    @property
    def types(self) -> tuple[str, ...]:
        return (GLOBAL if self.sliding_window is None else LOCAL,) * self.num_hidden_layers


class QwenConfig(DecoderConfig):
    vocab_size: Size = 151936
    intermediate_size: Size = 22016
    num_key_value_heads: Size | None = 32
    max_position_embeddings: Size = 32768
    use_sliding_window: bool = False
    sliding_window: Size | None = 4096
    max_window_layers: Count = 28

    @property
    def types(self) -> tuple[str, ...]:
        if self.layer_types is not None:
            return tuple(self.layer_types)
        first = self.num_hidden_layers if self.window is None else self.max_window_layers
        return tuple(LOCAL if layer >= first else GLOBAL for layer in range(self.num_hidden_layers))

    @property
    def window(self) -> int | None:
        return self.sliding_window if self.use_sliding_window else None


class Qwen3Config(QwenConfig):
    head_dim: Size | None = 128


class GemmaConfig(DecoderConfig):
    """Has a norm behind each branch too."""

    vocab_size: Size = 256000
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    head_dim: Size | None = 256
    hidden_act: Activation = Field("gelu_pytorch_tanh", alias="hidden_activation")
    max_position_embeddings: Size = 8192
    pad_token_id: Count | None = 0
    query_pre_attn_scalar: Positive = 256
    sliding_window: Size | None = 4096
    attn_logit_softcapping: Positive | None = 50.0

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.layer_types or self._alternating(2))

    def _alternating(self, pattern: int) -> list[str]:
        """List the types of layers: the last of every `pattern` layers is global, others are local."""
        return [
            LOCAL if (layer + 1) % pattern else GLOBAL for layer in range(self.num_hidden_layers)
        ]


class Gemma3Config(GemmaConfig):
    vocab_size: Size = 262_208
    max_position_embeddings: Size = 131_072
    attn_logit_softcapping: Positive | None = None
    rope_local_base_freq: Theta | None = None
    sliding_window_pattern: Annotated[int, Field(ge=1, le=1 << 10)] | None = None

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self.layer_types or self._alternating(self.sliding_window_pattern or 6))


LLAMA = Kind(
    DecoderConfig,
    "model",
    "text",
    ("LlamaForSequenceClassification",),
    classifier=(("score", "classes"),),
)
"""Names of its modules, and of those of all others."""
KINDS: dict[str, Kind] = {
    "llama": LLAMA,
    "mistral": replace(LLAMA, record=MistralConfig, classes=("MistralForSequenceClassification",)),
    "qwen2": replace(LLAMA, record=QwenConfig, classes=("Qwen2ForSequenceClassification",)),
    "qwen3": replace(LLAMA, record=Qwen3Config, classes=("Qwen3ForSequenceClassification",)),
    "gemma2": replace(LLAMA, record=GemmaConfig, classes=("Gemma2ForSequenceClassification",)),
    "gemma3_text": replace(
        LLAMA, record=Gemma3Config, classes=("Gemma3TextForSequenceClassification",)
    ),
}
"""Every supported decoder by the `model_type` of its config."""
NORMED = ("qwen3", "gemma3_text")
"""Types with norms of queries and keys."""
SANDWICHED = ("gemma2", "gemma3_text")
"""Types with a norm behind each branch."""
DIVISIBLE = ("llama", *SANDWICHED)
"""Types of which the library wants a width that is a multiple of the number of queries."""


def weights(config: DecoderConfig, classes: int) -> Iterator[Weight]:
    """Yield all tensors of an unpruned classifier; without classes there is no classifier."""
    dim = config.hidden_size
    yield Weight("model.embed_tokens.weight", (config.vocab_size, dim), "embedding", "text")
    yield from stack("model.layers.{}", "text", config.num_hidden_layers, _layer(config))
    yield from norm("model.norm", dim, "readout", bias=False)
    if classes:
        yield from linear("score", classes, dim, "classifier", bias=False)


def _layer(config: DecoderConfig) -> Iterator[Weight]:
    dim, inner, kind = config.hidden_size, config.intermediate_size, config.model_type
    several = config.num_attention_heads // config.groups
    keys, queries = config.groups * config.width, config.num_attention_heads * config.width
    biased = config.attention_bias or kind == "qwen2"
    read = HeadAxis(0, queries=several)
    yield from norm("input_layernorm", dim, bias=False)
    yield from linear("self_attn.q_proj", queries, dim, "attention", bias=biased, heads=read)
    for name in ("self_attn.k_proj", "self_attn.v_proj"):
        yield from linear(name, keys, dim, "attention", bias=biased, heads=ROWS)
    if kind in NORMED:
        yield from norm("self_attn.q_norm", config.width, "attention", bias=False)
        yield from norm("self_attn.k_norm", config.width, "attention", bias=False)
    out = HeadAxis(1, queries=several)
    yield from linear(
        "self_attn.o_proj", dim, queries, "output", bias=config.attention_bias, heads=out
    )
    yield from norm("post_attention_layernorm", dim, bias=False)
    if kind in SANDWICHED:
        yield from norm("pre_feedforward_layernorm", dim, bias=False)
        yield from norm("post_feedforward_layernorm", dim, bias=False)
    for name in ("mlp.gate_proj", "mlp.up_proj"):
        yield from linear(name, inner, dim, "mlp", bias=config.mlp_bias, heads=ROWS)
    yield from linear("mlp.down_proj", dim, inner, "mlp", bias=config.mlp_bias, heads=HeadAxis(1))


GENERATES = "ForCausalLM"
"""Ending of the name of a class whose model has no classifier yet."""


class DecoderVariant(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.decoder.modules"
    # What tokenizer.json says is enough: Qwen's own class adds words.
    reader: ClassVar[str] = GENERIC

    def pools(self, config: EncoderConfig) -> bool:
        return True

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        names = config.get("architectures")
        generates = isinstance(names, list) and str(names[:1]).endswith(f"{GENERATES}']")
        super().check_config({**config, "architectures": None} if generates else config, where)
        check_rotation(config, where, ROTATIONS)
        usual = KINDS[str(config["model_type"])].record.model_fields["pad_token_id"].default
        if config.get("pad_token_id", usual) is None:
            raise CheckpointError(
                f"{where}: has no pad token, so it cannot tell the last token of a text, which a classifier reads",
                hint="Set pad_token_id in its config.json to the number of a token that no text ends with, and pad_token in its tokenizer_config.json to that token.",
            )

    def sizes_of(
        self, config: EncoderConfig, heads: int, width: int | None
    ) -> dict[str, Any] | None:
        assert isinstance(config, DecoderConfig)
        queries = heads * config.num_attention_heads // config.groups
        if config.model_type in DIVISIBLE and config.hidden_size % queries:
            return None
        return {
            "num_key_value_heads": heads,
            "num_attention_heads": queries,
            "head_dim": config.width,
            "intermediate_size": width or config.intermediate_size,
        }
