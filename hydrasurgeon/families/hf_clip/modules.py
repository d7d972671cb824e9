"""transformers' CLIP and SigLIP image classifiers with any number of heads in each layer, taken
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hydrasurgeon.anatomy.parts import Anatomy, Block, Stack
from hydrasurgeon.families.hf_clip.family import CLIP
from hydrasurgeon.families.hf_encoder.modules import Encoder, attention_of
from hydrasurgeon.families.hf_encoder.modules import build as build
from hydrasurgeon.families.zero_shot import images_in


def blocks(inner: Any, tower: str, kept: Sequence[Sequence[int]]) -> tuple[Block, ...]:
    """Return a tower's layers as blocks."""
    none, layers = nn.Identity(), layers_of(inner, tower)
    sites = (attention_of(layer, tower, at, tuple(kept[at])) for at, layer in enumerate(layers))
    return tuple(
        Block(layer.layer_norm1, site, none, layer.layer_norm2, layer.mlp, none)
        for layer, site in zip(layers, sites, strict=True)
    )


def layers_of(inner: Any, tower: str) -> Sequence[Any]:
    """Return a tower's layers, as the library has them."""
    return getattr(inner, f"{tower}_model").encoder.layers


def of_images(inner: Any, kept: Sequence[Sequence[int]], *, clip: bool) -> dict[str, Any]:
    """Return the image tower's parts, up to those that read it."""
    base = inner.vision_model
    embedding = (base.embeddings, base.pre_layrnorm) if clip else (base.embeddings,)

    def embed(inputs: Any) -> Stack:
        hidden = images_in(inputs)
        for part in embedding:
            hidden = part(hidden)
        return Stack(hidden)

    return {
        "embed": embed,
        "embed_parts": embedding,
        "blocks": blocks(inner, CLIP.tower, kept),
    }


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    base, clip = inner.vision_model, encoder.kind == "clip"

    def readout(stack: Stack) -> Tensor:
        # CLIP's has a class token in front of the patches, and its norm is the pooled token's
        # alone.
        patches = stack.hidden[:, 1:] if clip else base.post_layernorm(stack.hidden)
        return inner.classifier(patches.mean(dim=1))

    return Anatomy(
        **of_images(inner, encoder.kept, clip=clip),
        readout=readout,
        readout_parts=(inner.classifier,) if clip else (base.post_layernorm, inner.classifier),
    )
