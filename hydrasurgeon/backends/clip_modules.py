"""OpenCLIP's module with any number of heads in each layer, as a classifier of its class names.

logits = exp(logit_scale) · cos(image, class); the text tower that makes the classes is a part of the readout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hydrasurgeon.backends.base import Anatomy, Attention, Block, Stack
from hydrasurgeon.backends.disk_names import DiskNamed
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.heads import Kept
from hydrasurgeon.hydra import attend
from hydrasurgeon.manifest import Model
from hydrasurgeon.zeroshot import prompts

__all__ = ["HeadAttention", "ZeroShot", "anatomy"]

# Texts that run through the text tower at once.
CHUNK = 256
NONE = nn.Identity()


class HeadAttention(nn.Module):
    """In the place of nn.MultiheadAttention, which cannot hold fewer heads than its width asks for."""

    def __init__(self, stock: nn.MultiheadAttention, tower: str, layer: int, heads: Sequence[int]) -> None:  # fmt: skip
        super().__init__()
        device, width = stock.out_proj.weight.device, stock.embed_dim
        inner = len(heads) * stock.head_dim
        self.in_proj = _linear(width, 3 * inner, device)
        self.out_proj = _linear(inner, width, device)
        self.place, self.heads, self.head_dim = (tower, layer), tuple(heads), stock.head_dim

    @property
    def site(self) -> Attention:
        tower, layer = self.place
        return Attention(
            tower=tower, layer=layer, heads=self.heads, head_dim=self.head_dim, project=(self.in_proj,),
            out=self.out_proj, q_norm=NONE, k_norm=NONE, scale=self.head_dim**-0.5,
        )  # fmt: skip

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Self-attention, called as OpenCLIP calls the stock module."""
        return attend(self.site, query, None if attn_mask is None else attn_mask[None, None]), None


def _linear(into: int, out: int, device: torch.device) -> nn.Linear:
    """Any size, none included; what the parameters hold is up to whoever loads the weights."""
    made = nn.Linear(1, 1, device=device)
    made.in_features, made.out_features = into, out
    made.weight = nn.Parameter(torch.empty(out, into, device=device))
    made.bias = nn.Parameter(torch.empty(out, device=device))
    return made


class ZeroShot(DiskNamed):
    """Images → logits over the class names; without class names, → normalised image features."""

    def __init__(self, model: nn.Module, texts: Tensor | None, classes: int) -> None:
        super().__init__()
        self.model = model
        self.classes = classes
        # Not persistent: which texts there are follows from the manifest.
        self.register_buffer("texts", texts, persistent=False)
        self._known: tuple[Any, Tensor] | None = None

    @classmethod
    def build(cls, model: Model, kept: Kept, *, fresh: bool) -> ZeroShot:
        import open_clip

        config = {key: value for key, value in model.config.items() if key != "zero_shot"}
        with torch.device("cpu" if fresh else "meta"):
            inner: Any = open_clip.CLIP(**config)
        for tower, stack in (("vision", inner.visual.transformer), ("text", inner.transformer)):
            for layer, (block, row) in enumerate(zip(stack.resblocks, kept[tower], strict=True)):
                block.attn = HeadAttention(block.attn, tower, layer, row)
        if inner.attn_mask is not None:  # a buffer that no file brings
            inner.attn_mask = torch.full((inner.context_length,) * 2, float("-inf")).triu_(1)
        texts = None
        if model.num_classes:
            texts = _tokens(prompts(model), inner.context_length, inner.vocab_size)
        return cls(inner, texts, model.num_classes)

    def disk_name(self, name: str) -> str:
        return name.removeprefix("model.").replace(".attn.in_proj.", ".attn.in_proj_")

    def forward(self, images: Tensor) -> Tensor:
        return self.logits(self.model.encode_image(images))  # type: ignore[operator]

    def logits(self, features: Tensor) -> Tensor:
        """Image features → logits."""
        images = normalize(features, dim=-1)
        if self.texts is None:
            return images
        model: Any = self.model
        logits: Tensor = model.logit_scale.exp() * images @ self.class_features().T
        return logits if model.logit_bias is None else logits + model.logit_bias

    def text_parts(self) -> tuple[nn.Module | nn.Parameter, ...]:
        """All that the text tower consists of, and the scale."""
        model: Any = self.model
        parts = (
            model.token_embedding, model.positional_embedding, model.transformer, model.ln_final,
            model.text_projection, model.logit_scale, model.logit_bias,
        )  # fmt: skip
        return tuple(part for part in parts if part is not None)

    def class_features(self) -> Tensor:
        """One normalised row for each class: the mean over its prompts, each normalised before.

        Kept from pass to pass as long as nothing can change them: the same weights, the same heads turned off, and
        no gradients asked for.
        """
        model: Any = self.model
        parameters = [
            parameter
            for part in self.text_parts()
            for parameter in (part.parameters() if isinstance(part, nn.Module) else (part,))
        ]
        # Hooks turn heads off; their numbers are never given twice.
        blocks = model.transformer.resblocks
        hooks = [number for block in blocks for number in block.attn.out_proj._forward_pre_hooks]
        if torch.is_grad_enabled() and (hooks or any(p.requires_grad for p in parameters)):
            return self._encode_classes()
        versions = [0 if p.is_inference() else p._version for p in parameters]
        state = hooks, versions, [(p.data_ptr(), p.dtype) for p in parameters]
        if self._known is None or self._known[0] != state:
            # An inference tensor would be of no use to a later pass with gradients.
            with torch.inference_mode(False), torch.no_grad():
                self._known = state, self._encode_classes()
        return self._known[1]

    def _encode_classes(self) -> Tensor:
        assert isinstance(self.texts, Tensor)
        model: Any = self.model
        parts = [model.encode_text(some, normalize=True) for some in self.texts.split(CHUNK)]
        each = torch.cat(parts).unflatten(0, (self.classes, -1))
        return normalize(each.mean(dim=1), dim=-1)


@cache
def _tokenizer() -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()


def _tokens(texts: Sequence[str], length: int, words: int) -> Tensor:
    found: Tensor = _tokenizer()(list(texts), context_length=length)
    if int(found.max()) >= words:
        raise CheckpointError(
            f"the text tower knows {words} tokens, OpenCLIP's tokenizer has {_tokenizer().vocab_size}"
        )
    return found


def anatomy(module: ZeroShot) -> Anatomy:
    """Images run through the vision tower; the text tower stands beside it, in the readout."""
    model: Any = module.model
    visual = model.visual

    def embed(inputs: Any) -> Stack:
        images = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
        return Stack(visual._embeds(images))

    def readout(hidden: Tensor) -> Tensor:
        pooled, _ = visual._pool(hidden)
        return module.logits(pooled @ visual.proj)

    return Anatomy(
        embed=embed,
        embed_parts=(visual.conv1, visual.class_embedding, visual.positional_embedding, visual.ln_pre),
        blocks=tuple(_block(block) for block in visual.transformer.resblocks),
        readout=readout,
        readout_parts=(visual.ln_post, visual.proj, *module.text_parts()),
        reads=1 if visual.pool_type == "tok" else None,
        beside=tuple(block.attn.site for block in model.transformer.resblocks),
    )  # fmt: skip


def _block(block: Any) -> Block:
    return Block(block.ln_1, block.attn.site, block.ls_1, block.ln_2, block.mlp, block.ls_2)
