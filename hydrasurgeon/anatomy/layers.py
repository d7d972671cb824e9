"""The transformer layer, from the parts that an anatomy names: for one model here, for many in the
runtime.

pre-norm:   y = x + scale1(attention(norm1(x)));   out = y + scale2(mlp(norm2(y)))   (scales may be
norms too) post-norm:  y = norm1(x + scale1(attention(x)));   out = norm2(y + scale2(mlp(y)))

`parts` are a `Block`, or what has its parts for all members at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block

Hidden = Float[Tensor, "*batch token embed"]
Heads = Float[Tensor, "*batch head token head_dim"]


def run(anatomy: Anatomy, inputs: Any) -> Float[Tensor, "batch klass"]:
    """Run a whole model, part by part."""
    stack = anatomy.embed(inputs)
    hidden = stack.hidden
    for block in anatomy.blocks:
        hidden = run_block(block, hidden, stack.bias)
    return anatomy.readout(replace(stack, hidden=hidden))


def run_block(
    block: Block, hidden: Hidden, bias: Tensor | None, tokens: int | None = None
) -> Hidden:
    """Run one layer; compute only the first `tokens` of its output, or all."""
    attended = attend(block.attention, attention_input(block, hidden), bias, tokens)
    return after_attention(block, hidden, attended)


def attention_input(parts: Any, hidden: Hidden) -> Hidden:
    """Return the input of a layer's attention."""
    normed: Hidden = parts.norm1(hidden) if parts.prenorm else hidden
    return normed


def after_attention(parts: Any, hidden: Hidden, attended: Hidden) -> Hidden:
    """Run the rest of a layer, from its input and its attention's output, which may have fewer tokens."""
    if (
        attended.shape[-2] != hidden.shape[-2]
    ):  # always to slice would freeze the length in an exported file
        hidden = hidden[..., : attended.shape[-2], :]
    summed = hidden + parts.scale1(attended)
    return mlp_half(parts, summed if parts.prenorm else parts.norm1(summed))


def attention_half(block: Block, hidden: Hidden, bias: Tensor | None) -> Hidden:
    """Run a layer's first residual branch, and the norm behind it if there is one."""
    summed = hidden + block.scale1(attend(block.attention, attention_input(block, hidden), bias))
    return summed if block.prenorm else block.norm1(summed)


def mlp_half(parts: Any, hidden: Hidden) -> Hidden:
    """Run a layer's second residual branch, and the norm behind it if there is one."""
    if parts.prenorm:
        done: Hidden = hidden + parts.scale2(parts.mlp(parts.norm2(hidden)))
        return done
    done = parts.norm2(hidden + parts.scale2(parts.mlp(hidden)))
    return done


def attend(
    site: Attention, hidden: Hidden, bias: Tensor | None, tokens: int | None = None
) -> Hidden:
    """Run multi-head attention with the heads of one site, for the first `tokens` or for all."""
    if not site.heads:
        return silent(site, hidden, tokens)
    q, k, v = queries_keys_values(site, hidden, tokens)
    mask = related(site, layer_bias(site, hidden, bias, site.heads, tokens), q, k, site.heads)
    return site.out(merge(mixed(site, q, k, v, mask)))


def mixed(site: Attention, q: Heads, k: Heads, v: Heads, mask: Tensor | None) -> Heads:
    """Compute softmax(q kᵀ·scale + mask) v for each head, its queries side by side."""
    k, v = shared(site, k), shared(site, v)
    if site.softcap is None:
        return side_by_side(
            site, scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=site.scale)
        )
    logits = capped(site, q @ k.transpose(-1, -2) * site.scale)
    logits = logits if mask is None else logits + mask
    return side_by_side(site, logits.softmax(dim=-1) @ v)


def shared(site: Attention, keys: Heads) -> Heads:
    """Repeat keys or values for each query that shares them."""
    if site.queries == 1:
        return keys
    stacked = keys.unsqueeze(-3)
    return stacked.expand(*stacked.shape[:-3], site.queries, *stacked.shape[-2:]).flatten(-4, -3)


def side_by_side(site: Attention, heads: Heads) -> Heads:
    """Reshape […, head × query, token, head_dim] to […, head, token, width]."""
    if site.queries == 1:
        return heads
    return heads.unflatten(-3, (-1, site.queries)).transpose(-3, -2).flatten(-2)


def capped(site: Attention, logits: Tensor) -> Tensor:
    return logits if site.softcap is None else site.softcap * torch.tanh(logits / site.softcap)


def silent(site: Attention, hidden: Hidden, tokens: int | None) -> Hidden:
    """Return the output of a layer without heads: its output bias, which belongs to no head."""
    nothing = 0 * hidden[:, :tokens]  # an exporter freezes the shape of zeros_like
    return nothing if site.out.bias is None else nothing + site.out.bias


def layer_bias(
    site: Attention,
    hidden: Hidden,
    bias: Tensor | None,
    heads: Sequence[int],
    tokens: int | None = None,
) -> Tensor | None:
    """Return the sum of the stack's bias and the layer's, for the attention logits of these heads and tokens."""
    if site.bias is not None:
        shift = site.bias(hidden)
        # The sum of two masks must not overflow to -inf: a row of those would be NaN after softmax.
        bias = (
            shift if bias is None else torch.clamp(bias + shift, min=torch.finfo(shift.dtype).min)
        )
    if bias is None:
        return None
    bias = bias if bias.shape[1] == 1 else bias[:, list(heads)]
    return bias if bias.shape[2] == 1 else bias[:, :, :tokens]


def related(
    site: Attention, bias: Tensor | None, q: Heads, k: Heads, heads: Sequence[int]
) -> Tensor | None:
    """Add the relative-position term of these heads to `bias`, if the model has one."""
    if site.relative is None:
        return bias
    relative = site.relative(q, k, heads)
    return relative if bias is None else relative + bias


def queries_keys_values(
    site: Attention, hidden: Hidden, tokens: int | None = None
) -> tuple[Heads, Heads, Heads]:
    """Project to queries of the first `tokens` (or all), and to keys and values of all."""
    inputs = (hidden if tokens is None else hidden[:, :tokens], hidden, hidden)
    if len(site.project) == 3:
        projections = [(p(x), 1) for p, x in zip(site.project, inputs, strict=True)]
    elif tokens is None:
        projections = [(site.project[0](hidden), 3)]
    else:
        weight, shift = site.project[0].weight, site.project[0].bias
        width = len(site.heads) * site.head_dim
        first, rest = (None, None) if shift is None else (shift[:width], shift[width:])
        projections = [
            (linear(inputs[0], weight[:width], first), 1),
            (linear(hidden, weight[width:], rest), 2),
        ]
    q, k, v = (
        part
        for projected, parts in projections
        for part in split_heads(projected, parts, site.head_dim)
    )
    return *placed(site, site.q_norm(q), site.k_norm(k)), v


def split_heads(projected: Hidden, parts: int, head_dim: int) -> tuple[Heads, ...]:
    """Split a projection's output into its packed `parts` (q, k, v), each [batch, head, token, head_dim]."""
    pieces = [projected]
    if parts > 1:  # an exporter would write a split into one
        pieces = [*projected.chunk(parts, dim=-1)]
    return tuple(part.unflatten(-1, (-1, head_dim)).transpose(-3, -2) for part in pieces)


def placed(site: Attention, q: Heads, k: Heads) -> tuple[Heads, Heads]:
    """Rotate queries and keys by their positions, if the model has rotary positions."""
    return (q, k) if site.rotate is None else (site.rotate(q), site.rotate(k))


def merge(heads: Heads) -> Hidden:
    return heads.transpose(-3, -2).flatten(-2)
