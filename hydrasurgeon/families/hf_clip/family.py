"""transformers' CLIP and SigLIP with a classifier of images: transformers' files, towers of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.families.base import Bare
from hydrasurgeon.families.hf_clip.architectures import ALONE, CLIP, KINDS, flat, weights
from hydrasurgeon.families.hf_clip.architectures import Tower as Config
from hydrasurgeon.families.hf_encoder.architectures import Kind
from hydrasurgeon.families.hf_encoder.companions import PREPROCESSOR
from hydrasurgeon.families.hf_encoder.family import HFEncoder, stock
from hydrasurgeon.files.manifest import Model, Tower

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.heads import Kept


def _pictures(present: Collection[str]) -> tuple[str, ...]:
    """A tokenizer beside it is the text tower's."""
    return tuple(name for name in (PREPROCESSOR,) if name in present)


class HFClip(HFEncoder):
    companions = staticmethod(_pictures)
    kinds: ClassVar[Mapping[str, Kind]] = KINDS

    def recognises(self, bare: Bare) -> bool:
        kind = None if bare.config is None else stock(bare.config)["model_type"]
        return isinstance(kind, str) and kind.removesuffix(ALONE) in KINDS

    def identify(self, bare: Bare) -> tuple[Model, str | None]:
        return super().identify(replace(bare, config=flat(self.required_config(bare), bare.where)))

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(flat(config, where), where)

    def weights(self, model: Model) -> Iterator[Weight]:
        return weights(self._config(model), model.num_classes)

    def build(self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False) -> nn.Module:
        from hydrasurgeon.families.hf_clip.modules import build

        return build(model, self._config(model), kept[CLIP.tower], fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.hf_clip.modules import anatomy
        from hydrasurgeon.families.hf_encoder.modules import Encoder as Live

        assert isinstance(module, Live)
        return anatomy(module)

    def _config(self, model: Model) -> Config:
        config = self.config(model)
        assert isinstance(config, Config)
        return config
