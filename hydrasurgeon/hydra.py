"""The fused runtime: M members in one forward pass (paper section 4.2, DESIGN section 5).

Leading layers that are equal in all members (the trunk) run once, on the plain batch. In the first layer
where only the kept heads differ, queries, keys and values are computed once for the union of the heads.
From there the members part, and go on in one of two ways that compute the same:

- stacked: hidden states are [member, batch, token, embed]; what members share runs as one larger product,
  and the heads of all members meet in one attention call. Best where a single member leaves the device idle.
- apart: one member after the other, whose activations stay in the caches.

Where the classifier looks at the first tokens only (a class token), the last layer computes keys and values
for all tokens and everything else for those few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from hydrasurgeon.backends.base import Anatomy, Attention, Block
from hydrasurgeon.heads import positions
from hydrasurgeon.slicing import HeadTensor, take_heads

__all__ = ["Hydra", "Mode", "attend", "queries_keys_values", "run_block"]

Mode = Literal["auto", "stacked", "apart"]
Hidden = Float[Tensor, "batch token embed"]
Stacked = Float[Tensor, "member batch token embed"]
Biases = Sequence[Tensor | None]
"""One for each member: paddings are alike, tuned tables of relative positions are not."""

# Rows (batch × token) from which one member fills the device, so that stacking only costs copies.
FULL = {"cpu": 256, "cuda": 16384}


class Hydra(nn.Module):
    """M modules of one family, sharing parameters where they are equal, run as one.

    `trunk` leading layers run once. The members' own modules stay reachable as `members`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        anatomies: Sequence[Anatomy],
        *,
        trunk: int = 0,
        mode: Mode = "auto",
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.trunk = trunk
        self.mode = mode
        self._anatomies = tuple(anatomies)
        stacks = list(zip(*(a.blocks for a in anatomies), strict=True))
        self._one_embed = _same([a.embed_parts for a in anatomies])
        self._one_readout = _same([a.readout_parts for a in anatomies])
        self._trunk = [blocks[0] for blocks in stacks[:trunk]]
        self._own = [a.blocks[trunk:] for a in anatomies]
        # How many leading tokens each layer must hand on; None: all of them.
        self._tokens: list[int | None] = [None] * len(stacks[trunk:])
        self._tokens[-1:] = [anatomies[0].reads] * len(self._tokens[-1:])
        self._layers = [_Layer(blocks) for blocks in stacks[trunk:]]
        self._union = _Union.where(stacks[trunk]) if self._one_embed and stacks[trunk:] else None

    def forward(self, inputs: Any) -> Float[Tensor, "batch member klass"]:
        if self._one_embed:
            stack = self._anatomies[0].embed(inputs)
            hidden, bias = stack.hidden, stack.bias
            for block in self._trunk:
                hidden = run_block(block, hidden, bias)
            parted, biases = [hidden] * len(self.members), [bias] * len(self.members)
        else:
            stacks = [anatomy.embed(inputs) for anatomy in self._anatomies]
            parted, biases = [s.hidden for s in stacks], [s.bias for s in stacks]
        # The gathered rows of the union are no parameters: a hydra in training goes the plain way.
        union = None if torch.is_grad_enabled() else self._union
        first = None if union is None else union(parted[0], biases[0], self._tokens[0])
        return (self._stacked if self._stacks(parted[0]) else self._apart)(parted, biases, first)

    def _stacks(self, hidden: Hidden) -> bool:
        if self.mode != "auto":
            return self.mode == "stacked"
        return hidden.shape[0] * hidden.shape[1] < FULL.get(hidden.device.type, FULL["cuda"])

    def _apart(
        self, parted: Sequence[Hidden], biases: Biases, first: Sequence[Hidden] | None
    ) -> Float[Tensor, "batch member klass"]:
        """Member after member; `first` are the attention outputs of the first layer where already known."""
        logits = []
        for i, anatomy in enumerate(self._anatomies):
            hidden, layers = parted[i], list(zip(self._own[i], self._tokens, strict=True))
            if first is not None:
                hidden, layers = _after_attention(layers[0][0], hidden, first[i]), layers[1:]
            for block, tokens in layers:
                hidden = run_block(block, hidden, biases[i], tokens)
            logits.append(anatomy.readout(hidden))
        return torch.stack(logits, dim=1)

    def _stacked(
        self, parted: Sequence[Hidden], biases: Biases, first: Sequence[Hidden] | None
    ) -> Float[Tensor, "batch member klass"]:
        """All members layer by layer."""
        stacked = torch.stack(list(parted))
        layers = list(zip(self._layers, self._tokens, strict=True))
        if first is not None:
            stacked, layers = layers[0][0].rest(stacked, torch.stack(list(first))), layers[1:]
        for layer, tokens in layers:
            stacked = layer.rest(stacked, layer.attention(stacked, biases, tokens))
        if self._one_readout:
            logits = self._anatomies[0].readout(stacked.flatten(0, 1))
            return logits.unflatten(0, (stacked.shape[0], -1)).transpose(0, 1)
        each = [a.readout(hidden) for a, hidden in zip(self._anatomies, stacked, strict=True)]
        return torch.stack(each, dim=1)


def run_block(
    block: Block, hidden: Hidden, bias: Tensor | None, tokens: int | None = None
) -> Hidden:
    """One layer of one model, from its parts; of its output only the first `tokens`, or all."""
    normed = block.norm1(hidden) if block.prenorm else hidden
    attended = attend(block.attention, normed, bias, tokens)
    return _after_attention(block, hidden, attended)


def _after_attention(block: Block, hidden: Hidden, attended: Hidden) -> Hidden:
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
        return _silent(site, hidden, tokens)
    shift = _bias_of(bias, site.heads, tokens)
    q, k, v = queries_keys_values(site, hidden, tokens)
    return site.out(
        _merge(scaled_dot_product_attention(q, k, v, attn_mask=shift, scale=site.scale))
    )


def _silent(site: Attention, hidden: Hidden, tokens: int | None) -> Hidden:
    """What a layer without heads adds: its output bias, which belongs to no head."""
    hidden = hidden[:, :tokens]
    return torch.zeros_like(hidden) if site.out.bias is None else site.out.bias.expand_as(hidden)


def _bias_of(bias: Tensor | None, heads: Sequence[int], tokens: int | None = None) -> Tensor | None:
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


def _merge(heads: Float[Tensor, "batch head token head_dim"]) -> Hidden:
    return heads.transpose(-3, -2).flatten(-2)


class _Layer:
    """One layer of all members: which parts they share is settled once, not in every pass."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.sites = [block.attention for block in blocks]
        self.norm1 = _each([block.norm1 for block in blocks])
        self.scale1 = _each([block.scale1 for block in blocks])
        self.norm2 = _each([block.norm2 for block in blocks])
        self.mlp = _each([block.mlp for block in blocks])
        self.scale2 = _each([block.scale2 for block in blocks])
        self.prenorm = blocks[0].prenorm

    def attention(self, x: Stacked, biases: Biases, tokens: int | None) -> Stacked:
        """Each member projects its own queries, keys and values; one attention call serves all heads."""
        normed = self.norm1(x) if self.prenorm else x
        found = {i: _silent(s, normed[i], tokens) for i, s in enumerate(self.sites) if not s.heads}
        busy = [i for i in range(len(self.sites)) if i not in found]
        if busy:
            projected = [queries_keys_values(self.sites[i], normed[i], tokens) for i in busy]
            q, k, v = (torch.cat(parts, dim=1) for parts in zip(*projected, strict=True))
            shifts = [_bias_of(biases[i], self.sites[i].heads, tokens) for i in busy]
            bias, given = shifts[0], biases[0]
            if given is not None and given.shape[1] > 1:
                bias = torch.cat([own for own in shifts if own is not None], dim=1)
            heads = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.sites[0].scale)
            each = heads.split([len(self.sites[i].heads) for i in busy], dim=1)
            found |= {i: self.sites[i].out(_merge(own)) for i, own in zip(busy, each, strict=True)}
        return torch.stack([found[i] for i in range(len(self.sites))])

    def rest(self, x: Stacked, attended: Stacked) -> Stacked:
        x = x[:, :, : attended.shape[2]]
        if self.prenorm:
            x = x + self.scale1(attended)
            return x + self.scale2(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.scale1(attended))
        return self.norm2(x + self.scale2(self.mlp(x)))


class _Union:
    """The first layer in which members differ: one input, so a head that several keep runs once for all."""

    def __init__(self, blocks: Sequence[Block], heads: Sequence[int]) -> None:
        self.norm = blocks[0].norm1 if blocks[0].prenorm else nn.Identity()
        self.sites = sites = [block.attention for block in blocks]
        self.heads = heads
        self.owner = {head: site for site in reversed(sites) for head in site.heads}

    @classmethod
    def where(cls, blocks: Sequence[Block]) -> _Union | None:
        """None where members disagree on a head they share, or share nothing worth the trouble."""
        sites = [block.attention for block in blocks]
        heads = sorted({head for site in sites for head in site.heads})
        union = cls(blocks, heads)
        norms = [[site.q_norm, site.k_norm] for site in sites]
        if blocks[0].prenorm:
            norms = [[*norm, block.norm1] for norm, block in zip(norms, blocks, strict=True)]
        agree = all(
            torch.equal(_rows(site, part, site.heads), _rows_of(union, part, site.heads))
            for site in sites
            for part in _head_parameters(site)
        )
        return (
            union
            if agree and _same(norms) and len(heads) < sum(len(site.heads) for site in sites)
            else None
        )

    def __call__(self, hidden: Hidden, bias: Tensor | None, tokens: int | None) -> list[Hidden]:
        """Each member's attention output."""
        hidden = self.norm(hidden)
        site = self.sites[0]
        parts = []
        for i, project in enumerate(site.project):
            weight = _rows_of(self, (i, "weight"), self.heads)
            shift = None if project.bias is None else _rows_of(self, (i, "bias"), self.heads)
            parts.append(
                linear(hidden, weight, shift).unflatten(-1, (-1, len(self.heads), site.head_dim))
            )
        q, k, v = (part.transpose(-3, -2) for part in torch.cat(parts, dim=-3).unbind(-3))
        mask = _bias_of(bias, self.heads, tokens)
        out = scaled_dot_product_attention(
            site.q_norm(q[:, :, :tokens]), site.k_norm(k), v, attn_mask=mask, scale=site.scale
        )
        return [
            s.out(_merge(out[:, positions(self.heads, s.heads)]))
            if s.heads
            else _silent(s, hidden, tokens)
            for s in self.sites
        ]


def _head_parameters(site: Attention) -> list[tuple[int, str]]:
    return [(i, name) for i, p in enumerate(site.project) for name, _ in p.named_parameters()]


def _rows(site: Attention, part: tuple[int, str], heads: Sequence[int]) -> Tensor:
    """The rows of one q/k/v parameter that belong to `heads`."""
    index, name = part
    spec = HeadTensor(name, axis=0, blocks=3 if len(site.project) == 1 else 1)
    parameter: Tensor = getattr(site.project[index], name)
    return take_heads(parameter, positions(site.heads, heads), spec=spec, head_dim=site.head_dim)


def _rows_of(union: _Union, part: tuple[int, str], heads: Sequence[int]) -> Tensor:
    """The same rows, each head's taken from the first member that keeps it."""
    blocks = 3 if len(union.sites[0].project) == 1 else 1
    each = [_rows(union.owner[h], part, [h]).unflatten(0, (blocks, -1)) for h in heads]
    if not each:
        return _rows(union.sites[0], part, [])
    return torch.cat(each, dim=1).flatten(0, 1)


def _each(modules: Sequence[nn.Module]) -> Callable[[Stacked], Stacked]:
    """One product for all members where they share the module, one each where they do not."""
    if _same([[module] for module in modules]):
        return lambda x: modules[0](x.flatten(0, 1)).unflatten(0, (x.shape[0], -1))
    return lambda x: torch.stack([module(one) for module, one in zip(modules, x, strict=True)])


def _same(parts: Sequence[Sequence[nn.Module | nn.Parameter]]) -> bool:
    """Whether all members hold the very same parameters (not only equal ones)."""
    identities = [[id(p) for part in parts_of for p in _parameters(part)] for parts_of in parts]
    return all(identity == identities[0] for identity in identities)


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())
