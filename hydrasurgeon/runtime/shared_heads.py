"""Heads of the same weights that several members use: stored once, rows picked for each, for as long as they stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from hydrasurgeon.anatomy.layers import Hidden, layer_bias, merge, placed, silent, split_heads
from hydrasurgeon.anatomy.parts import Attention, Block
from hydrasurgeon.anatomy.projections import Biased
from hydrasurgeon.heads import HeadAxis, positions, take_heads

_Gathered = tuple[Sequence[tuple[Tensor, Tensor | None]], Sequence[Tensor]]


class SharedHeads:
    """The first layer in which members differ: one input, so a head that several keep runs once for all."""

    def __init__(self, blocks: Sequence[Block], heads: Sequence[int]) -> None:
        self.norm = blocks[0].norm1 if blocks[0].prenorm else nn.Identity()
        self.sites = sites = [block.attention for block in blocks]
        self.heads = heads
        self.owner = {head: site for site in reversed(sites) for head in site.heads}
        self._sources = [
            (part._parameters, name)
            for site in sites
            for part in site.project
            for name, p in part.named_parameters(recurse=False)
        ]
        self._sources += [
            place for site in sites for part in site.project if isinstance(part, Biased) for place in part.places
        ]
        self._known: tuple[Watch, _Gathered | None] | None = None

    @classmethod
    def where(cls, blocks: Sequence[Block]) -> SharedHeads | None:
        """None where members keep no head in common, or differ in a norm."""
        sites = [block.attention for block in blocks]
        heads = sorted({head for site in sites for head in site.heads})
        norms = [[site.q_norm, site.k_norm] for site in sites]
        if blocks[0].prenorm:
            norms = [[*norm, block.norm1] for norm, block in zip(norms, blocks, strict=True)]
        worth = len(heads) < sum(len(site.heads) for site in sites)
        return cls(blocks, heads) if worth and same(norms) else None

    def __call__(self, hidden: Hidden, bias: Tensor | None, tokens: int | None) -> list[Hidden] | None:
        """Each member's attention output; None where members disagree on a head they share."""
        gathered = self._gathered()
        if gathered is None:
            return None
        products, rows = gathered
        hidden = self.norm(hidden)
        site = self.sites[0]
        parts = 3 // len(products)
        q, k, v = (
            part
            for weight, shift in products
            for part in split_heads(linear(hidden, weight, shift), parts, len(self.heads), site.head_dim)
        )
        q, k = placed(site, site.q_norm(q[:, :, :tokens]), site.k_norm(k))
        mask = layer_bias(site, hidden, bias, self.heads, tokens)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=site.scale)
        return [
            s.out(merge(out.index_select(1, row))) if s.heads else silent(s, hidden, tokens)
            for s, row in zip(self.sites, rows, strict=True)
        ]

    @property
    def copies(self) -> list[Tensor]:
        """The rows gathered, once they are."""
        gathered = None if self._known is None else self._known[1]
        return [] if gathered is None else [r for rows in gathered[0] for r in rows if r is not None]

    def _gathered(self) -> _Gathered | None:
        """What `_gather` found, kept while its sources stay: members that are tuned may come to disagree."""
        if self._known is None or not self._known[0]:
            with torch.inference_mode(False), torch.no_grad():
                self._known = Watch((), self._sources), self._gather()
        return self._known[1]

    def _gather(self) -> _Gathered | None:
        """Rows of the union, and where each member's heads are among them."""
        if not all(
            torch.equal(_rows(site, part, site.heads), _rows_of(self, part, site.heads))
            for site in self.sites
            for part in _head_parameters(site)
        ):
            return None
        device = self.sites[0].out.weight.device
        products = [
            (
                _rows_of(self, (i, "weight"), self.heads),
                None if project.bias is None else _rows_of(self, (i, "bias"), self.heads),
            )
            for i, project in enumerate(self.sites[0].project)
        ]
        rows = [torch.tensor(positions(self.heads, s.heads), device=device) for s in self.sites]
        return products, rows


def _head_parameters(site: Attention) -> list[tuple[int, str]]:
    names = ("weight", "bias")
    return [(i, n) for i, p in enumerate(site.project) for n in names if getattr(p, n) is not None]


def _rows(site: Attention, part: tuple[int, str], heads: Sequence[int]) -> Tensor:
    """The rows of one q/k/v parameter that belong to `heads`."""
    index, name = part
    spec = HeadAxis(axis=0, blocks=3 if len(site.project) == 1 else 1)
    parameter: Tensor = getattr(site.project[index], name)
    return take_heads(parameter, positions(site.heads, heads), spec=spec, head_dim=site.head_dim)


def _rows_of(union: SharedHeads, part: tuple[int, str], heads: Sequence[int]) -> Tensor:
    """The same rows, each head's taken from the first member that keeps it."""
    blocks = 3 if len(union.sites[0].project) == 1 else 1
    each = [_rows(union.owner[h], part, [h]).unflatten(0, (blocks, -1)) for h in heads]
    if not each:
        return _rows(union.sites[0], part, [])
    return torch.cat(each, dim=1).flatten(0, 1)


def same(parts: Sequence[Sequence[nn.Module | nn.Parameter]]) -> bool:
    """Whether all members hold the very same parameters (not only equal ones)."""
    identities = [[id(p) for part in parts_of for p in _parameters(part)] for parts_of in parts]
    return all(identity == identities[0] for identity in identities)


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())


Place = tuple[dict[str, Any], str]
"""Where a module has a parameter: what is there may be another one later."""


class Watch:
    """Whether parameters still are what something was made of: not replaced and, where `copied`, not written to."""

    def __init__(self, used: Sequence[Place], copied: Sequence[Place] = ()) -> None:
        self._used, self._copied = list(used), list(copied)
        self._known = self._now()

    def __bool__(self) -> bool:
        return self._now() == self._known

    def _now(self) -> tuple[list[int], list[int]]:
        used = [owner[name] for owner, name in self._used]
        copied = [owner[name] for owner, name in self._copied]
        return list(map(Tensor.data_ptr, used + copied)), list(map(_version, copied))


def _version(parameter: Tensor) -> int:
    return 0 if parameter.is_inference() else parameter._version


def captured() -> bool:
    """Whether operations are being recorded, to be run elsewhere with other weights, or transformed."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
