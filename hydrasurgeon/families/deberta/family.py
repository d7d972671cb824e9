"""DeBERTa v2 and v3 with a classifier: transformers' files, attention of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families.deberta.architectures import KIND, weights
from hydrasurgeon.families.hf_encoder.architectures import Kind
from hydrasurgeon.families.hf_encoder.family import HFVariant


class DebertaV2(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = {"deberta-v2": KIND}  # version 3 has this type too
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.deberta.modules"

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        super().check_config(config, where)
        kernel = config.get("conv_kernel_size")
        if kernel not in (None, 0):
            what = f"has a convolution beside its first layer (conv_kernel_size={str(kernel)[:60]})"
            raise SurgeryError(
                f"{where}: {what}, which is not supported",
                hint="The nearest is a DeBERTa without it, such as hf:microsoft/deberta-v3-base.",
            )
