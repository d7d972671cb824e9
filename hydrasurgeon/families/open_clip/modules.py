"""OpenCLIP's module with any number of heads in each layer, as a classifier of its class names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hydrasurgeon.anatomy.construction import construction
from hydrasurgeon.anatomy.layers import attend
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.anatomy.projections import resize
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.open_clip.family import config_of
from hydrasurgeon.families.zero_shot import ZeroShot, images_in, read_first
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.heads import Kept

if TYPE_CHECKING:
    from hydrasurgeon.families.open_clip.family import OpenCLIP


class HeadAttention(nn.Module):
    """Replacement of nn.MultiheadAttention, which cannot hold fewer heads than its width asks for."""

    def __init__(
        self, stock: nn.MultiheadAttention, tower: str, layer: int, heads: Sequence[int]
    ) -> None:
        super().__init__()
        device, width = stock.out_proj.weight.device, stock.embed_dim
        inner = len(heads) * stock.head_dim
        self.in_proj = resize(nn.Linear(1, 1, device=device), rows=3 * inner, columns=width)
        self.out_proj = resize(nn.Linear(1, 1, device=device), rows=width, columns=inner)
        self.place, self.heads, self.head_dim = (tower, layer), tuple(heads), stock.head_dim

    @property
    def site(self) -> Attention:
        tower, layer = self.place
        return Attention(
            tower=tower,
            layer=layer,
            heads=self.heads,
            head_dim=self.head_dim,
            project=(self.in_proj,),
            out=self.out_proj,
            scale=self.head_dim**-0.5,
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Run self-attention; the signature is the stock module's."""
        return attend(self.site, query, None if attn_mask is None else attn_mask[None, None]), None


class OpenCLIPModule(ZeroShot):
    """OpenCLIP's own model, called as files call it."""

    def disk_name(self, name: str) -> str:
        return super().disk_name(name).replace(".attn.in_proj.", ".attn.in_proj_")

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels)

    def encode_texts(self, tokens: Tensor) -> Tensor:
        return self.model.encode_text(tokens)

    def text_anatomy(self) -> Anatomy:
        return _text_anatomy(self.model)

    @property
    def text_towers(self) -> Sequence[nn.Module | nn.Parameter | None]:
        names = (
            "token_embedding",
            "positional_embedding",
            "transformer",
            "ln_final",
            "text_projection",
        )
        return [getattr(self.model, name) for name in names]


def build(_: OpenCLIP, model: Model, kept: Kept, *, fresh: bool) -> OpenCLIPModule:
    import open_clip

    with construction(fresh=fresh):
        inner: Any = open_clip.CLIP(**config_of(model).library())
    for tower, stack in (("vision", inner.visual.transformer), ("text", inner.transformer)):
        for layer, (block, row) in enumerate(zip(stack.resblocks, kept[tower], strict=True)):
            block.attn = HeadAttention(block.attn, tower, layer, row)
    if inner.attn_mask is not None:  # a buffer that no file brings
        inner.attn_mask = torch.full((inner.context_length,) * 2, float("-inf")).triu_(1)
    return OpenCLIPModule(inner, model.num_classes)


@cache
def _tokenizer() -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()


def tokens(texts: Sequence[str], length: int, words: int) -> Tensor:
    tokens: Tensor = _tokenizer()(list(texts), context_length=length)
    if int(tokens.max()) >= words:
        raise CheckpointError(
            f"the text tower knows {words} tokens, OpenCLIP's tokenizer {_tokenizer().vocab_size}"
        )
    return tokens


def anatomy(module: OpenCLIPModule) -> Anatomy:
    """Return the parts.

    Images run through the vision tower; the text tower is a part of the readout.
    """
    model: Any = module.model
    visual = model.visual

    def features(stack: Stack) -> Tensor:
        pooled, _ = visual._pool(stack.hidden)
        return pooled @ visual.proj

    return Anatomy(
        embed=lambda inputs: Stack(visual._embeds(images_in(inputs))),
        embed_parts=(
            visual.conv1,
            visual.class_embedding,
            visual.positional_embedding,
            visual.ln_pre,
        ),
        blocks=tuple(_block(block) for block in visual.transformer.resblocks),
        readout=lambda stack: module.logits(features(stack)),
        readout_parts=(visual.ln_post, visual.proj, *module.text_parts()),
        reads=1 if visual.pool_type == "tok" else None,
        beside=tuple(module.text_sites()),
        prompted=module.prompted(features),
    )


def _text_anatomy(model: Any) -> Anatomy:
    """Return the parts of the text tower, from token ids to normalised features.

    A text is read at its first token.
    """
    from open_clip.transformer import text_global_pool

    def embed(ids: Tensor) -> Stack:
        everywhere = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        # OpenCLIP's own pooling, of the positions, says where each text is read.
        at = text_global_pool(
            everywhere[..., None], ids, model.text_pool_type, getattr(model, "text_eos_id", None)
        ).flatten()
        return read_first(
            model.token_embedding(ids) + model.positional_embedding[: ids.shape[1]],
            at,
            model.attn_mask,
        )

    def readout(stack: Stack) -> Tensor:
        features = model.ln_final(stack.hidden[:, 0])
        project = model.text_projection
        if project is not None:
            features = project(features) if isinstance(project, nn.Linear) else features @ project
        return normalize(features, dim=-1)

    return Anatomy(
        embed=embed,
        embed_parts=(model.token_embedding, model.positional_embedding),
        blocks=tuple(_block(block) for block in model.transformer.resblocks),
        readout=readout,
        readout_parts=tuple(p for p in (model.ln_final, model.text_projection) if p is not None),
        reads=1,
    )


def _block(block: Any) -> Block:
    return Block(block.ln_1, block.attn.site, block.ls_1, block.ln_2, block.mlp, block.ls_2)
