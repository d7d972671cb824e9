"""Bare files are recognised from names and shapes, as timm itself lays them out."""

from __future__ import annotations

import pytest

from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.timm_vit.architectures import infer, named, table, weights
from hydrasurgeon.families.weights import shapes_of


def shapes(name: str, **changes: object) -> dict[str, tuple[int, ...]]:
    return shapes_of(weights({**named(name).args, "num_classes": 1000, **changes}))


def from_timm(name: str) -> dict[str, tuple[int, ...]]:
    import timm
    import torch

    with torch.device("meta"):
        return {n: tuple(t.shape) for n, t in timm.create_model(name).state_dict().items()}


FEW = [
    "vit_base_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_small_patch14_dinov2",
    "vit_base_patch16_siglip_224",
    "aimv2_large_patch14_224",
]


@pytest.mark.parametrize("name", FEW)
def test_shapes_are_timms(name: str) -> None:
    assert shapes_of(weights(named(name).args)) == from_timm(name)


@pytest.mark.slow
def test_all_shapes_are_timms() -> None:
    import timm

    known = {*timm.list_models()}
    prunable = [name for name, each in table().items() if each.prunable]
    tried = [name for name in prunable if name in known]  # an older timm lacks the newest
    assert len(tried) > 0.8 * len(prunable)
    for name in tried:
        assert shapes_of(weights(table()[name].args)) == from_timm(name), name


def test_what_a_file_may_say_itself() -> None:
    architecture, overrides, _ = infer(
        shapes("vit_small_patch16_224", num_classes=7, img_size=112, in_chans=1)
    )
    assert architecture.name == "vit_small_patch16_224"
    assert overrides == {"num_classes": 7, "img_size": 112, "in_chans": 1}


def test_what_would_run_differently_is_ambiguous() -> None:
    """CLIP's ViT-B/32: one set of names and shapes, two activations."""
    with pytest.raises(CheckpointError, match="which differ in") as caught:
        infer(shapes("vit_base_patch32_clip_224"))
    assert "act_layer" in caught.value.message
    assert "--arch timm:" in str(caught.value.hint)


def test_unregistered_sizes_say_what_to_type() -> None:
    tiny = shapes_of(
        weights(
            {
                **named("vit_base_patch16_224").args,
                "embed_dim": 128,
                "depth": 6,
                "num_heads": 8,
                "num_classes": 10,
                "patch_size": 7,
                "img_size": 28,
                "in_chans": 1,
            }
        )
    )
    with pytest.raises(CheckpointError, match="dim 128, depth 6, patch 7, MLP ratio 4") as caught:
        infer(tiny)
    assert "embed_dim=128,depth=6,num_heads=…" in str(caught.value.hint)


def test_other_families_are_known_by_their_config() -> None:
    with pytest.raises(CheckpointError, match="not a known architecture") as caught:
        infer({"bert.encoder.layer.0.attention.self.query.weight": (8, 8)})
    assert "the config in their directory" in str(caught.value.hint)
