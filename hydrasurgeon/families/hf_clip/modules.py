"""transformers' CLIP and SigLIP image classifiers with any number of heads in each layer, taken
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hydrasurgeon.anatomy.parts import Anatomy, Block, Stack
from hydrasurgeon.families.hf_clip.architectures import CLIP
from hydrasurgeon.families.hf_encoder.modules import Encoder, attention_of
from hydrasurgeon.families.hf_encoder.modules import build as build


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    base, clip = inner.vision_model, encoder.kind == "clip"
    embedding, none = (
        (base.embeddings, base.pre_layrnorm) if clip else (base.embeddings,),
        nn.Identity(),
    )

    def embed(inputs: Any) -> Stack:
        hidden = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
        for part in embedding:
            hidden = part(hidden)
        return Stack(hidden)

    def readout(stack: Stack) -> Tensor:
        # CLIP's has a class token in front of the patches, and its norm is the pooled token's
        # alone.
        patches = stack.hidden[:, 1:] if clip else base.post_layernorm(stack.hidden)
        return inner.classifier(patches.mean(dim=1))

    return Anatomy(
        embed=embed,
        embed_parts=embedding,
        blocks=tuple(
            Block(
                layer.layer_norm1,
                attention_of(layer, CLIP.tower, at, encoder.kept[at]),
                none,
                layer.layer_norm2,
                layer.mlp,
                none,
            )
            for at, layer in enumerate(base.encoder.layers)
        ),
        readout=readout,
        readout_parts=(inner.classifier,) if clip else (base.post_layernorm, inner.classifier),
    )
