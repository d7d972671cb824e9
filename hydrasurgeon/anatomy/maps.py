"""What one layer's attention saw: which tokens are real, and the map of every head, softmax(q
kᵀ·scale + bias).
"""

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
    """The tokens that at least one query may look at: all but the padding.

    Where only leading tokens are left of the last layer, those alone.
    """
    batch, tokens = stack.hidden.shape[:2]
    if stack.bias is None:
        return ones(batch, tokens, dtype=stack.hidden.bool().dtype, device=stack.hidden.device)
    seen = stack.bias if stack.bias.dtype == stack.bias.bool().dtype else stack.bias > HIDDEN_BELOW
    return seen.flatten(1, 2).any(dim=1)[:, :tokens].expand(batch, tokens)


def attention_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch head token token"]:
    """Who looks at whom, in float32, by the mean of a head's queries; `hidden` is what the site is
    given.
    """
    maps, _ = _maps_and_values(site, hidden, bias)
    return maps.unflatten(1, (-1, site.queries)).mean(dim=2)


def heads_from_maps(
    site: Attention, hidden: Float[Tensor, "batch token embed"], bias: Tensor | None
) -> Float[Tensor, "batch token width"]:
    """What W_O is given if these maps are the whole truth: maps times values, head beside head."""
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
