"""timm's Eva with any number of heads in each layer, taken apart; class and register tokens are not
rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.construction import construction
from hydrasurgeon.anatomy.layers import attend
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.anatomy.projections import Biased, resize
from hydrasurgeon.families.timm_vit.architectures import TOWER
from hydrasurgeon.families.timm_vit.family import taken_apart


def build(
    name: str, args: Mapping[str, Any], classes: int, kept: Sequence[Sequence[int]], *, fresh: bool
) -> nn.Module:
    import timm

    create = partial(timm.create_model, name, pretrained=False, num_classes=classes)
    # The grid of patches decides how they are rotated, so it is settled here.
    fixed = {**args, "dynamic_img_size": False}
    with construction(fresh=fresh):
        module: Any = create(**fixed)
    if module.rope is not None:
        with torch.device("cpu"):
            small: Any = create(**{**fixed, "depth": 1})
        module.rope = EvaAngles(small.rope.get_embed())
    for layer, (block, row) in enumerate(zip(module.blocks, kept, strict=True)):
        block.attn = Heads(block.attn, layer, tuple(row), module.rope)
    return module


class EvaAngles(nn.Module):
    """sin and cos for each patch; no weights, and not rounded when those are."""

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.detach().clone(), persistent=False)
        self.feat_shape = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EvaAngles:
        super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)  # type: ignore[no-untyped-call]
        return self

    def get_embed(self) -> Tensor:
        """Return the table, as timm's own modules of rotations do."""
        return self.table


class Heads(nn.Module):
    """Attention with some of the heads of timm's own, under the same names."""

    rope: EvaAngles | None

    def __init__(
        self, stock: Any, layer: int, row: tuple[int, ...], rope: EvaAngles | None
    ) -> None:
        super().__init__()
        self.layer, self.heads, self.head_dim = layer, row, stock.head_dim
        self.prefix, self.in_halves = stock.num_prefix_tokens, stock.rotate_half
        self.__dict__["rope"] = rope  # the model's, and no part of this one
        width = len(row) * self.head_dim
        self.qkv = None if stock.qkv is None else resize(stock.qkv, rows=3 * width)
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(stock, name)
            setattr(self, name, None if projection is None else resize(projection, rows=width))
        for name in ("q_bias", "v_bias"):
            bias = getattr(stock, name, None)
            narrower = None if bias is None else nn.Parameter(bias.new_empty(width))
            self.register_parameter(name, bias if bias is None or len(bias) == width else narrower)
        self.q_norm, self.k_norm = stock.q_norm, stock.k_norm
        self.proj, self.proj_drop = resize(stock.proj, columns=width), stock.proj_drop

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return self.proj_drop(attend(self.site(), x, None))

    def site(self) -> Attention:
        project: Any = (self.q_proj, self.k_proj, self.v_proj)
        if self.qkv is not None:
            packed = self.qkv
            project = (
                packed if self.q_bias is None else Biased(packed, self, ("q_bias", None, "v_bias")),
            )
        return Attention(
            tower=TOWER,
            layer=self.layer,
            heads=self.heads,
            head_dim=self.head_dim,
            project=project,
            out=self.proj,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            scale=self.head_dim**-0.5,
            rotate=None if self.rope is None else self.rotate,
        )

    def rotate(self, heads: Tensor) -> Tensor:
        """Return x cos + x⊥ sin, where x⊥ has the numbers of each pair turned by a right angle."""
        assert self.rope is not None
        first, patches = heads[:, :, : self.prefix], heads[:, :, self.prefix :]
        sin, cos = self.rope.table[: patches.shape[2]].chunk(2, dim=-1)
        if self.in_halves:
            one, other = patches.chunk(2, dim=-1)
            across = torch.cat((-other, one), dim=-1)
        else:
            across = torch.stack((-patches[..., 1::2], patches[..., ::2]), dim=-1).flatten(-2)
        return torch.cat((first, (patches * cos + across * sin).to(heads.dtype)), dim=2)


class _Scale(nn.Module):
    """LayerScale, whose factors lie in the layer itself."""

    def __init__(self, block: nn.Module, name: str) -> None:
        super().__init__()
        self._parameters = block._parameters
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        factors: Tensor = getattr(self, self.name)
        return x * factors


def anatomy(module: nn.Module) -> Anatomy:
    m: Any = module

    def embed(inputs: Tensor) -> Stack:
        return Stack(m.norm_pre(m._pos_embed(m.patch_embed(inputs))[0]))

    return taken_apart(m, embed, tuple(_block(block) for block in m.blocks))


def _block(block: Any) -> Block:
    scales = [
        nn.Identity() if getattr(block, name) is None else _Scale(block, name)
        for name in ("gamma_1", "gamma_2")
    ]
    return Block(block.norm1, block.attn.site(), scales[0], block.norm2, block.mlp, scales[1])
