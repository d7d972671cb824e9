"""transformers' CLIP and SigLIP with any number of heads in each layer of both towers, by class
names.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hydrasurgeon.anatomy.construction import construction
from hydrasurgeon.anatomy.parts import Anatomy, Stack
from hydrasurgeon.families.hf_clip.both_towers import ARCHS, TwoTowerConfig, towers_of
from hydrasurgeon.families.hf_clip.modules import blocks, layers_of, of_images
from hydrasurgeon.families.hf_encoder.companions import load_tokenizer, quietly
from hydrasurgeon.families.hf_encoder.modeling_hydrasurgeon import attention_site, shrink
from hydrasurgeon.families.hf_encoder.modules import real_buffers
from hydrasurgeon.families.zero_shot import ZeroShot, read_first
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.heads import Kept

if TYPE_CHECKING:
    from hydrasurgeon.families.hf_clip.zero_shot_family import HFZeroShot

HIGHEST = 2
"""Number in old CLIPs' configs for the token with the highest id, at which a text is read."""


class BothTowers(ZeroShot):
    """The library's own model, of which only the towers are called."""

    def __init__(self, model: nn.Module, classes: int, kept: Kept, config: TwoTowerConfig) -> None:
        super().__init__(model, classes)
        self.kept, self.clip = kept, config.model_type == "clip"
        self.end = getattr(config.text_config, "eos_token_id", 0)

    def encode_images(self, pixels: Tensor) -> Tensor:
        return self.projected(
            "visual_projection", self.model.vision_model(pixel_values=pixels).pooler_output
        )

    def encode_texts(self, tokens: Tensor) -> Tensor:
        return self.projected(
            "text_projection", self.model.text_model(input_ids=tokens).pooler_output
        )

    def projected(self, name: str, pooled: Tensor) -> Tensor:
        """Return CLIP's features, by the projection of this name; SigLIP has no projection."""
        return getattr(self.model, name)(pooled) if self.clip else pooled

    def text_anatomy(self) -> Anatomy:
        text = self.model.text_model
        last = None if self.clip else text.head

        def embed(ids: Tensor) -> Stack:
            hidden = text.embeddings(input_ids=ids)
            if not self.clip:
                return read_first(hidden, torch.full_like(ids[:, 0], ids.shape[1] - 1), None)
            at = (ids if self.end == HIGHEST else torch.eq(ids, self.end).int()).argmax(dim=-1)
            never = torch.full(
                (ids.shape[1],) * 2, float("-inf"), device=ids.device, dtype=hidden.dtype
            )
            return read_first(hidden, at, never.triu(1))

        def readout(stack: Stack) -> Tensor:
            pooled = text.final_layer_norm(stack.hidden[:, 0])
            features = self.projected("text_projection", pooled if last is None else last(pooled))
            return nn.functional.normalize(features, dim=-1)

        parts = (text.final_layer_norm, last, getattr(self.model, "text_projection", None))
        return Anatomy(
            embed=embed,
            embed_parts=(text.embeddings,),
            blocks=blocks(self.model, "text", self.kept["text"]),
            readout=readout,
            readout_parts=tuple(part for part in parts if part is not None),
            reads=1,
        )

    @property
    def text_towers(self) -> Sequence[nn.Module | nn.Parameter | None]:
        return [self.model.text_model, getattr(self.model, "text_projection", None)]


def build(_: HFZeroShot, model: Model, kept: Kept, *, fresh: bool) -> BothTowers:
    """Build the library's model with the kept heads of each layer."""
    import transformers

    config = towers_of(model)
    settings = {key: value for key, value in config.library().items() if key != "model_type"}
    cls = getattr(transformers, ARCHS[config.model_type])
    with quietly(), construction(fresh=fresh):
        inner: Any = cls(cls.config_class(**settings))
    for tower in ("vision", "text"):
        for layer, row in zip(layers_of(inner, tower), kept[tower], strict=True):
            shrink(attention_site(layer), row)
    real_buffers(inner)
    return BothTowers(inner, model.num_classes, kept, config)


def anatomy(module: BothTowers) -> Anatomy:
    """Return the parts.

    Images run through the vision tower; the text tower is a part of the readout.
    """
    base, clip = module.model.vision_model, module.clip

    def features(stack: Stack) -> Tensor:
        pooled = base.post_layernorm(stack.hidden[:, 0] if clip else stack.hidden)
        return module.projected("visual_projection", pooled if clip else base.head(pooled))

    last = module.model.visual_projection if clip else base.head
    return Anatomy(
        **of_images(module.model, module.kept["vision"], clip=clip),
        readout=lambda stack: module.logits(features(stack)),
        readout_parts=(base.post_layernorm, last, *module.text_parts()),
        reads=1 if clip else None,
        beside=tuple(module.text_sites()),
        prompted=module.prompted(features),
    )


def tokens(
    texts: Sequence[str], *, files: Mapping[str, str], facts: tuple[str, int, int, str]
) -> Tensor:
    """Return the token ids of texts, as the type's own processor makes them.

    `facts` are the type, the tokens of a text, the number of words, and the tokenizer's class.
    """
    kind, length, words, called = facts
    if kind == "siglip":
        texts = [canonical(text, bare=called.startswith("SiglipTokenizer")) for text in texts]
    read = _tokenizer(tuple(sorted(files.items())), kind, words)
    encoded = read(
        list(texts), padding="max_length", truncation=True, max_length=length, return_tensors="pt"
    )
    return encoded["input_ids"]


def canonical(text: str, *, bare: bool) -> str:
    """Write a text as SigLIP's: in lower case, for the first version without punctuation."""
    text = text.lower()
    return (
        re.sub(r"\s+", " ", text.translate(str.maketrans("", "", string.punctuation))).strip()
        if bare
        else text
    )


@lru_cache(maxsize=4)
def _tokenizer(files: tuple[tuple[str, str], ...], kind: str, words: int) -> Any:
    return load_tokenizer(dict(files), kind, words)
