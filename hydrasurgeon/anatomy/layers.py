"""One model's layers, run from the parts that its anatomy names."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from hydrasurgeon.anatomy.parts import Attention, Block

__all__ = [
    "after_attention",
    "attend",
    "bias_of",
    "merge",
    "queries_keys_values",
    "run_block",
    "silent",
]

Hidden = Float[Tensor, "batch token embed"]


def run_block(
    block: Block, hidden: Hidden, bias: Tensor | None, tokens: int | None = None
) -> Hidden:
    """One layer of one model, from its parts; of its output only the first `tokens`, or all."""
    normed = block.norm1(hidden) if block.prenorm else hidden
    attended = attend(block.attention, normed, bias, tokens)
    return after_attention(block, hidden, attended)


def after_attention(block: Block, hidden: Hidden, attended: Hidden) -> Hidden:
    """The rest of a layer, from its input and its attention's output (which may have fewer tokens)."""
    hidden = hidden[:, : attended.shape[1]]
    if block.prenorm:
        hidden = hidden + block.scale1(attended)
        return hidden + block.scale2(block.mlp(block.norm2(hidden)))
    hidden = block.norm1(hidden + block.scale1(attended))
    return block.norm2(hidden + block.scale2(block.mlp(hidden)))


def attend(
    site: Attention, hidden: Hidden, bias: Tensor | None, tokens: int | None = None
) -> Hidden:
    """Multi-head attention of one site with the heads it has, from the first `tokens` or from all."""
    if not site.heads:
        return silent(site, hidden, tokens)
    shift = bias_of(bias, site.heads, tokens)
    q, k, v = queries_keys_values(site, hidden, tokens)
    return site.out(merge(scaled_dot_product_attention(q, k, v, attn_mask=shift, scale=site.scale)))


def silent(site: Attention, hidden: Hidden, tokens: int | None) -> Hidden:
    """What a layer without heads adds: its output bias, which belongs to no head."""
    nothing = 0 * hidden[:, :tokens]  # an exporter freezes the shape of zeros_like
    return nothing if site.out.bias is None else nothing + site.out.bias


def bias_of(bias: Tensor | None, heads: Sequence[int], tokens: int | None = None) -> Tensor | None:
    """The rows of these heads and tokens, where the bias differs between them."""
    if bias is None:
        return None
    bias = bias if bias.shape[1] == 1 else bias[:, list(heads)]
    return bias if bias.shape[2] == 1 else bias[:, :, :tokens]


def queries_keys_values(
    site: Attention, hidden: Hidden, tokens: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the first `tokens` (or all), keys and values of all, as [batch, head, token, head_dim]."""
    grouped = (len(site.heads), site.head_dim)
    if len(site.project) == 3:
        asked = (hidden[:, :tokens], hidden, hidden)
        q, k, v = (p(x).unflatten(-1, grouped) for p, x in zip(site.project, asked, strict=True))
    elif tokens is None:
        q, k, v = site.project[0](hidden).unflatten(-1, (3, *grouped)).unbind(-3)
    else:
        weight, shift = site.project[0].weight, site.project[0].bias
        width = len(site.heads) * site.head_dim
        first, rest = (None, None) if shift is None else (shift[:width], shift[width:])
        q = linear(hidden[:, :tokens], weight[:width], first).unflatten(-1, grouped)
        k, v = linear(hidden, weight[width:], rest).unflatten(-1, (2, *grouped)).unbind(-3)
    q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
    return site.q_norm(q), site.k_norm(k), v


def merge(heads: Float[Tensor, "batch head token head_dim"]) -> Hidden:
    return heads.transpose(-3, -2).flatten(-2)
