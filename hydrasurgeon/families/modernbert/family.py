"""ModernBERT with a classifier: transformers' files, layers of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.families.hf_encoder.architectures import Encoder, Kind
from hydrasurgeon.families.hf_encoder.family import HFVariant, check_rotation
from hydrasurgeon.families.modernbert.architectures import KIND, ModernBertConfig, weights
from hydrasurgeon.files.manifest import Model, Tower

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.heads import Kept


class ModernBert(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = {"modernbert": KIND}
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.modernbert.modules"

    def pools(self, config: Encoder) -> bool:
        return True

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        check_rotation(config, where, ("default",))

    def unclassified(self, config: Encoder, names: Collection[str]) -> Encoder:
        if "head.dense.weight" in names and "head.norm.weight" in names:
            return config.model_copy(update={"prediction_head": True})
        return config

    def build(
        self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False
    ) -> nn.Module:
        from hydrasurgeon.families.modernbert.modules import build

        config = self.config(model)
        assert isinstance(config, ModernBertConfig)
        return build(model, config, kept[KIND.tower], fresh=fresh)
