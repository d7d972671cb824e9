"""DeBERTa v2 and v3 with a classifier: transformers' files, attention of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydrasurgeon.anatomy.parts import Anatomy
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.base import Bare
from hydrasurgeon.families.deberta.architectures import KIND, DebertaV2Config, weights
from hydrasurgeon.families.hf_encoder.architectures import Kind
from hydrasurgeon.families.hf_encoder.family import HFEncoder, stock
from hydrasurgeon.files.manifest import Model, Tower

if TYPE_CHECKING:
    from torch import nn

    from hydrasurgeon.families.weights import Weight
    from hydrasurgeon.heads import Kept

TYPE = "deberta-v2"
"""The `model_type` of its config, which version 3 shares."""


class DebertaV2(HFEncoder):
    kinds: ClassVar[Mapping[str, Kind]] = {TYPE: KIND}

    def recognises(self, bare: Bare) -> bool:
        return bare.config is not None and stock(bare.config)["model_type"] == TYPE

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        kernel = config.get("conv_kernel_size")
        if kernel not in (None, 0):
            what = f"has a convolution beside its first layer (conv_kernel_size={str(kernel)[:60]})"
            raise SurgeryError(
                f"{where}: {what}, which is not supported",
                hint="The nearest is a DeBERTa without it, such as hf:microsoft/deberta-v3-base.",
            )

    def weights(self, model: Model) -> Iterator[Weight]:
        return weights(self._config(model), model.num_classes)

    def build(self, model: Model, towers: Mapping[str, Tower], kept: Kept, *, fresh: bool = False) -> nn.Module:
        from hydrasurgeon.families.deberta.modules import build

        return build(model, self._config(model), kept[KIND.tower], fresh=fresh)

    def anatomy(self, module: nn.Module) -> Anatomy:
        from hydrasurgeon.families.deberta.modules import anatomy
        from hydrasurgeon.families.hf_encoder.modules import Encoder as Live

        assert isinstance(module, Live)
        return anatomy(module)

    def _config(self, model: Model) -> DebertaV2Config:
        config = self.config(model)
        assert isinstance(config, DebertaV2Config)
        return config
