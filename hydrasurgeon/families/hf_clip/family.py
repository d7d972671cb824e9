"""transformers' CLIP and SigLIP with a classifier of images: transformers' files, towers of their
own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from hydrasurgeon.families.base import Bare
from hydrasurgeon.families.hf_clip.architectures import ALONE, KINDS, flat, weights
from hydrasurgeon.families.hf_encoder.architectures import Kind
from hydrasurgeon.families.hf_encoder.companions import PREPROCESSOR
from hydrasurgeon.families.hf_encoder.family import HFVariant, stock
from hydrasurgeon.files.manifest import Model


def _pictures(present: Collection[str]) -> tuple[str, ...]:
    """A tokenizer beside it is the text tower's."""
    return tuple(name for name in (PREPROCESSOR,) if name in present)


class HFClip(HFVariant):
    companions = staticmethod(_pictures)
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.hf_clip.modules"

    def recognises(self, bare: Bare) -> bool:
        kind = None if bare.config is None else stock(bare.config)["model_type"]
        return isinstance(kind, str) and kind.removesuffix(ALONE) in KINDS

    def identify(self, bare: Bare) -> tuple[Model, str | None]:
        if any(bare.asked in kind.classes for kind in KINDS.values()):
            bare = replace(bare, arch=None)  # of a file with both towers, this one
        return super().identify(replace(bare, config=flat(self.required_config(bare), bare.where)))

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(flat(config, where), where)
