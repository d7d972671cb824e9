"""Model families by name; each is imported when it is first used."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.base import Backend

__all__ = ["FAMILIES", "backend"]

FAMILIES = {
    "timm": "hydrasurgeon.families.timm_vit.family:TimmViT",
    "transformers": "hydrasurgeon.families.hf_encoder.family:HFEncoder",
    "open_clip": "hydrasurgeon.families.open_clip.family:OpenCLIP",
}


@cache
def backend(family: str) -> Backend:
    if family not in FAMILIES:
        raise CheckpointError(
            f"model family {family!r} is not supported", hint=f"Supported: {', '.join(FAMILIES)}."
        )
    module, name = FAMILIES[family].split(":")
    made: Backend = getattr(import_module(module), name)()
    return made
