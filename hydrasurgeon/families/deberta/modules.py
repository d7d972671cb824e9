"""transformers' DeBERTa v2 and v3 with any number of heads in each layer, taken apart.

logits of head h from token i to token j at distance r (DeBERTa, equation 4):
    (q_i · k_j  +  q_i · P_K(r)  +  k_j · P_Q(r)) / √(head_dim · terms)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.layers import split_heads
from hydrasurgeon.anatomy.parts import Anatomy, Block, Stack
from hydrasurgeon.families.deberta.family import KIND
from hydrasurgeon.families.hf_encoder.modules import Encoder, attention_of, fields_of, padding
from hydrasurgeon.families.hf_encoder.modules import build as build
from hydrasurgeon.heads import positions


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    base = inner.deberta

    def embed(inputs: Any) -> Stack:
        fields = fields_of(inputs)
        mask = fields.get("attention_mask")
        hidden = base.embeddings(
            fields["input_ids"], token_type_ids=fields.get("token_type_ids"), mask=mask
        )
        return Stack(hidden, padding(mask, hidden))

    by_words = encoder.pooling is not None

    def readout(stack: Stack) -> Tensor:
        vector = stack.hidden if by_words else inner.pooler(stack.hidden)
        return inner.classifier(inner.dropout(vector))

    shared = [getattr(base.encoder, name, None) for name in ("rel_embeddings", "LayerNorm")]
    return Anatomy(
        embed=embed,
        embed_parts=(base.embeddings, *(part for part in shared if part is not None)),
        blocks=tuple(
            _block(layer, at, encoder.kept[at], base.encoder)
            for at, layer in enumerate(base.encoder.layer)
        ),
        readout=readout,
        readout_parts=(inner.classifier,) if by_words else (inner.pooler, inner.classifier),
        reads=None if by_words else 1,
    )


def _block(layer: Any, at: int, row: tuple[int, ...], encoder: Any) -> Block:
    attn, none = layer.attention.self, nn.Identity()
    terms = 1 + len({"c2p", "p2c"} & {*attn.pos_att_type})
    # The library takes this root in float32, whatever the weights are.
    scale = 1 / float(
        torch.tensor(float(attn.attention_head_size * terms), dtype=torch.float32).sqrt()
    )
    relative = (
        Distances(attn, encoder, row, scale) if attn.relative_attention and terms > 1 else None
    )
    site = attention_of(layer, KIND.tower, at, row, scale=scale, relative=relative)
    mlp = nn.Sequential(layer.intermediate, layer.output.dense)
    return Block(
        layer.attention.output.LayerNorm,
        site,
        none,
        layer.output.LayerNorm,
        mlp,
        none,
        prenorm=False,
    )


class Distances:
    """Comparison of a layer's queries and keys with the distance between two tokens."""

    def __init__(self, attn: Any, encoder: Any, heads: tuple[int, ...], scale: float) -> None:
        self.attn, self.encoder, self.heads, self.scale = attn, encoder, heads, scale
        shared = attn.share_att_key
        # A head's distances are projected by rows of its own, so that they go with it.
        self.keys = (
            (attn.key_proj if shared else attn.pos_key_proj) if "c2p" in attn.pos_att_type else None
        )
        self.queries = (
            (attn.query_proj if shared else attn.pos_query_proj)
            if "p2c" in attn.pos_att_type
            else None
        )

    def __call__(self, q: Tensor, k: Tensor, heads: Sequence[int]) -> Tensor:
        """Return [batch, head, token, token] for these heads and the queries of the leading tokens."""
        from transformers.models.deberta_v2.modeling_deberta_v2 import build_relative_position

        attn, half = self.attn, self.attn.pos_ebd_size
        apart = build_relative_position(q, k, attn.position_buckets, attn.max_relative_positions)
        rows = attn.pos_dropout(self.encoder.get_rel_embedding())[None, : 2 * half]
        at = (apart + half).clamp(0, 2 * half - 1)[None].expand(*q.shape[:3], k.shape[2])
        terms = []
        if self.keys is not None:
            terms.append((q @ self._heads(self.keys, rows, heads).mT).gather(-1, at))
        if self.queries is not None:
            terms.append((k @ self._heads(self.queries, rows, heads).mT).gather(-1, at.mT).mT)
        return sum(terms[1:], terms[0]) * self.scale

    def _heads(self, projection: nn.Module, rows: Tensor, heads: Sequence[int]) -> Tensor:
        (projected,) = split_heads(projection(rows), 1, self.attn.attention_head_size)
        return (
            projected if tuple(heads) == self.heads else projected[:, positions(self.heads, heads)]
        )
