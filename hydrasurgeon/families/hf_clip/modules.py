"""transformers' CLIP and SigLIP image classifiers with any number of heads in each layer, taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.parts import Anatomy, Attention, Block, Stack
from hydrasurgeon.families.hf_clip.architectures import CLIP, KINDS, Tower
from hydrasurgeon.families.hf_encoder.architectures import class_name
from hydrasurgeon.families.hf_encoder.modeling_hydrasurgeon import attention_site, shrink
from hydrasurgeon.families.hf_encoder.modules import Encoder, Features, library_config, real_buffers
from hydrasurgeon.files.manifest import Model


def build(model: Model, config: Tower, kept: Sequence[Sequence[int]], *, fresh: bool) -> Encoder:
    import transformers

    with torch.device("cpu" if fresh else "meta"):
        name = class_name(KINDS[config.model_type], model)
        inner: Any = getattr(transformers, name)(library_config(model, config))
    if not model.num_classes:
        inner.classifier = Features()
    for layer, row in zip(inner.vision_model.encoder.layers, kept, strict=True):
        shrink(attention_site(layer), row)
    real_buffers(inner)
    return Encoder(inner, config.model_type, kept)


def anatomy(encoder: Encoder) -> Anatomy:
    inner: Any = encoder.model
    base, clip = inner.vision_model, encoder.kind == "clip"
    embedding = (base.embeddings, base.pre_layrnorm) if clip else (base.embeddings,)

    def embed(inputs: Any) -> Stack:
        hidden = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
        for part in embedding:
            hidden = part(hidden)
        return Stack(hidden)

    def readout(stack: Stack) -> Tensor:
        # CLIP's has a class token in front of the patches, and its norm is the pooled token's alone.
        patches = stack.hidden[:, 1:] if clip else base.post_layernorm(stack.hidden)
        logits: Tensor = inner.classifier(patches.mean(dim=1))
        return logits

    return Anatomy(
        embed=embed,
        embed_parts=embedding,
        blocks=tuple(_block(layer, at, encoder.kept[at]) for at, layer in enumerate(base.encoder.layers)),
        readout=readout,
        readout_parts=(inner.classifier,) if clip else (base.post_layernorm, inner.classifier),
    )


def _block(layer: Any, at: int, row: tuple[int, ...]) -> Block:
    parts, none = attention_site(layer), nn.Identity()
    site = Attention(
        tower=CLIP.tower,
        layer=at,
        heads=row,
        head_dim=parts.head_dim,
        project=parts.project,
        out=parts.out,
        scale=parts.head_dim**-0.5,
    )
    return Block(layer.layer_norm1, site, none, layer.layer_norm2, layer.mlp, none)
