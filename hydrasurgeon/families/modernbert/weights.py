"""ModernBERT's tensors as `save_pretrained` of the classifier writes them, without torch."""

from __future__ import annotations

from collections.abc import Iterator

from hydrasurgeon.families.hf_encoder.architectures import Kind
from hydrasurgeon.families.modernbert.configs import ModernBertConfig
from hydrasurgeon.families.weights import GATED, OUT, PACKED, Weight, linear, norm

KIND = Kind(
    ModernBertConfig,
    "model",
    "text",
    ("ModernBertForSequenceClassification",),
    classifier=(("head.dense", "dim"), ("classifier", "classes")),
)
"""What its modules are called."""


def weights(config: ModernBertConfig, classes: int) -> Iterator[Weight]:
    """All tensors of an unpruned classifier; without a classifier where there are no classes."""
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
    yield from linear("attn.Wqkv", 3 * dim, dim, "attention", bias=config.attention_bias, heads=PACKED)
    yield from linear("attn.Wo", dim, dim, "output", bias=config.attention_bias, heads=OUT)
    yield from norm("mlp_norm", dim, bias=config.norm_bias)
    # The gate lies behind what it opens.
    yield from linear("mlp.Wi", 2 * inner, dim, "mlp", bias=config.mlp_bias, heads=GATED)
    yield from linear("mlp.Wo", dim, inner, "mlp", bias=config.mlp_bias, heads=OUT)
