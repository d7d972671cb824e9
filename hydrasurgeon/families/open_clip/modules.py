"""OpenCLIP's module with any number of heads in each layer, as a classifier of its class names.

logits = exp(logit_scale) · cos(image, class); the text tower that makes the classes is a part of the readout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hydrasurgeon.anatomy.layers import attend
from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Prompted, Stack
from hydrasurgeon.anatomy.projections import resize
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.disk_names import DiskNamed
from hydrasurgeon.families.open_clip.configs import config_of
from hydrasurgeon.families.prompts import prompts
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.heads import Kept

# Texts that run through the text tower at once.
CHUNK = 256


class HeadAttention(nn.Module):
    """In the place of nn.MultiheadAttention, which cannot hold fewer heads than its width asks for."""

    def __init__(self, stock: nn.MultiheadAttention, tower: str, layer: int, heads: Sequence[int]) -> None:
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
        self, query: Tensor, key: Tensor, value: Tensor, *, need_weights: bool = False, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """Self-attention, called as OpenCLIP calls the stock module."""
        return attend(self.site, query, None if attn_mask is None else attn_mask[None, None]), None


class ZeroShot(DiskNamed):
    """Images → logits over the class names; without class names, → normalised image features."""

    model: Any

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

        with torch.device("cpu" if fresh else "meta"):
            inner: Any = open_clip.CLIP(**config_of(model).library())
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

    def reader(self) -> Callable[[Sequence[str]], Tensor]:
        """Texts → token ids, without the module: for worker processes."""
        return partial(_tokens, length=self.model.context_length, words=self.model.vocab_size)

    def forward(self, inputs: Any) -> Tensor:
        """Images → logits; token ids, under the name `texts`, → normalised text features."""
        if isinstance(inputs, Mapping) and "texts" in inputs:
            return self.text_features(inputs["texts"])
        return self.logits(self.model.encode_image(_images(inputs)))

    def text_features(self, tokens: Tensor) -> Tensor:
        features: Tensor = self.model.encode_text(tokens, normalize=True)
        return features

    def image_features(self, pixels: Tensor) -> Tensor:
        return normalize(self.model.encode_image(pixels), dim=-1)

    @property
    def image_tower(self) -> nn.Module:
        tower: nn.Module = self.model.visual
        return tower

    @property
    def log_scale(self) -> nn.Parameter:
        """The logarithm of what the products of features are multiplied by."""
        scale: nn.Parameter = self.model.logit_scale
        return scale

    @property
    def shift(self) -> nn.Parameter | None:
        """What is added to them."""
        bias: nn.Parameter | None = self.model.logit_bias
        return bias

    def logits(self, features: Tensor) -> Tensor:
        """Image features → logits."""
        images = normalize(features, dim=-1)
        return images if self.texts is None else self.compare(images, self.class_features())

    def compare(self, images: Tensor, classes: Tensor) -> Tensor:
        """Normalised features of images and classes → logits."""
        logits: Tensor = self.log_scale.exp() * images @ classes.mT
        return logits if self.shift is None else logits + self.shift

    def text_parts(self) -> tuple[nn.Module | nn.Parameter, ...]:
        """All that the text tower consists of, and the scale."""
        names = ("token_embedding", "positional_embedding", "transformer", "ln_final", "text_projection")
        parts = (getattr(self.model, name) for name in (*names, "logit_scale", "logit_bias"))
        return tuple(part for part in parts if part is not None)

    def class_features(self) -> Tensor:
        """One normalised row for each class, the mean over its prompts; kept for as long as nothing can change it."""
        parameters = [
            parameter
            for part in self.text_parts()
            for parameter in (part.parameters() if isinstance(part, nn.Module) else (part,))
        ]
        # Hooks turn heads off; their numbers are never given twice.
        blocks = self.model.transformer.resblocks
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
        parts = [self.model.encode_text(some, normalize=True) for some in self.texts.split(CHUNK)]
        return _mean(torch.cat(parts).unflatten(0, (self.classes, -1)))


def _mean(features: Tensor) -> Tensor:
    """[…, class, template, embed] → one normalised row for each class."""
    return normalize(features.mean(dim=-2), dim=-1)


def _images(inputs: Any) -> Tensor:
    images: Tensor = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
    return images


@cache
def _tokenizer() -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()


def _tokens(texts: Sequence[str], length: int, words: int) -> Tensor:
    tokens: Tensor = _tokenizer()(list(texts), context_length=length)
    if int(tokens.max()) >= words:
        raise CheckpointError(f"the text tower knows {words} tokens, OpenCLIP's tokenizer {_tokenizer().vocab_size}")
    return tokens


def anatomy(module: ZeroShot) -> Anatomy:
    """Images run through the vision tower; the text tower stands beside it, in the readout."""
    model: Any = module.model
    visual = model.visual

    def features(stack: Stack) -> Tensor:
        pooled, _ = visual._pool(stack.hidden)
        projected: Tensor = pooled @ visual.proj
        return projected

    prompted = None
    if isinstance(module.texts, Tensor):
        prompted = Prompted(
            prompts=module.texts,
            count=module.classes,
            tower=_text_anatomy(model),
            classes=_mean,
            features=lambda stack: normalize(features(stack), dim=-1),
            compare=module.compare,
        )
    return Anatomy(
        embed=lambda inputs: Stack(visual._embeds(_images(inputs))),
        embed_parts=(visual.conv1, visual.class_embedding, visual.positional_embedding, visual.ln_pre),
        blocks=tuple(_block(block) for block in visual.transformer.resblocks),
        readout=lambda stack: module.logits(features(stack)),
        readout_parts=(visual.ln_post, visual.proj, *module.text_parts()),
        reads=1 if visual.pool_type == "tok" else None,
        beside=tuple(block.attn.site for block in model.transformer.resblocks),
        prompted=prompted,
    )


def _text_anatomy(model: Any) -> Anatomy:
    """Token ids → normalised text features, read from the first token.

    A text is read at one token (its end): that one changes places with the first, in the mask too, so that the last
    layer can be computed for it alone. Under a causal mask nothing behind it counts, and padding is left out.
    """
    from open_clip.transformer import text_global_pool

    def embed(ids: Tensor) -> Stack:
        everywhere = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        # OpenCLIP's own pooling, of the positions, says where each text is read.
        at = text_global_pool(
            everywhere[..., None], ids, model.text_pool_type, getattr(model, "text_eos_id", None)
        ).flatten()
        causal = model.attn_mask
        length = ids.shape[1] if causal is None else int(at.max()) + 1
        order = everywhere[:, :length].clone()
        order.scatter_(1, at[:, None], 0)
        order[:, 0] = at
        hidden = model.token_embedding(ids.gather(1, order)) + model.positional_embedding[order]
        bias = None if causal is None else causal[order[:, :, None], order[:, None]][:, None]
        return Stack(hidden, bias)

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
