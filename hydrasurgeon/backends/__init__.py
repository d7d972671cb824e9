"""Model families by name; each is imported when it is first used."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from hydrasurgeon.backends.base import Backend
from hydrasurgeon.errors import CheckpointError

__all__ = ["FAMILIES", "backend"]

FAMILIES = {
    "timm": "hydrasurgeon.backends.timm_vit:TimmViT",
    "transformers": "hydrasurgeon.backends.hf_encoder:HFEncoder",
    "open_clip": "hydrasurgeon.backends.open_clip:OpenCLIP",
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
