"""Decoders that classify texts by their last token: Llama, Mistral, Qwen 2, 2.5 and 3, Gemma 2 and
3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.decoder.architectures import (
    DIVISIBLE,
    KINDS,
    ROTATIONS,
    DecoderConfig,
    weights,
)
from hydrasurgeon.families.hf_encoder.architectures import Encoder, Kind
from hydrasurgeon.families.hf_encoder.companions import GENERIC
from hydrasurgeon.families.hf_encoder.family import HFVariant, check_rotation

GENERATES = "ForCausalLM"
"""How the name of a class ends whose model has no classifier yet."""


class Decoder(HFVariant):
    kinds: ClassVar[Mapping[str, Kind]] = KINDS
    table = staticmethod(weights)
    modules = "hydrasurgeon.families.decoder.modules"
    # What tokenizer.json says is enough: Qwen's own class adds words.
    reader: ClassVar[str] = GENERIC

    def pools(self, config: Encoder) -> bool:
        return True

    def check_config(self, config: Mapping[str, Any], where: str) -> None:
        names = config.get("architectures")
        generates = isinstance(names, list) and str(names[:1]).endswith(f"{GENERATES}']")
        super().check_config({**config, "architectures": None} if generates else config, where)
        check_rotation(config, where, ROTATIONS)
        usual = KINDS[str(config["model_type"])].record.model_fields["pad_token_id"].default
        if config.get("pad_token_id", usual) is None:
            raise CheckpointError(
                f"{where}: has no pad token, so it cannot tell the last token of a text, which a classifier reads",
                hint="Set pad_token_id in its config.json to the number of a token that no text ends with, and pad_token in its tokenizer_config.json to that token.",
            )

    def sizes_of(self, config: Encoder, heads: int, width: int | None) -> dict[str, Any] | None:
        assert isinstance(config, DecoderConfig)
        queries = heads * config.num_attention_heads // config.groups
        if config.model_type in DIVISIBLE and config.hidden_size % queries:
            return None
        return {
            "num_key_value_heads": heads,
            "num_attention_heads": queries,
            "head_dim": config.width,
            "intermediate_size": width or config.intermediate_size,
        }
