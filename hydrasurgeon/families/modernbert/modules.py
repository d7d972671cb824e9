"""transformers' ModernBERT with any number of heads in each layer, taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.maps import real_tokens
from hydrasurgeon.anatomy.parts import Anatomy, Block, Stack
from hydrasurgeon.anatomy.word_logits import WORDS
from hydrasurgeon.families.hf_encoder.modeling_hydrasurgeon import pool
from hydrasurgeon.families.hf_encoder.modules import (
    Encoder,
    Features,
    attention_of,
    encoder_of,
    fields_of,
    library_config,
    padding,
    pooled_logits,
    reads_pooled,
    stock_model,
)
from hydrasurgeon.families.modernbert.family import KIND, LOCAL, ModernBertConfig
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.lookup import imported

if TYPE_CHECKING:
    from hydrasurgeon.families.modernbert.family import ModernBert
    from hydrasurgeon.heads import Kept


def build(family: ModernBert, model: Model, kept: Kept, *, fresh: bool) -> Encoder:
    config: Any = family.config(model)
    stock = library_config(model, config)
    stock.reference_compile = False  # transformers before 5.2 compiles parts on its own
    inner = stock_model(model, KIND, stock, fresh=fresh)
    inner.model.rotary_emb = ModernBertAngles(config)
    if not reads_pooled(inner, model, config, fresh=fresh) and not model.num_classes:
        inner.classifier = Features()
        if not config.prediction_head:
            inner.head = nn.Identity()
    return encoder_of(inner, model, config, kept)


class ModernBertAngles(nn.Module):
    """Rotation angles of each pair of dimensions at each position.

    They stay in float32 whatever the weights are rounded to.
    """

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.thetas = config.thetas
        self.head_dim = config.hidden_size // config.num_attention_heads

    def forward(self, x: Tensor, positions: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        """Return cos and sin for every dimension, in the dtype of `x`."""
        pairs = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=x.device)
        speeds = 1.0 / self.thetas[layer_type] ** (pairs / self.head_dim)
        angles = positions[..., None].float() * speeds
        angles_twice = torch.cat((angles, angles), dim=-1)
        return angles_twice.cos().to(x.dtype), angles_twice.sin().to(x.dtype)


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    base, pooling = inner.model, inner.config.classifier_pooling

    def embed(inputs: Any) -> Stack:
        fields = fields_of(inputs)
        hidden = base.embeddings(fields["input_ids"])
        return Stack(hidden, padding(fields.get("attention_mask"), hidden))

    def block(at: int, layer: Any) -> Block:
        bias, none = None, nn.Identity()
        if layer.attention_type == LOCAL:
            bias = window(lambda apart: apart.abs() > inner.config.local_attention // 2)
        rotate = rotation(base, layer.attention_type)
        site = attention_of(layer, KIND.tower, at, encoder.kept[at], rotate=rotate, bias=bias)
        out_drop = layer.attn.out_drop
        return Block(layer.attn_norm, site, out_drop, layer.mlp_norm, layer.mlp, none)

    def readout(stack: Stack) -> Tensor:
        tokens = base.final_norm(stack.hidden)
        vector = tokens
        if encoder.pooling is None:
            vector = pool(tokens, real_tokens(stack), pooling, normalize=False)
        elif encoder.pooling["mode"] != WORDS:
            return pooled_logits(inner, encoder.pooling, replace(stack, hidden=tokens))
        return inner.classifier(inner.drop(inner.head(vector)))

    parts: tuple[nn.Module, ...] = (base.final_norm, inner.head, inner.classifier)
    if encoder.pooling is not None:
        pooling = encoder.pooling["mode"]
        parts = parts if pooling == WORDS else (base.final_norm, inner.classifier)

    return Anatomy(
        embed=embed,
        embed_parts=(base.embeddings,),
        blocks=tuple(block(at, layer) for at, layer in enumerate(base.layers)),
        readout=readout,
        readout_parts=parts,
        reads=1 if pooling == "cls" else None,
    )


def rotation(
    base: Any, layer_type: str | None, of: str = "modernbert"
) -> Callable[[Tensor], Tensor]:
    """Return the function that rotates a layer's queries and keys, as models `of` a type do."""
    apply = imported(f"transformers.models.{of}.modeling_{of}:apply_rotary_pos_emb")

    def rotate(heads: Tensor) -> Tensor:
        positions = counted(heads[0, 0, :, 0])[None]
        cos, sin = base.rotary_emb(heads, positions, layer_type)
        # It turns two at once: the second has no heads here.
        return apply(heads, heads[:, :0], cos, sin)[0]

    return rotate


def counted(numbers: Tensor) -> Tensor:
    """Return 0, 1, 2, … for as many numbers as there are.

    An exporter would freeze a length that the code reads.
    """
    one = numbers.isnan()
    return (one | ~one).float().cumsum(0) - 1


def window(far: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that gives the bias which hides distant tokens.

    `far` reads how many places a token stands before the one that looks.
    """

    def hide(hidden: Tensor) -> Tensor:
        places = counted(hidden[0, :, 0])
        hidden_ones = far(places[:, None] - places).to(hidden.dtype)
        return (hidden_ones * torch.finfo(hidden.dtype).min)[None, None]

    return hide
