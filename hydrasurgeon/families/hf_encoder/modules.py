"""transformers' modules with any number of heads in each layer, taken apart for surgery and the
fused runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.construction import construction
from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.anatomy.word_logits import WORDS, of_words
from hydrasurgeon.families.disk_names import DiskNamed
from hydrasurgeon.families.hf_encoder.architectures import (
    KINDS,
    UNCLASSIFIED,
    EncoderConfig,
    Kind,
    class_name,
    has_pooler,
)
from hydrasurgeon.families.hf_encoder.companions import quietly
from hydrasurgeon.families.hf_encoder.modeling_hydrasurgeon import (
    attention_site,
    classified,
    classify_pooled,
    encoder_layers,
    pool,
    shrink,
)
from hydrasurgeon.files.manifest import OF_WORDS, Model, Pooling

if TYPE_CHECKING:
    from hydrasurgeon.families.hf_encoder.family import HFEncoder
    from hydrasurgeon.heads import Kept

# Memory → disk, where version 5 renamed modules; names that already are the disk's pass unchanged.
RENAMES = {
    "vit": (
        (r"^(vit|deit)\.layers\.(\d+)\.", r"\1.encoder.layer.\2."),
        (r"\.mlp\.fc1\.", r".intermediate.dense."),
        (r"\.mlp\.fc2\.", r".output.dense."),
    ),
    "attention": (
        (r"\.attention\.q_proj\.", r".attention.attention.query."),
        (r"\.attention\.k_proj\.", r".attention.attention.key."),
        (r"\.attention\.v_proj\.", r".attention.attention.value."),
        (r"\.attention\.o_proj\.", r".attention.output.dense."),
    ),
}


DINOV2 = ("dinov2", "dinov2_with_registers")
"""Types whose modules are DINOv2's."""


class Encoder(DiskNamed):
    """A classification model that answers with logits, and calls its parameters what files call
    them.
    """

    def __init__(
        self,
        model: nn.Module,
        kind: str,
        kept: Sequence[Sequence[int]],
        pooling: Pooling | None = None,
    ) -> None:
        super().__init__()
        self.pooling = None if pooling is None else pooling.model_dump()
        self.model = model
        self.kind = kind
        self.kept = tuple(tuple(row) for row in kept)

    def forward(self, inputs: Any) -> Tensor:
        fields = dict(inputs) if isinstance(inputs, Mapping) else {"input_ids": inputs}
        places = fields.pop(WORDS, None)
        if self.pooling is not None and self.pooling["mode"] != WORDS:
            return classified(self.model, self.pooling, fields)
        output = self.model(**fields) if isinstance(inputs, Mapping) else self.model(inputs)
        logits: Tensor = output.logits
        return logits if places is None else of_words(logits, places)

    def disk_name(self, name: str) -> str:
        """Map a parameter's name in the module to that in files.

        `model.vit.layers.0.…` → `vit.encoder.layer.0.…`
        """
        name = name.removeprefix("model.")
        if self.kind in ("vit", "deit", *DINOV2):
            rules = RENAMES["attention"] + (RENAMES["vit"] if self.kind not in DINOV2 else ())
            for pattern, replacement in rules:
                name = re.sub(pattern, replacement, name)
        return name


def build(family: HFEncoder, model: Model, kept: Kept, *, fresh: bool) -> Encoder:
    """Build the library's model with the kept heads of each layer."""
    config, kind = family.config(model), family.kind(model)
    inner = stock_model(model, kind, library_config(model, config), fresh=fresh)
    if not reads_pooled(inner, model, config, fresh=fresh) and not model.num_classes:
        _behead(inner, config, kind)
    real_buffers(inner)
    return encoder_of(inner, model, config, kept)


def encoder_of(
    inner: Any,
    model: Model,
    config: EncoderConfig,
    kept: Kept,
    module_type: type[Encoder] = Encoder,
) -> Encoder:
    """Return the library's model with room for the kept heads of each layer."""
    rows = kept["vision" if "vision" in kept else "text"]
    for layer, row in zip(encoder_layers(inner), rows, strict=True):
        shrink(attention_site(layer), row)
    return module_type(inner, config.model_type, rows, model.pooling)


def reads_pooled(inner: Any, model: Model, config: EncoderConfig, *, fresh: bool) -> bool:
    """Replace the classifier if pooled tokens are read; return True if they are.

    One layer then reads them, or none without classes.
    """
    if model.pooling in (None, OF_WORDS):
        return False
    classifier: nn.Module = Features()
    if model.num_classes:
        with torch.device("cpu" if fresh else "meta"):
            classifier = nn.Linear(config.hidden_size, model.num_classes)
        if fresh:
            nn.init.normal_(classifier.weight, std=config.initializer_range)
            nn.init.zeros_(classifier.bias)
    classify_pooled(inner, classifier)
    return True


def stock_model(model: Model, kind: Kind, config: Any, *, fresh: bool) -> Any:
    """Build the library's own unpruned model; draw its weights only if none will be loaded."""
    import transformers

    with construction(fresh=fresh):
        return getattr(transformers, class_name(kind, model))(config)


def library_config(model: Model, config: EncoderConfig) -> Any:
    """Return transformers' own record of a model."""
    from transformers import AutoConfig

    settings = {key: value for key, value in config.library().items() if key not in UNCLASSIFIED}
    labels = dict(enumerate(model.labels or ()))
    with quietly():
        library_record = AutoConfig.for_model(settings.pop("model_type"), **settings)
    library_record.num_labels = max(1, model.num_classes)
    if labels:
        library_record.id2label, library_record.label2id = (
            labels,
            {label: i for i, label in labels.items()},
        )
    return library_record


class Features(nn.Module):
    """Replacement of a missing classifier: the first token's features, or pooled ones unchanged."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[:, 0] if hidden.dim() == 3 else hidden


def _behead(inner: Any, config: EncoderConfig, kind: Kind) -> None:
    for name in (
        "classifier",
        "pre_classifier",
        "cls_classifier",
        "distillation_classifier",
        "pooler",
    ):
        if hasattr(inner, name):
            setattr(inner, name, Features())
    base = getattr(inner, kind.prefix)
    if getattr(base, "pooler", None) is not None and not has_pooler(config, kind):
        base.pooler = Features()


def real_buffers(inner: nn.Module) -> None:
    """Create position ids off the meta device: they are no weights, so no file brings them."""
    for part in inner.modules():
        for name, buffer in list(part.named_buffers(recurse=False)):
            if buffer.is_meta:
                value = torch.zeros(buffer.shape, dtype=buffer.dtype)
                if name == "position_ids":
                    value = torch.arange(buffer.shape[-1]).expand(buffer.shape)
                part.register_buffer(name, value, persistent=False)


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    kind = encoder.kind
    base = getattr(inner, KINDS[kind].prefix)
    embed, embed_parts = _embedding(base, kind)
    pooling = encoder.pooling
    if pooling is None:
        read, readout_parts = _reader(inner, base, kind)
        # DINOv2 also averages the patches; DeiT may have a distillation token beside the class
        # token.
        reads = None if kind in DINOV2 else 2 if kind == "deit" else 1
    else:
        readout_parts = (inner.classifier,)
        reads = 1 if pooling["mode"] == "cls" else None

    def readout(stack: Stack) -> Tensor:
        return read(stack.hidden) if pooling is None else pooled_logits(inner, pooling, stack)

    return Anatomy(
        embed=embed,
        embed_parts=embed_parts,
        blocks=tuple(
            _block(layer, kind, i, encoder.kept[i]) for i, layer in enumerate(encoder_layers(inner))
        ),
        readout=readout,
        readout_parts=readout_parts,
        reads=reads,
    )


def pooled_logits(inner: Any, pooling: Mapping[str, Any], stack: Stack) -> Tensor:
    """Return the logits for the last layer's tokens."""
    vector = stack.hidden
    if pooling["mode"] != WORDS:
        vector = pool(vector, real_tokens(stack), pooling["mode"], pooling["normalize"])
    return inner.classifier(vector)


def _embedding(base: Any, kind: str) -> tuple[Callable[[Any], Stack], tuple[nn.Module, ...]]:
    if KINDS[kind].tower == "vision":

        def see(inputs: Any) -> Stack:
            pixels = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
            return Stack(base.embeddings(pixels))

        return see, (base.embeddings,)
    project = getattr(base, "embeddings_project", None)

    def read(inputs: Any) -> Stack:
        fields = fields_of(inputs)
        ids, mask = fields["input_ids"], fields.get("attention_mask")
        kinds = {"token_type_ids": fields["token_type_ids"]} if "token_type_ids" in fields else {}
        hidden = base.embeddings(input_ids=ids, **kinds)
        hidden = hidden if project is None else project(hidden)
        bias = padding(mask, hidden)
        if kind == "mpnet":
            places = base.encoder.compute_position_bias(hidden)
            # The sum must not overflow to -inf: a row of those would be NaN after softmax.
            bias = (
                places
                if bias is None
                else torch.clamp(places + bias, min=torch.finfo(hidden.dtype).min)
            )
        return Stack(hidden, bias)

    parts = [
        base.embeddings,
        project,
        base.encoder.relative_attention_bias if kind == "mpnet" else None,
    ]
    return read, tuple(part for part in parts if part is not None)


def fields_of(inputs: Any) -> Mapping[str, Tensor]:
    """Return a tokenizer's outputs by name; token ids alone get their name."""
    return inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}


def padding(mask: Tensor | None, hidden: Tensor) -> Tensor | None:
    """Return the bias that hides padding, from an attention mask of ones and zeros."""
    if mask is None:
        return None
    return (1 - mask[:, None, None].to(hidden.dtype)) * torch.finfo(hidden.dtype).min


def _reader(
    inner: Any, base: Any, kind: str
) -> tuple[Callable[[Tensor], Tensor], tuple[nn.Module, ...]]:
    """Return final norm, pooling and classifier as one function, and their parts."""
    if kind == "bert":
        return lambda hidden: inner.classifier(base.pooler(hidden)), (base.pooler, inner.classifier)
    if kind == "distilbert":
        parts = (inner.pre_classifier, inner.classifier)
        return lambda hidden: parts[1](torch.relu(parts[0](hidden[:, 0]))), parts
    if KINDS[kind].tower == "text":
        return inner.classifier, (inner.classifier,)
    if kind in DINOV2:
        first = 1 + getattr(inner.config, "num_register_tokens", 0)

        def read_all(hidden: Tensor) -> Tensor:
            tokens = base.layernorm(hidden)
            return inner.classifier(torch.cat([tokens[:, 0], tokens[:, first:].mean(dim=1)], dim=1))

        return read_all, (base.layernorm, inner.classifier)
    if hasattr(inner, "cls_classifier"):

        def mean(hidden: Tensor) -> Tensor:
            tokens = base.layernorm(hidden)
            distilled: Tensor = inner.distillation_classifier(tokens[:, 1])
            return (inner.cls_classifier(tokens[:, 0]) + distilled) / 2

        return mean, (base.layernorm, inner.cls_classifier, inner.distillation_classifier)
    return lambda hidden: inner.classifier(base.layernorm(hidden)[:, 0]), (
        base.layernorm,
        inner.classifier,
    )


def attention_of(
    layer: Any,
    tower: str,
    number: int,
    row: tuple[int, ...],
    *,
    scale: float | None = None,
    **more: Any,
) -> Attention:
    """Return a layer's heads, with their projections as the library has them."""
    parts = attention_site(layer)
    return Attention(
        tower=tower,
        layer=number,
        heads=row,
        head_dim=parts.head_dim,
        project=parts.project,
        out=parts.out,
        scale=parts.head_dim**-0.5 if scale is None else scale,
        **more,
    )


def _block(layer: Any, kind: str, number: int, row: tuple[int, ...]) -> Block:
    none = nn.Identity()
    site = attention_of(layer, KINDS[kind].tower, number, row)
    if kind == "distilbert":
        return Block(
            layer.sa_layer_norm, site, none, layer.output_layer_norm, layer.ffn, none, prenorm=False
        )
    if KINDS[kind].tower == "text":
        attended = layer.attention if kind == "mpnet" else layer.attention.output
        mlp = nn.Sequential(layer.intermediate, layer.output.dense)
        return Block(
            attended.LayerNorm, site, none, layer.output.LayerNorm, mlp, none, prenorm=False
        )
    if kind in DINOV2:
        return Block(
            layer.norm1, site, layer.layer_scale1, layer.norm2, layer.mlp, layer.layer_scale2
        )
    # transformers before 5.9 keeps the MLP in two modules.
    mlp = (
        layer.mlp
        if hasattr(layer, "mlp")
        else nn.Sequential(layer.intermediate, layer.output.dense)
    )
    return Block(layer.layernorm_before, site, none, layer.layernorm_after, mlp, none)
