"""Heads of the same weights that several members use: stored once, rows picked for each, for as
long as they stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hydrasurgeon.anatomy.layers import (
    Hidden,
    layer_bias,
    merge,
    mixed,
    placed,
    silent,
    split_heads,
)
from hydrasurgeon.anatomy.parts import Block
from hydrasurgeon.anatomy.projections import Biased
from hydrasurgeon.heads import HeadAxis, positions, take_heads

_Gathered = tuple[Sequence[tuple[Tensor, Tensor | None]], Sequence[Tensor]]


class SharedHeads:
    """The first layer in which members differ: one input, so a head that several keep runs once for
    all.
    """

    def __init__(self, blocks: Sequence[Block], heads: Sequence[int]) -> None:
        self.norm = blocks[0].norm1 if blocks[0].prenorm else nn.Identity()
        self.sites = [block.attention for block in blocks]
        self.heads = heads
        projections = [part for site in self.sites for part in site.project]
        self._sources = [
            (p._parameters, name)
            for p in projections
            for name, _ in p.named_parameters(recurse=False)
        ]
        self._sources += [place for p in projections if isinstance(p, Biased) for place in p.places]
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
        return cls(blocks, heads) if worth and sites[0].relative is None and same(norms) else None

    def __call__(
        self, hidden: Hidden, bias: Tensor | None, tokens: int | None
    ) -> list[Hidden] | None:
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
            for part in split_heads(linear(hidden, weight, shift), parts, site.head_dim)
        )
        q, k = placed(site, site.q_norm(q[:, :, :tokens]), site.k_norm(k))
        mask = layer_bias(site, hidden, bias, self.heads, tokens)
        out = mixed(site, q, k, v, mask)
        return [
            s.out(merge(out.index_select(1, row))) if s.heads else silent(s, hidden, tokens)
            for s, row in zip(self.sites, rows, strict=True)
        ]

    @property
    def copies(self) -> list[Tensor]:
        """The rows gathered, once they are."""
        gathered = None if self._known is None else self._known[1]
        return (
            [] if gathered is None else [r for rows in gathered[0] for r in rows if r is not None]
        )

    def forget(self) -> None:
        """Gather anew the next time."""
        self._known = None

    def _gathered(self) -> _Gathered | None:
        """What `_gather` found, kept while its sources stay: members that are tuned may come to
        disagree.
        """
        if self._known is None or not self._known[0]:
            with torch.inference_mode(False), torch.no_grad():
                self._known = Watch((), self._sources), self._gather()
        return self._known[1]

    def _gather(self) -> _Gathered | None:
        """Rows of the union, and where each member's heads are among them."""
        first = self.sites[0]
        spec = HeadAxis(axis=0, blocks=3 if len(first.project) == 1 else 1)
        owners = {head: site for site in reversed(self.sites) for head in site.heads}
        places = [positions(self.heads, site.heads) for site in self.sites]

        def union(i: int, name: str) -> Tensor:
            """The rows of one q/k/v parameter, each head's taken from the first member that keeps
            it.
            """
            each = [
                take_heads(
                    getattr(site.project[i], name),
                    [site.heads.index(head)],
                    spec=spec,
                    head_dim=first.rows[i],
                )
                for head in self.heads
                for site in (owners[head],)
            ]
            return torch.cat(
                [rows.unflatten(0, (spec.blocks, -1)) for rows in each], dim=1
            ).flatten(0, 1)

        products: list[tuple[Tensor, Tensor | None]] = []
        for i, project in enumerate(first.project):
            weight, bias = union(i, "weight"), None if project.bias is None else union(i, "bias")
            for site, at in zip(self.sites, places, strict=True):
                mine = site.project[i]
                for rows, parameter in ((weight, mine.weight), (bias, mine.bias)):
                    if rows is None or parameter is None:
                        continue
                    if not torch.equal(
                        take_heads(rows, at, spec=spec, head_dim=first.rows[i]), parameter
                    ):
                        return None
            products.append((weight, bias))
        return products, [torch.tensor(at, device=first.out.weight.device) for at in places]


def same(parts: Sequence[Sequence[nn.Module | nn.Parameter]]) -> bool:
    """Whether all members hold the very same parameters (not only equal ones)."""
    identities = [[id(p) for part in parts_of for p in _parameters(part)] for parts_of in parts]
    return all(identity == identities[0] for identity in identities)


def _parameters(part: nn.Module | nn.Parameter) -> list[nn.Parameter]:
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())


Place = tuple[dict[str, Any], str]
"""Where a module has a parameter: what is there may be another one later."""


class Watch:
    """Whether parameters still are what something was made of: not replaced and, where `copied`,
    not written to.
    """

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
    """Whether operations are being recorded, to be run elsewhere with other weights, or
    transformed.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
