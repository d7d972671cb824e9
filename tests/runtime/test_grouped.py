"""Members as batched products: the same values, few launches, nothing twice, never out of date."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import FAMILIES, KINDS, Family, thoroughly

import hydrasurgeon as hs
from hydrasurgeon.runtime.classifier import Classifier
from hydrasurgeon.runtime.hydra import Hydra

EQUAL = ([[0, 1, 3], [1, 2, 3], [0, 2, 3]], [[0, 1, 2], [0, 1, 3], [0, 1, 2]], [[1, 2, 3]] * 3)
RAGGED = (
    [[0, 1, 2, 3], [0, 1], [1, 2, 3]],
    [[0, 1, 2, 3], [1, 3], [0]],
    [[0, 1, 2, 3], [], [0, 2]],
)
EXTRAS = "timm:vit_tiny_patch16_224,img_size=28,patch_size=7,embed_dim=32,depth=3,num_heads=4,num_classes=3"


def hydra(
    source: Path, rows: Any, folder: Path, *, tuned: bool, family: Family | None = None
) -> Classifier:
    """Three members fused, stacked whatever the batch; tuned ones share nothing."""
    mask, parts = folder / "mask.json", []
    for i, kept in enumerate(rows):
        mask.write_text(json.dumps(family.in_each_tower(kept) if family else {"vision": kept}))
        parts.append(hs.prune(source, mask=mask, out=folder / f"m{i}").path)
    fused = hs.fuse(parts, out=folder / "hydra").path
    model = hs.load(fused, device="cpu", dtype="float64")
    if tuned:
        generator = torch.Generator().manual_seed(1)
        for member in model.module.members:
            for part in list(member.modules()):
                for name, p in list(part.named_parameters(recurse=False)):
                    noise = 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
                    setattr(part, name, torch.nn.Parameter(p.detach() + noise))
        model = Classifier(remade(model.module), model.manifest, model.transform).eval()
    model.module.mode = "stacked"
    return model


def remade(old: Any) -> Any:
    """A runtime over the same members, which looks afresh at what they share."""

    return Hydra(list(old.members), old._anatomy)


@torch.no_grad()
def by_members(model: Classifier, inputs: Any) -> torch.Tensor:
    """Each member's own module."""
    return torch.stack([member(inputs) for member in model.module.members], dim=1)


def assert_grouped(model: Classifier, inputs: Any) -> None:
    with torch.inference_mode():
        found = model(inputs)
    assert model.module._grouped is not None
    assert model.module._grouped.holds
    torch.testing.assert_close(found, by_members(model, inputs), rtol=0, atol=1e-11)


@pytest.mark.parametrize("rows", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("tuned", [False, True], ids=["training-free", "tuned"])
@pytest.mark.parametrize("family", thoroughly(*(name for name in KINDS if name != "OpenCLIP")))
def test_same_as_the_members(family: Family, tuned: bool, rows: Any, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    model = hydra(tmp_path / "source", rows, tmp_path, tuned=tuned, family=family)
    inputs = family.inputs(dtype=torch.float64)
    if family.name in ("MPNet", "DeBERTa-v3"):  # relative positions for each head
        with torch.inference_mode():
            found = model(inputs)
        assert model.module._grouped is None
        torch.testing.assert_close(found, by_members(model, inputs), rtol=0, atol=1e-11)
        return
    assert_grouped(model, inputs)


@pytest.mark.parametrize(
    "extra", ["qk_norm=true", "init_values=0.3", "class_token=false,global_pool=avg"]
)
def test_norms_of_queries_scales_and_pooling(tmp_path: Path, extra: str) -> None:
    from random_models import fresh

    arch = f"{EXTRAS},{extra}".replace("=avg", '="avg"')
    fresh(f"init:{arch}", tmp_path / "source.safetensors", seed=0)
    model = hydra(tmp_path / "source.safetensors", EQUAL, tmp_path, tuned=True)
    assert_grouped(model, torch.randn(4, 3, 28, 28, dtype=torch.float64))


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    """A tuned hydra of equal head counts."""
    FAMILIES["timm ViT"].write(tmp_path / "source")
    return hydra(tmp_path / "source", EQUAL, tmp_path, tuned=True, family=FAMILIES["timm ViT"])


IMAGES = torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_it_follows_its_parameters(model: Classifier) -> None:
    assert_grouped(model, IMAGES)
    part = model.module.members[1].blocks[1]
    with torch.no_grad():
        part.mlp.fc1.weight.mul_(1.5)  # in place, as optimizers do
    assert_grouped(model, IMAGES)
    part.attn.qkv.weight.data = part.attn.qkv.weight.data * 0.5  # replaced
    model(IMAGES)
    with torch.inference_mode():
        torch.testing.assert_close(model(IMAGES), by_members(model, IMAGES), rtol=0, atol=1e-11)
    before = model(IMAGES).detach()
    state = {name: p * 1.1 for name, p in model.state_dict().items()}
    model.load_state_dict(state)
    assert_grouped(model, IMAGES)
    assert (model(IMAGES) - before).abs().max() > 1e-3
    twin = Classifier(copy.deepcopy(model.module), model.manifest, model.transform)
    with torch.no_grad():
        twin.module.members[0].blocks[0].mlp.fc2.weight.zero_()
    assert_grouped(twin, IMAGES)
    assert_grouped(model, IMAGES)
    assert (by_members(twin, IMAGES) - by_members(model, IMAGES)).abs().max() > 1e-3
    with torch.inference_mode():
        single = model.float()(IMAGES.float())
    torch.testing.assert_close(single, by_members(model, IMAGES.float()), rtol=0, atol=1e-5)


def test_a_copy_runs_its_own_modules(model: Classifier) -> None:
    """In every mode, and after a round trip through a pickle."""
    before = by_members(model, IMAGES)
    for twin in (copy.deepcopy(model.module), pickle.loads(pickle.dumps(model.module))):
        assert not twin.training
        with torch.no_grad():
            for p in twin.parameters():
                p.mul_(0.9)
        expected = torch.stack([member(IMAGES) for member in twin.members], dim=1)
        assert (expected - before).abs().max() > 1e-3
        for mode in ("stacked", "apart"):
            twin.mode = mode
            torch.testing.assert_close(twin(IMAGES), expected, rtol=0, atol=1e-11)
    assert torch.equal(by_members(model, IMAGES), before)


@pytest.mark.parametrize("mode", ["stacked", "apart"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fused", [False, True])
def test_heads_once_shared_may_come_to_differ(
    tmp_path: Path, mode: str, compiled: bool, fused: bool
) -> None:
    """A training-free hydra stores a head that several keep once; tuned, each member has its own. A fused AdamW writes
    without counting up the parameters' versions."""
    FAMILIES["timm ViT"].write(tmp_path / "source")
    model = hydra(tmp_path / "source", EQUAL, tmp_path, tuned=False, family=FAMILIES["timm ViT"])
    model.module.mode = mode
    with torch.no_grad():
        torch.testing.assert_close(model(IMAGES), by_members(model, IMAGES), rtol=0, atol=1e-11)
        before = by_members(model, IMAGES)
    tuned = model.requires_grad_(True).parameters()
    optimizer = (
        torch.optim.AdamW(tuned, lr=0.05, fused=True) if fused else torch.optim.SGD(tuned, lr=0.5)
    )
    model(IMAGES)[:, 0].square().sum().backward()  # the first member alone
    optimizer.step()
    with torch.no_grad():
        expected = by_members(model, IMAGES)
        assert (expected - before).abs().max() > 1e-2
        torch.testing.assert_close(model(IMAGES), expected, rtol=0, atol=1e-11)
        if compiled:
            captured = torch.compile(model, backend="eager", fullgraph=True)
            torch.testing.assert_close(captured(IMAGES), expected, rtol=0, atol=1e-11)
