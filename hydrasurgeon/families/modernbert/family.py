"""ModernBERT with a classifier: transformers' files, layers of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from hydrasurgeon.families.hf_encoder.architectures import Encoder, Kind
from hydrasurgeon.families.hf_encoder.family import HFVariant, check_rotation
from hydrasurgeon.families.modernbert.architectures import KIND, weights


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
