"""Turn heads and neurons off in a live model, or make their masks differentiable (paper D.1.2,
ablation operator).

Scaling the input of W_O is the same as scaling W_O's column block, and touches no weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from hydrasurgeon.anatomy.parts import Attention
from hydrasurgeon.heads import Head

Place = tuple[str, int]


@contextlib.contextmanager
def removed(*hooks: RemovableHandle) -> Iterator[None]:
    """Remove these hooks at the end of the block."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def masked(sites: Sequence[Attention], masks: Mapping[Place, Tensor]) -> Iterator[None]:
    """Multiply the head outputs of each site by its mask, [head] or [batch, head], within the block."""

    def scaler(site: Attention, mask: Tensor) -> Any:
        def scale(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            heads = args[0].unflatten(-1, (len(site.heads), site.width))
            shaped = mask if mask.dim() == 1 else mask[:, None]
            return ((heads * shaped.to(heads.dtype)[..., None]).flatten(-2), *args[1:])

        return scale

    hooks = [
        site.out.register_forward_pre_hook(scaler(site, masks[site.tower, site.layer]))
        for site in sites
        if (site.tower, site.layer) in masks and site.heads
    ]
    with removed(*hooks):
        yield


@contextlib.contextmanager
def ablated(sites: Sequence[Attention], heads: Sequence[Head]) -> Iterator[None]:
    """Turn these heads off within the block."""
    off = set(heads)
    masks = {}
    for site in sites:
        keep = [Head(site.tower, site.layer, h) not in off for h in site.heads]
        if not all(keep):
            masks[site.tower, site.layer] = torch.tensor(
                keep, device=site.out.weight.device, dtype=torch.float32
            )
    with masked(sites, masks):
        yield
