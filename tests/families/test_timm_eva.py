"""timm's Eva class: its tensors, its rotations, what it refuses, and what all criteria make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_families import DIM, FAMILIES, HEADS
from tiny_members import RAGGED, logits, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.families import family_of_bare
from hydrasurgeon.families.base import BareCheckpoint
from hydrasurgeon.families.timm_eva.family import TimmEva, table, weights
from hydrasurgeon.families.weights import shapes_of

FEW = (
    "vit_small_patch16_dinov3",
    "vit_small_plus_patch16_dinov3_qkvb",
    "eva02_tiny_patch14_224",
    "eva02_base_patch14_448",
    "vit_pe_core_tiny_patch16_384",
    "vit_small_patch16_rope_ape_224",
    "vit_medium_patch16_rope_reg1_gap_256",
)


def from_timm(name: str) -> dict[str, tuple[int, ...]]:
    import timm

    with torch.device("meta"):
        return {n: tuple(t.shape) for n, t in timm.create_model(name).state_dict().items()}


@pytest.mark.parametrize("name", FEW)
def test_shapes_are_timms(name: str) -> None:
    assert shapes_of(weights(table()[name].args)) == from_timm(name)


@pytest.mark.slow
def test_all_shapes_are_timms() -> None:
    import timm

    known = {*timm.list_models()}
    prunable = [name for name, each in table().items() if each.prunable]
    tried = [name for name in prunable if name in known]  # an older timm lacks the newest
    assert len(tried) > 0.8 * len(prunable)
    for name in tried:
        assert shapes_of(weights(table()[name].args)) == from_timm(name), name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("eva02_large_patch14_clip_224.merged2b", "normalises over all heads at once"),
        ("eva02_enormous_patch14_clip_224", "normalises what each branch adds"),
        ("vit_base_patch16_rope_mixed_224.naver_in1k", "weights for each head"),
        ("vit_large_patch16_sapiens2", "share keys and values"),
    ],
)
def test_what_cannot_be_pruned_exactly(name: str, says: str) -> None:
    bare = BareCheckpoint({}, "here", arch=f"timm:{name}")
    family = family_of_bare(bare)
    assert isinstance(family, TimmEva)
    with pytest.raises(SurgeryError, match=says) as caught:
        family.identify(bare)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("name", ["DINOv3", "EVA02"])
def test_patches_are_rotated_and_other_tokens_are_not(name: str, tmp_path: Path) -> None:
    """Lengths stay, and a query meets a key by how far apart their patches lie."""
    FAMILIES[name].write(tmp_path / "source")
    model = hs.load(tmp_path / "source", device="cpu")
    site, prefix = model.anatomy.blocks[1].attention, model.module.num_prefix_tokens
    assert prefix == (5 if name == "DINOv3" else 1)
    assert site.rotate is not None
    one = torch.randn(1, 1, 1, DIM // HEADS, generator=torch.Generator().manual_seed(0))
    turned = site.rotate(one.expand(1, 1, prefix + 16, -1))[0, 0]
    torch.testing.assert_close(turned[:prefix], one[0, 0].expand(prefix, -1))
    patches = turned[prefix:]
    torch.testing.assert_close(patches.norm(dim=-1), one.norm().expand(16))
    grid = (patches @ patches.T).unflatten(0, (4, 4)).unflatten(-1, (4, 4))
    torch.testing.assert_close(grid[:3, :3, :3, :3], grid[1:, 1:, 1:, 1:], rtol=0, atol=1e-5)
    assert (patches[0] - patches[-1]).abs().max() > 0.1
    torch.testing.assert_close(
        site.rotate(one.expand(1, 1, prefix + 3, -1))[0, 0], turned[: prefix + 3]
    )


def test_images_of_another_size_turn_by_another_grid(tmp_path: Path) -> None:
    """DINOv3 has no table of positions: what the data config says decides, as it does for timm."""
    import timm

    family = FAMILIES["DINOv3"]
    family.write(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    del config["model_args"]["img_size"]
    config["pretrained_cfg"]["input_size"] = [3, 42, 28]
    path.write_text(json.dumps(config))
    images = torch.randn(2, 3, 42, 28)
    stock = timm.create_model(f"local-dir:{tmp_path / 'source'}", pretrained=True).eval()
    with torch.inference_mode():
        torch.testing.assert_close(
            logits(tmp_path / "source", images)[:, 0], stock(images), rtol=0, atol=1e-5
        )
    pruned = member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")
    assert open_checkpoint(pruned).manifest.model.preprocess["input_size"] == [3, 42, 28]


def test_the_heads_of_an_attention_pool_stay_whole(tmp_path: Path) -> None:
    family = FAMILIES["SigLIP"]
    family.write(tmp_path / "source")
    opened = open_checkpoint(tmp_path / "source")
    pool = {
        name: weight for name, weight in opened.weights.items() if name.startswith("attn_pool.")
    }
    assert len(pool) == 13
    assert all(weight.heads is None and weight.layer is None for weight in pool.values())
    model = hs.load(tmp_path / "source", device="cpu")
    assert [site.layer for site in model.anatomy.sites] == [0, 1, 2]
    pruned = open_checkpoint(
        member(tmp_path / "source", family, RAGGED, tmp_path / "m.safetensors")
    )
    for name in pool:
        assert (pruned.tensors.read(name) == opened.tensors.read(name)).all()
