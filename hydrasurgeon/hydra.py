"""The fused runtime: M members in one forward pass (paper section 4.2, DESIGN section 5).

Hidden states of the members are stacked as [member, batch, token, embed]. What all members share runs
once on the whole stack, as one larger product; what differs runs member by member; the heads of all
members meet in one attention call. Leading layers that are equal in all members (the trunk) run on the
plain batch, before the members part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from hydrasurgeon.backends.base import Anatomy, Attention, Block
from hydrasurgeon.heads import positions
from hydrasurgeon.slicing import HeadTensor, take_heads

__all__ = ["Hydra", "attend", "run_block"]

Hidden = Float[Tensor, "batch token embed"]
Stacked = Float[Tensor, "member batch token embed"]
Biases = Sequence[Tensor | None]
"""One for each member: paddings are alike, tuned tables of relative positions are not."""


class Hydra(nn.Module):
    """M modules of one family, sharing parameters where they are equal, run as one.

    `trunk` leading layers run once. The members' own modules stay reachable as `members`.
    """

    def __init__(
        self, modules: Sequence[nn.Module], anatomies: Sequence[Anatomy], *, trunk: int = 0
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(modules)
        self.trunk = trunk
        self._anatomies = tuple(anatomies)
        stacks = list(zip(*(a.blocks for a in anatomies), strict=True))
        self._one_embed = _same([a.embed_parts for a in anatomies])
        self._trunk = [blocks[0] for blocks in stacks[:trunk]]
        self._layers = [
            _Layer(blocks, parting=self._one_embed and layer == 0)
            for layer, blocks in enumerate(stacks[trunk:])
        ]
        self._one_readout = _same([a.readout_parts for a in anatomies])

    def forward(self, inputs: Any) -> Float[Tensor, "batch member klass"]:
        first = self._anatomies[0]
        if self._one_embed:
            stack = first.embed(inputs)
            hidden, bias = stack.hidden, stack.bias
            for block in self._trunk:
                hidden = run_block(block, hidden, bias)
            stacked = hidden.expand(len(self._anatomies), *hidden.shape)
            biases = [bias] * len(self._anatomies)
        else:
            stacks = [anatomy.embed(inputs) for anatomy in self._anatomies]
            stacked, biases = torch.stack([s.hidden for s in stacks]), [s.bias for s in stacks]
        for layer in self._layers:
            stacked = layer(stacked, biases)
        return self._read(stacked)

    def _read(self, stacked: Stacked) -> Float[Tensor, "batch member klass"]:
        if self._one_readout:
            logits = self._anatomies[0].readout(stacked.flatten(0, 1))
            return logits.unflatten(0, (stacked.shape[0], -1)).transpose(0, 1)
        each = [a.readout(hidden) for a, hidden in zip(self._anatomies, stacked, strict=True)]
        return torch.stack(each, dim=1)


def run_block(block: Block, hidden: Hidden, bias: Tensor | None) -> Hidden:
    """One layer of one model, from its parts."""
    if block.prenorm:
        hidden = hidden + block.scale1(attend(block.attention, block.norm1(hidden), bias))
        return hidden + block.scale2(block.mlp(block.norm2(hidden)))
    hidden = block.norm1(hidden + block.scale1(attend(block.attention, hidden, bias)))
    return block.norm2(hidden + block.scale2(block.mlp(hidden)))


def attend(site: Attention, hidden: Hidden, bias: Tensor | None) -> Hidden:
    """Multi-head attention of one site with the heads it has."""
    if not site.heads:
        return _silent(site, hidden)
    shift = _bias_of(bias, site.heads)
    return site.out(
        _merge(scaled_dot_product_attention(*_qkv(site, hidden), attn_mask=shift, scale=site.scale))
    )


def _silent(site: Attention, hidden: Hidden) -> Hidden:
    """What a layer without heads adds: its output bias, which belongs to no head."""
    return torch.zeros_like(hidden) if site.out.bias is None else site.out.bias.expand_as(hidden)


def _bias_of(bias: Tensor | None, heads: Sequence[int]) -> Tensor | None:
    """The rows of these heads, where the bias differs between heads."""
    return bias if bias is None or bias.shape[1] == 1 else bias[:, list(heads)]


def _qkv(site: Attention, hidden: Hidden) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as [batch, head, token, head_dim]."""
    grouped = (len(site.heads), site.head_dim)
    if len(site.project) == 1:
        q, k, v = site.project[0](hidden).unflatten(-1, (3, *grouped)).unbind(-3)
    else:
        q, k, v = (project(hidden).unflatten(-1, grouped) for project in site.project)
    q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
    return site.q_norm(q), site.k_norm(k), v


def _merge(heads: Float[Tensor, "batch head token head_dim"]) -> Hidden:
    return heads.transpose(-3, -2).flatten(-2)


class _Layer:
    """One layer of all members: which parts they share is settled once, not in every pass."""

    def __init__(self, blocks: Sequence[Block], *, parting: bool) -> None:
        self.sites = [block.attention for block in blocks]
        self.norm1 = _each([block.norm1 for block in blocks])
        self.scale1 = _each([block.scale1 for block in blocks])
        self.norm2 = _each([block.norm2 for block in blocks])
        self.mlp = _each([block.mlp for block in blocks])
        self.scale2 = _each([block.scale2 for block in blocks])
        self.prenorm = blocks[0].prenorm
        one_input = parting and (not self.prenorm or _same([[block.norm1] for block in blocks]))
        self.union = _Union.of(self.sites) if one_input else None
        self.first_norm = blocks[0].norm1

    def __call__(self, x: Stacked, biases: Biases) -> Stacked:
        if self.prenorm:
            x = x + self.scale1(self.attention(x, biases))
            return x + self.scale2(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.scale1(self.attention(x, biases)))
        return self.norm2(x + self.scale2(self.mlp(x)))

    def attention(self, x: Stacked, biases: Biases) -> Stacked:
        if self.union is not None and not torch.is_grad_enabled():
            return self.union(self.first_norm(x[0]) if self.prenorm else x[0], biases[0])
        return _fused_attention(self.sites, self.norm1(x) if self.prenorm else x, biases)


def _fused_attention(sites: Sequence[Attention], x: Stacked, biases: Biases) -> Stacked:
    """Each member projects its own queries, keys and values; one attention call serves all heads."""
    busy = [i for i, site in enumerate(sites) if site.heads]
    if not busy:
        return torch.stack([_silent(site, hidden) for site, hidden in zip(sites, x, strict=True)])
    projected = [_qkv(sites[i], x[i]) for i in busy]
    q, k, v = (torch.cat(parts, dim=1) for parts in zip(*projected, strict=True))
    bias = biases[0]
    if bias is not None and bias.shape[1] > 1:
        rows = [_bias_of(biases[i], sites[i].heads) for i in busy]
        bias = torch.cat([own for own in rows if own is not None], dim=1)
    heads = scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=sites[0].scale)
    each = heads.split([len(sites[i].heads) for i in busy], dim=1)
    spoken = {i: sites[i].out(_merge(own)) for i, own in zip(busy, each, strict=True)}
    return torch.stack(
        [spoken[i] if i in spoken else _silent(site, x[i]) for i, site in enumerate(sites)]
    )


class _Union:
    """The first layer in which members differ: one input, so a head that several keep runs once for all."""

    def __init__(self, sites: Sequence[Attention], heads: Sequence[int]) -> None:
        self.sites = sites
        self.heads = heads
        self.owner = {head: site for site in reversed(sites) for head in site.heads}

    @classmethod
    def of(cls, sites: Sequence[Attention]) -> _Union | None:
        """None where members disagree on a head they share, or share nothing worth the trouble."""
        heads = sorted({head for site in sites for head in site.heads})
        union = cls(sites, heads)
        norms = [[site.q_norm, site.k_norm] for site in sites]
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

    def __call__(self, hidden: Hidden, bias: Tensor | None) -> Stacked:
        site = self.sites[0]
        parts = []
        for i, project in enumerate(site.project):
            weight = _rows_of(self, (i, "weight"), self.heads)
            shift = None if project.bias is None else _rows_of(self, (i, "bias"), self.heads)
            parts.append(
                linear(hidden, weight, shift).unflatten(-1, (-1, len(self.heads), site.head_dim))
            )
        q, k, v = (part.transpose(-3, -2) for part in torch.cat(parts, dim=-3).unbind(-3))
        out = scaled_dot_product_attention(
            site.q_norm(q),
            site.k_norm(k),
            v,
            attn_mask=_bias_of(bias, self.heads),
            scale=site.scale,
        )
        return torch.stack(
            [
                s.out(_merge(out[:, positions(self.heads, s.heads)]))
                if s.heads
                else _silent(s, hidden)
                for s in self.sites
            ]
        )


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
