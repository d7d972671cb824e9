"""The layers of M members side by side, in a way that can be trained, compiled and exported.

Hidden states are [member, batch, token, embed]; what members share runs as one larger product, and the heads of
all members meet in one attention call. (For plain inference `grouped` does the same in fewer launches.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from hydrasurgeon.anatomy.layers import attention_input, layer_bias, merge, queries_keys_values, silent
from hydrasurgeon.anatomy.parts import Block
from hydrasurgeon.runtime.shared_heads import same

Stacked = Float[Tensor, "member batch token embed"]
"""Hidden states of all members."""
Biases = Sequence[Tensor | None]
"""One for each member: paddings are alike, tuned tables of relative positions are not."""


class Layer:
    """One layer of all members: which parts they share is settled once, not in every pass."""

    def __init__(self, blocks: Sequence[Block], tokens: int | None) -> None:
        self.tokens = tokens
        self.sites = [block.attention for block in blocks]
        self.norm1 = _each([block.norm1 for block in blocks])
        self.scale1 = _each([block.scale1 for block in blocks])
        self.norm2 = _each([block.norm2 for block in blocks])
        self.mlp = _each([block.mlp for block in blocks])
        self.scale2 = _each([block.scale2 for block in blocks])
        self.prenorm = blocks[0].prenorm

    def attention(self, x: Stacked, biases: Biases) -> Stacked:
        """Each member projects its own queries, keys and values; one attention call serves all heads."""
        tokens = self.tokens
        normed = attention_input(self, x)
        outputs = {i: silent(s, normed[i], tokens) for i, s in enumerate(self.sites) if not s.heads}
        busy = [i for i in range(len(self.sites)) if i not in outputs]
        if busy:
            projected = [queries_keys_values(self.sites[i], normed[i], tokens) for i in busy]
            q, k, v = (torch.cat(parts, dim=1) for parts in zip(*projected, strict=True))
            shifts = [layer_bias(self.sites[i], normed[i], biases[i], self.sites[i].heads, tokens) for i in busy]
            bias, stack_bias = shifts[0], biases[0]
            if stack_bias is not None and stack_bias.shape[1] > 1:
                bias = torch.cat([shift for shift in shifts if shift is not None], dim=1)
            heads = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.sites[0].scale)
            each = heads.split([len(self.sites[i].heads) for i in busy], dim=1)
            outputs.update({i: self.sites[i].out(merge(part)) for i, part in zip(busy, each, strict=True)})
        return torch.stack([outputs[i] for i in range(len(self.sites))])


def _each(modules: Sequence[nn.Module]) -> Callable[[Stacked], Stacked]:
    """One product for all members where they share the module, one each where they do not."""
    if same([[module] for module in modules]):
        return lambda x: modules[0](x.flatten(0, 1)).unflatten(0, (x.shape[0], -1))
    return lambda x: torch.stack([module(one) for module, one in zip(modules, x, strict=True)])
