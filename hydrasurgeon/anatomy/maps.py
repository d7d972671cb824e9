"""Attention maps of one layer, softmax(q kᵀ·scale + bias) for each head, and which tokens are real."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, ones

from hydrasurgeon.anatomy.layers import (
    capped,
    layer_bias,
    merge,
    queries_keys_values,
    related,
    shared,
    side_by_side,
)
from hydrasurgeon.anatomy.parts import Attention, Stack

# Masks are -inf or the lowest number of some dtype (float16: -65504); position tables stay far
# above this.
HIDDEN_BELOW = -1e4


def real_tokens(stack: Stack) -> Bool[Tensor, "batch token"]:
    """Mark the tokens that at least one query may attend to: all but the padding.

    If only leading tokens are left of the last layer, mark among these alone.
    """
    batch, tokens = stack.hidden.shape[:2]
    if stack.bias is None:
        return ones(batch, tokens, dtype=stack.hidden.bool().dtype, device=stack.hidden.device)
    seen = stack.bias if stack.bias.dtype == stack.bias.bool().dtype else stack.bias > HIDDEN_BELOW
    return seen.flatten(1, 2).any(dim=1)[:, :tokens].expand(batch, tokens)


def attention_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch head token token"]:
    """Compute each head's attention map in float32, as the mean over its queries; `hidden` is the input."""
    maps, _ = _maps_and_values(site, hidden, bias)
    return maps.unflatten(1, (-1, site.queries)).mean(dim=2)


def heads_from_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch token width"]:
    """Compute the input of W_O from the attention maps: maps times values, head beside head."""
    maps, values = _maps_and_values(site, hidden, bias)
    return merge(side_by_side(site, maps @ values))


def _maps_and_values(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> tuple[Float[Tensor, "batch query token token"], Float[Tensor, "batch query token head_dim"]]:
    q, k, v = queries_keys_values(site, hidden)
    logits = capped(site, (q.float() @ shared(site, k).float().transpose(-1, -2)) * site.scale)
    mask = related(site, layer_bias(site, hidden, bias, site.heads), q, k, site.heads)
    if mask is not None:
        logits = logits + mask.float()
    return logits.softmax(dim=-1), shared(site, v).float()
