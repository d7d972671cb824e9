"""What one layer's attention saw: which tokens are real, and the map of every head, softmax(q kᵀ·scale + bias)."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, ones

from hydrasurgeon.anatomy.layers import layer_bias, queries_keys_values
from hydrasurgeon.anatomy.parts import Attention, Stack

# Masks are -inf or the lowest number of some dtype (float16: -65504); position tables stay far above this.
HIDDEN_BELOW = -1e4


def real_tokens(stack: Stack) -> Bool[Tensor, "batch token"]:
    """The tokens that at least one query may look at: all but the padding."""
    batch, tokens = stack.hidden.shape[:2]
    if stack.bias is None:
        return ones(batch, tokens, dtype=stack.hidden.bool().dtype, device=stack.hidden.device)
    seen = stack.bias if stack.bias.dtype == stack.bias.bool().dtype else stack.bias > HIDDEN_BELOW
    return seen.flatten(1, 2).any(dim=1).expand(batch, tokens)


def attention_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch head token token"]:
    """Who looks at whom, in float32; `hidden` is what the site is given."""
    q, k, _ = queries_keys_values(site, hidden)
    logits = (q.float() @ k.float().transpose(-1, -2)) * site.scale
    mask = layer_bias(site, hidden, bias, site.heads)
    if mask is not None:
        logits = logits + mask.float()
    return logits.softmax(dim=-1)


def heads_from_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch token width"]:
    """What W_O is given if these maps are the whole truth: maps times values, head beside head."""
    *_, values = queries_keys_values(site, hidden)
    mixed = attention_maps(site, hidden, bias) @ values.float()
    return mixed.transpose(-3, -2).flatten(-2)
