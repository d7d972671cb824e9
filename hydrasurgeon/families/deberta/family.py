"""DeBERTa v2 and v3 with a classifier: transformers' files, attention of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.hf_encoder.architectures import Activation, Epsilon, Kind, TextEncoder
from hydrasurgeon.families.hf_encoder.family import HFVariant
from hydrasurgeon.families.settings import Chance, Count, Size
from hydrasurgeon.families.weights import OUT, ROWS, Weight, linear, norm, stack
from hydrasurgeon.files.untrusted import must

# What meets a distance in attention: c2p a query, p2c a key; older files join them by a bar.
Compared = (
    Annotated[str, Field(pattern=r"^ *(c2p|p2c)( *\| *(c2p|p2c))* *$")]
    | list[Literal["c2p", "p2c"]]
)
# A number of distances, or that there is no such bound.
Bound = Annotated[int, Field(ge=-1, le=1 << 16)]


class DebertaV2Config(TextEncoder):
    model_type: Literal["deberta-v2"]
    vocab_size: Size = 128100
    hidden_size: Size = 1536
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 24
    intermediate_size: Size = 6144
    layer_norm_eps: Epsilon = 1e-7
    type_vocab_size: Count = 0
    embedding_size: Size | None = None
    position_biased_input: bool = True
    relative_attention: bool = False
    pos_att_type: Compared | None = None
    share_att_key: bool = False
    max_relative_positions: Bound = -1
    position_buckets: Bound = -1
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    pooler_dropout: Chance = 0.0
    pooler_hidden_act: Activation = "gelu"
    cls_dropout: Chance | None = None

    @model_validator(mode="after")
    def _fits_distances(self) -> Self:
        half = self.position_buckets // 2
        fits = self.position_buckets <= 0 or 1 < half < self.farthest - 1
        setting = f"position_buckets {self.position_buckets}"
        must((fits, f"{setting} do not divide {self.farthest} distances"))
        return self

    @property
    def compared(self) -> frozenset[str]:
        """Terms of attention that compare distances: c2p and p2c."""
        terms = self.pos_att_type or []
        return frozenset(terms.replace(" ", "").split("|") if isinstance(terms, str) else terms)

    @property
    def farthest(self) -> int:
        """Largest distance, in tokens, that still has a place of its own."""
        return (
            self.max_relative_positions
            if self.max_relative_positions > 0
            else self.max_position_embeddings
        )

    @property
    def distances(self) -> int:
        """The rows of the table of distances: as many ahead as behind."""
        return 2 * (self.position_buckets if self.position_buckets > 0 else self.farthest)


KIND = Kind(
    DebertaV2Config,
    "deberta",
    "text",
    ("DebertaV2ForSequenceClassification",),
    of_words="DebertaV2ForTokenClassification",
    classifier=(("pooler.dense", "dim"), ("classifier", "classes")),
    weights_dropout=("attention.self.dropout", "attention.self.pos_dropout"),
)
"""Names of its modules."""


def weights(config: DebertaV2Config, classes: int) -> Iterator[Weight]:
    """Yield all tensors of an unpruned classifier; without classes there is no classifier."""
    dim = config.hidden_size
    for weight in _embedding(config):
        yield weight.within("deberta", "text")
    layers = config.num_hidden_layers
    yield from stack("deberta.encoder.layer.{}", "text", layers, _layer(config))
    if classes:
        yield from linear("pooler.dense", dim, dim, "classifier")
        yield from linear("classifier", classes, dim, "classifier")


def _embedding(config: DebertaV2Config) -> Iterator[Weight]:
    """Yield the embeddings of words, and of the distances that all layers share."""
    dim, width = config.hidden_size, config.embedding_size or config.hidden_size
    yield Weight("embeddings.word_embeddings.weight", (config.vocab_size, width), "embedding")
    if config.position_biased_input:
        yield Weight(
            "embeddings.position_embeddings.weight",
            (config.max_position_embeddings, width),
            "embedding",
        )
    if config.type_vocab_size:
        yield Weight(
            "embeddings.token_type_embeddings.weight", (config.type_vocab_size, width), "embedding"
        )
    if width != dim:
        yield Weight("embeddings.embed_proj.weight", (dim, width), "embedding")
    yield from norm("embeddings.LayerNorm", dim, "embedding")
    if config.relative_attention:
        yield Weight("encoder.rel_embeddings.weight", (config.distances, dim), "embedding")
    if config.norm_rel_ebd == "layer_norm":
        yield from norm("encoder.LayerNorm", dim, "embedding")


def _layer(config: DebertaV2Config) -> Iterator[Weight]:
    dim, inner = config.hidden_size, config.intermediate_size
    names = ["query_proj", "key_proj", "value_proj"]
    if config.relative_attention and not config.share_att_key:
        names += ["pos_key_proj"] * ("c2p" in config.compared) + ["pos_query_proj"] * (
            "p2c" in config.compared
        )
    for name in names:
        yield from linear(f"attention.self.{name}", dim, dim, "attention", heads=ROWS)
    yield from linear("attention.output.dense", dim, dim, "output", heads=OUT)
    yield from norm("attention.output.LayerNorm", dim, "attention")
    yield from linear("intermediate.dense", inner, dim, "mlp", heads=ROWS)
    yield from linear("output.dense", dim, inner, "mlp", heads=OUT)
    yield from norm("output.LayerNorm", dim)


class DebertaV2(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = {"deberta-v2": KIND}  # version 3 has this type too
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.deberta.modules"

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        kernel = config.get("conv_kernel_size")
        if kernel not in (None, 0):
            reason = (
                f"has a convolution beside its first layer (conv_kernel_size={str(kernel)[:60]})"
            )
            raise SurgeryError(
                f"{where}: {reason}, which is not supported",
                hint="The nearest is a DeBERTa without it, such as hf:microsoft/deberta-v3-base.",
            )
