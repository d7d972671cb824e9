"""MC Dropout: passes with dropout on, against the library's own training mode; what has none is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import transformers_model
from transformers import ViTForImageClassification

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import SurgeryError
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.dropout import dropping, sampled
from hydrasurgeon.tuning.start import fresh

IMAGES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 28,
    "patch_size": 7,
}
TIMM = "init:timm:vit_tiny_patch16_224,img_size=28,patch_size=7,embed_dim=32,depth=2,num_heads=4,num_classes=3"


def vit(folder: Path, **rates: float) -> Path:
    transformers_model("ViTForImageClassification", IMAGES | rates).save_pretrained(folder)
    return folder


def of(path: Path, passes: int = 4, seed: int = 0, arch: str | None = None) -> torch.nn.Module:
    return sampled(
        open_checkpoint(path, arch=arch), passes, seed=seed, device="cpu", dtype="float32"
    )


@torch.no_grad()
def test_passes_are_the_librarys_own_training_mode(tmp_path: Path) -> None:
    path = vit(tmp_path / "vit", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    images = torch.randn(5, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    model = of(path, passes=3, seed=7)
    answers = model(images)
    assert answers.shape == (5, 3, 3)
    stock = ViTForImageClassification.from_pretrained(path, attn_implementation="sdpa").train()
    for number in range(3):
        torch.manual_seed(int(np.random.SeedSequence((7, number)).generate_state(1)[0]))
        torch.testing.assert_close(answers[:, number], stock(images).logits, atol=1e-5, rtol=0)
    assert (answers[:, 0] - answers[:, 1]).abs().max() > 0.01


@torch.no_grad()
def test_a_seed_decides_and_nothing_else(tmp_path: Path) -> None:
    path = vit(tmp_path / "vit", hidden_dropout_prob=0.2)
    images = torch.randn(5, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    model = of(path)
    before = torch.get_rng_state()
    first = model(images)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(model(images), first)
    assert torch.equal(of(path)(images), first)
    assert not torch.equal(of(path, seed=1)(images), first)


def test_timm_takes_its_rates_from_its_arguments(tmp_path: Path) -> None:
    plain, dropped = tmp_path / "plain.safetensors", tmp_path / "dropped.safetensors"
    fresh(TIMM, plain)
    fresh(f"{TIMM},proj_drop_rate=0.1,attn_drop_rate=0.1", dropped)
    with pytest.raises(
        SurgeryError, match="has no dropout that --mc-dropout could turn on"
    ) as refused:
        of(plain)
    # This file's manifest says how it was made: no --arch can change that.
    assert "--arch" not in str(refused.value.hint)
    save_file(load_file(plain), tmp_path / "bare.safetensors")
    with pytest.raises(SurgeryError) as refused:
        of(tmp_path / "bare.safetensors", arch=TIMM.removeprefix("init:"))
    assert "--arch timm:NAME,proj_drop_rate=0.1" in str(refused.value.hint)
    model = of(dropped)
    assert model.members == 4
    assert {type(part).__name__ for part in dropping(model)} >= {"Dropout"}
    assert not any(type(part).__name__ == "DropPath" for part in dropping(model))


def test_eval_reports_passes_as_members(tmp_path: Path) -> None:
    path = vit(tmp_path / "vit", hidden_dropout_prob=0.2)
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "data.npz",
        images=rng.integers(0, 255, (12, 28, 28, 3), dtype=np.uint8),
        labels=np.arange(12) % 3,
    )
    data = str(tmp_path / "data.npz")
    logits = tmp_path / "logits.safetensors"
    report = hs.evaluate([path], data=data, mc_dropout=4, predictions=logits, device="cpu").report
    single = hs.evaluate([path], data=data, device="cpu").report
    (result,), (one,) = report.results, single.results
    assert result.members == 4
    assert result.diversity.mi > 0
    assert load_file(logits)["logits"].shape == (12, 4, 3)
    assert report.settings["mc_dropout"] == 4
    assert "mc_dropout" not in single.settings
    assert result.cost is not None
    assert one.cost is not None
    assert result.cost.params == one.cost.params
    # The library's own module, which knows no shortcut in the last layer.
    whole = macs(hs.load(path, device="cpu").module, torch.zeros(1, 3, 28, 28))
    assert result.cost.macs == 4 * whole > 4 * one.cost.macs
