"""ModernBERT with a classifier: transformers' files, layers of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.families.hf_encoder.architectures import (
    Activation,
    EncoderConfig,
    Epsilon,
    Kind,
    Spread,
    TextEncoder,
)
from hydrasurgeon.families.hf_encoder.family import HFVariant, check_rotation
from hydrasurgeon.families.settings import Chance, Count, Settings, Size
from hydrasurgeon.families.weights import GATED, OUT, PACKED, Weight, linear, norm
from hydrasurgeon.files.untrusted import must

GLOBAL, LOCAL = "full_attention", "sliding_attention"
"""Layers in which a token looks at all others (of a decoder: before it), and at its neighbours
only.
"""

LayerType = Literal["full_attention", "sliding_attention"]
# The wavelength of the slowest rotation, in tokens (divided by 2π).
Theta = Annotated[int | float, Field(ge=1, le=1e12)]


class ModernBertRotation(Settings):
    rope_type: Literal["default"] = "default"
    rope_theta: Theta | None = None


class ModernBertConfig(TextEncoder):
    model_type: Literal["modernbert"]
    vocab_size: Size = 50368
    hidden_size: Size = 768
    intermediate_size: Size = 1152
    num_hidden_layers: Size = 22
    hidden_act: Activation = Field("gelu", alias="hidden_activation")
    max_position_embeddings: Size = 8192
    initializer_cutoff_factor: Spread = 2.0
    pad_token_id: Count | None = 50283
    norm_eps: Epsilon = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    attention_dropout: Chance = 0.0
    embedding_dropout: Chance = 0.0
    mlp_bias: bool = False
    mlp_dropout: Chance = 0.0
    classifier_pooling: Literal["cls", "mean"] = "cls"
    classifier_dropout: Chance = 0.0
    classifier_bias: bool = False
    classifier_activation: Activation = "gelu"
    layer_types: list[LayerType] | None = None
    global_attn_every_n_layers: Size = 3
    local_attention: Annotated[Size, Field(ge=2)] = 128
    rope_parameters: dict[LayerType, ModernBertRotation | None] | None = None
    prediction_head: bool = False
    """True if a file without a classifier has the layers in front of one."""
    global_rope_theta: Theta = 160_000.0
    local_rope_theta: Theta = 10_000.0

    @model_validator(mode="after")
    def _fits_rotation(self) -> Self:
        odd, listed = self.tower.head_dim % 2, len(self.types)
        must(
            (not odd, "a head of an odd number of dimensions cannot be rotated"),
            (
                listed == self.num_hidden_layers,
                f"layer_types lists {listed} layers of {self.num_hidden_layers}",
            ),
        )
        return self

    @property
    def types(self) -> tuple[str, ...]:
        """GLOBAL or LOCAL, layer by layer."""
        if self.layer_types is not None:
            return tuple(self.layer_types)
        period = self.global_attn_every_n_layers
        return tuple(LOCAL if layer % period else GLOBAL for layer in range(self.num_hidden_layers))

    @property
    def thetas(self) -> dict[str, float]:
        """Wavelength (divided by 2π) of the slowest pair of dimensions, for each type of layer."""
        thetas = {GLOBAL: float(self.global_rope_theta), LOCAL: float(self.local_rope_theta)}
        recorded = (self.rope_parameters or {}).items()
        return thetas | {
            kind: float(one.rope_theta)
            for kind, one in recorded
            if one and one.rope_theta is not None
        }


KIND = Kind(
    ModernBertConfig,
    "model",
    "text",
    ("ModernBertForSequenceClassification",),
    of_words="ModernBertForTokenClassification",
    word_head=True,
    classifier=(("head.dense", "dim"), ("classifier", "classes")),
)
"""Names of its modules."""


def weights(config: ModernBertConfig, classes: int) -> Iterator[Weight]:
    """Yield all tensors of an unpruned classifier; without classes there is no classifier."""
    dim, biased = config.hidden_size, config.norm_bias
    words = Weight("tok_embeddings.weight", (config.vocab_size, dim), "embedding")
    for weight in (words, *norm("norm", dim, "embedding", bias=biased)):
        yield weight.within("model.embeddings", "text")
    for layer in range(config.num_hidden_layers):
        for weight in _layer(config, layer):
            yield weight.within(f"model.layers.{layer}", "text", layer)
    yield from norm("model.final_norm", dim, "readout", bias=biased)
    if classes or config.prediction_head:
        yield from linear("head.dense", dim, dim, "readout", bias=config.classifier_bias)
        yield from norm("head.norm", dim, "readout", bias=biased)
    if classes:
        yield from linear("classifier", classes, dim, "classifier")


def _layer(config: ModernBertConfig, layer: int) -> Iterator[Weight]:
    dim, inner = config.hidden_size, config.intermediate_size
    if layer > 0:  # the embeddings end with a norm
        yield from norm("attn_norm", dim, bias=config.norm_bias)
    yield from linear(
        "attn.Wqkv", 3 * dim, dim, "attention", bias=config.attention_bias, heads=PACKED
    )
    yield from linear("attn.Wo", dim, dim, "output", bias=config.attention_bias, heads=OUT)
    yield from norm("mlp_norm", dim, bias=config.norm_bias)
    # The gate lies behind what it opens.
    yield from linear("mlp.Wi", 2 * inner, dim, "mlp", bias=config.mlp_bias, heads=GATED)
    yield from linear("mlp.Wo", dim, inner, "mlp", bias=config.mlp_bias, heads=OUT)


class ModernBert(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = {"modernbert": KIND}
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.modernbert.modules"

    def pools(self, config: EncoderConfig) -> bool:
        return True

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        check_rotation(config, where, ("default",))

    def unclassified(self, config: EncoderConfig, names: Collection[str]) -> EncoderConfig:
        if "head.dense.weight" in names and "head.norm.weight" in names:
            return config.model_copy(update={"prediction_head": True})
        return config
