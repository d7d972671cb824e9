"""Model families by name; each is imported when it is first used.

A family of another package takes part by an entry point of the group `hydrasurgeon.families` that
leads to its class.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.lookup import imported, plugins

if TYPE_CHECKING:
    from hydrasurgeon.families.base import BareCheckpoint, Family
    from hydrasurgeon.files.manifest import Model

# Under each name the families that share it, the general one first: the later ones are asked before
# it.
FAMILIES = {
    "timm": (
        "hydrasurgeon.families.timm_vit.family:TimmViT",
        "hydrasurgeon.families.timm_eva.family:TimmEva",
    ),
    "transformers": (
        "hydrasurgeon.families.hf_encoder.family:HFEncoder",
        "hydrasurgeon.families.modernbert.family:ModernBert",
        "hydrasurgeon.families.deberta.family:DebertaV2",
        "hydrasurgeon.families.hf_clip.family:HFClip",
        "hydrasurgeon.families.hf_clip.zero_shot_family:HFZeroShot",
        "hydrasurgeon.families.decoder.family:DecoderVariant",
    ),
    "open_clip": ("hydrasurgeon.families.open_clip.family:OpenCLIP",),
}

WEIGHTS = ("model.safetensors", "open_clip_model.safetensors")
"""Names of weight files in the directories of these families."""


@cache
def _family_at(place: str | type[Family]) -> Family:
    return (imported(place) if isinstance(place, str) else place)()


def _sharing(name: str) -> list[Family]:
    """Return the families of one name, the general one first."""
    if name in FAMILIES:
        return [_family_at(place) for place in FAMILIES[name]]
    outside = plugins("families")
    if name not in outside:
        supported = ", ".join((*FAMILIES, *outside))
        raise CheckpointError(
            f"model family {name!r} is not supported", hint=f"Supported: {supported}."
        )
    return [_family_at(outside[name])]


def families() -> Iterator[Family]:
    """Yield all families, by name."""
    for name in (*FAMILIES, *plugins("families")):
        yield from _sharing(name)


def weight_names() -> set[str]:
    """Return the names of weight files in directories of any family."""
    return {
        *WEIGHTS,
        *(name for family in plugins("families").values() for name in family.weight_files),
    }


def family_of(model: Model) -> Family:
    """Return the family of a recorded model."""
    if model.family in FAMILIES:  # the usual one is found without importing the others
        usual = _family_at(FAMILIES[model.family][0])
        if usual.covers(model):
            return usual
    first, *special = _sharing(model.family)
    return next((family for family in reversed(special) if family.covers(model)), first)


def family_of_scheme(scheme: str) -> Family | None:
    """Return the family whose hub ids begin with this scheme."""
    return next((family for family in families() if family.scheme == scheme), None)


def schemes() -> tuple[str, ...]:
    return tuple(dict.fromkeys(family.scheme for family in families() if family.scheme))


def config_files() -> tuple[str, ...]:
    """Return the names of configs in directories; those of one family only come first."""
    return tuple(dict.fromkeys(family.config_file for family in reversed(list(families()))))


def family_of_bare(bare: BareCheckpoint, *, config_file: str | None = None) -> Family:
    """Return the family that is to identify a bare checkpoint.

    `--arch` decides, then the config, then the tensors.
    """
    if bare.asked_family:
        candidates = _sharing(bare.asked_family)
    elif config_file is not None:
        candidates = [family for family in families() if family.config_file == config_file]
    else:
        candidates = [family for family in families() if not family.needs_config]
    first, *special = candidates
    return next((family for family in reversed(special) if family.recognises(bare)), first)
