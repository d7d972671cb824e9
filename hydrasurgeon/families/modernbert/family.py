"""ModernBERT with a classifier: transformers' files, layers of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.base import Bare
from hydrasurgeon.families.hf_encoder.architectures import Encoder, Kind
from hydrasurgeon.families.hf_encoder.family import HFEncoder, stock
from hydrasurgeon.families.modernbert.architectures import GLOBAL, KIND, LOCAL, ModernBertConfig, weights
from hydrasurgeon.files.manifest import Model, Tower

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.heads import Kept

TYPE = "modernbert"
"""The `model_type` of its config."""


class ModernBert(HFEncoder):
    kinds: ClassVar[Mapping[str, Kind]] = {TYPE: KIND}

    def recognises(self, bare: Bare) -> bool:
        return bare.config is not None and stock(bare.config)["model_type"] == TYPE

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        by_type = config.get("rope_parameters")
        scalings = [config.get("rope_scaling")]
        if isinstance(by_type, Mapping):
            scalings += [by_type.get(kind) for kind in (GLOBAL, LOCAL)]
        for scaling in scalings:
            kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
            if kind not in (None, "default"):
                what = f"stretches its rotary positions ({str(kind)[:60]})"
                raise SurgeryError(f"{where}: {what}, which is not supported", hint="Supported: rope_type default.")

    def unclassified(self, config: Encoder, names: Collection[str]) -> Encoder:
        if "head.dense.weight" in names and "head.norm.weight" in names:
            return config.model_copy(update={"prediction_head": True})
        return config

    def weights(self, model: Model) -> Iterator[Weight]:
        return weights(self._config(model), model.num_classes)

    def build(self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False) -> nn.Module:
        from hydrasurgeon.families.modernbert.modules import build

        return build(model, self._config(model), kept[KIND.tower], fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.hf_encoder.modules import Encoder as Live
        from hydrasurgeon.families.modernbert.modules import anatomy

        assert isinstance(module, Live)
        return anatomy(module)

    def _config(self, model: Model) -> ModernBertConfig:
        config = self.config(model)
        assert isinstance(config, ModernBertConfig)
        return config
