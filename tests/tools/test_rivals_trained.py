"""The rivals in benchmarks/rivals_trained.py: what they cost, what is kept of them, and that their members are what the
methods say."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import Classifier, as_classifier

ROOT = Path(__file__).parents[2]
# torch-uncertainty's own, and of what it imports.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("rivals_trained")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("quality_rows")


@pytest.fixture
def layers() -> Any:
    """torch-uncertainty's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_uncertainty.layers", reason="torch-uncertainty is not installed")


@pytest.fixture
def shop(rows: Any, tmp_path: Path) -> Any:
    """A workshop with few samples, of the demo's own data."""
    place = importlib.import_module("quality_tasks").Place("fashion-mnist", tmp_path / "cache", tmp_path / "nothing")
    source = importlib.import_module("answers").Source
    place.__dict__["sources"] = {
        "train": source("demo:train", 8, labelled=True),
        "val": source("demo:val", 20, labelled=True),
        "near": source("demo:near", 12),
    }
    return importlib.import_module("quality_workshop").Workshop(place, 1)


def base() -> Classifier:
    return as_classifier(open_checkpoint(ROOT / "hydrasurgeon" / "demo" / "backbone.safetensors"), device="cpu")


def test_multiply_adds_are_those_of_the_members(rivals: Any) -> None:
    def by_hand(width: int) -> int:
        tokens = 17
        block = 12 * width**2 * tokens + 2 * tokens**2 * width
        return 16 * 49 * width + 6 * block + 8 * width

    single = macs(base(), torch.zeros(1, 1, 28, 28))
    assert by_hand(64) == single
    assert rivals.multiply_adds("BatchEnsemble") == 3
    # Two more images go through the patch embedding, sixteen more classes come out.
    more = 2 * (16 * 49 * 64) + 16 * 64
    assert rivals.multiply_adds("MIMO") == pytest.approx(1 + more / single, abs=1e-12)
    packed = 3 * by_hand(48) / single
    assert rivals.multiply_adds("Packed-Ensemble") == pytest.approx(packed, abs=1e-12)


def test_a_layer_gives_each_member_its_own_rank_one_change(rivals: Any) -> None:
    random = torch.Generator().manual_seed(0)
    linear = nn.Linear(5, 4, bias=False, dtype=torch.float64)
    r, s, bias = (torch.randn(3, n, generator=random, dtype=torch.float64) for n in (5, 4, 4))
    layer = SimpleNamespace(linear=linear, r_group=r, s_group=s, bias=bias)
    hidden = torch.randn(6, 7, 5, generator=random, dtype=torch.float64)  # two images for each of three members
    result = rivals.Tokenwise(layer)(hidden)
    for row in range(6):
        member = row // 2
        weight = linear.weight * torch.outer(s[member], r[member])
        torch.testing.assert_close(result[row], hidden[row] @ weight.T + bias[member], atol=1e-12, rtol=0)
    flat = rivals.Tokenwise(layer)(hidden[:, 0])
    torch.testing.assert_close(flat, result[:, 0], atol=1e-12, rtol=0)


def test_mimo_answers_of_one_image_are_those_of_three_alike(rivals: Any) -> None:
    torch.manual_seed(0)
    model = rivals.Mimo().eval()
    images = torch.randn(2, 1, 28, 28)
    with torch.inference_mode():
        one = model(images)
        three = model(torch.stack([images] * 3, dim=1))
        other = model(torch.stack([images, images, images.flip(0)], dim=1))
        whole = model.vit(torch.cat([images] * 3, dim=1))
    assert one.shape == (2, 3, 8)
    torch.testing.assert_close(one, three, atol=0, rtol=0)
    assert (one - other).abs().max() > 1e-4
    torch.testing.assert_close(one[:, 1], whole[:, 8:16], atol=0, rtol=0)


def test_answers_are_kept_set_by_set(shop: Any) -> None:
    class Thrice(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            mean = images.mean(dim=(1, 2, 3))
            return mean[:, None, None] * torch.arange(24).view(3, 8)

    single = base()

    def made() -> Classifier:
        return Classifier(Thrice(), single.manifest, single.transform).eval()

    answers = shop.logits("mimo", made)
    folder = shop.folder / "answers" / "mimo"
    assert sorted(path.name for path in folder.iterdir()) == ["near.safetensors", "val.safetensors"]
    val = load_file(folder / "val.safetensors")
    assert val["logits"].shape == (20, 3, 8)
    assert val["logits"].dtype == torch.float32
    assert len(val["labels"]) == 20
    assert set(load_file(folder / "near.safetensors")) == {"logits"}
    inputs = torch.cat([batch.inputs for batch in shop.place.batches("val", single)])
    torch.testing.assert_close(answers.sets["val"].logits[:, 2, 7], 23 * inputs.mean(dim=(1, 2, 3)))
    assert answers.sets["near"].labels is None

    def never() -> Classifier:
        raise AssertionError("all of it is there")

    again = shop.logits("mimo", never)
    torch.testing.assert_close(again.sets["near"].logits, answers.sets["near"].logits, atol=0, rtol=0)


def test_without_torch_uncertainty_a_rival_is_its_answers_or_left_out(
    rows: Any, rivals: Any, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda _: None)
    with pytest.raises(rivals.Absent, match=r"MIMO: is made of .+ not installed"):
        rows.ROWS["MIMO"](shop)
    shop.logits("mimo", base)
    row = rows.ROWS["MIMO"](shop)
    assert row.macs == pytest.approx(1.019, abs=1e-3)
    assert not row.features
    assert row.answers.sets["near"].logits.shape == (12, 1, 8)


def test_a_rival_belongs_to_the_task_it_was_trained_for(
    rivals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda _: True)
    with pytest.raises(rivals.Absent, match="fashion-mnist alone"):
        rivals.rival("MIMO", SimpleNamespace(name="minilm"), 1, tmp_path, base())


@pytest.mark.slow
def test_members_of_a_packed_ensemble_do_not_see_each_other(rivals: Any, layers: Any) -> None:
    torch.manual_seed(0)
    model = rivals.Packed().eval()
    for norm in model.modules():
        if isinstance(norm, layers.PackedLayerNorm):
            nn.init.normal_(norm.weight)
    model(torch.randn(2, 1, 28, 28))[:, 1].square().sum().backward()

    def of_members(name: str, grad: torch.Tensor) -> torch.Tensor:
        """Channels are grouped by member, in linear weights' first dimension, and within each of query, key and value
        in their bias."""
        if name in ("cls", "position"):
            grad = grad[0].T
        parts = grad.reshape(3, 3, -1).transpose(0, 1) if name.endswith("in_proj_bias") else grad
        return parts.reshape(3, -1).abs().sum(dim=1)

    grads = {name: of_members(name, p.grad) for name, p in model.named_parameters()}
    assert grads
    for name, (first, second, third) in grads.items():
        assert first == third == 0, name
        assert second > 0, name


@pytest.mark.slow
def test_a_batch_ensemble_is_the_single_model_where_its_factors_are_one(rivals: Any, layers: Any) -> None:
    torch.manual_seed(3)
    model = rivals.RankOne().eval()
    torch.manual_seed(3)
    single = rivals.vit().eval()
    images = torch.randn(4, 1, 28, 28)
    spread = model(images).std(dim=1).max()
    assert spread > 1e-2
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("r_group", "s_group")):
                parameter.fill_(1.0)
        torch.testing.assert_close(model(images), single(images)[:, None].expand(-1, 3, -1), atol=1e-5, rtol=0)
    layer = layers.BatchLinear(5, 4, 3).double()
    hidden = torch.randn(6, 7, 5, dtype=torch.float64)
    rows = layer(hidden.flatten(0, 1)).unflatten(0, (6, 7))
    torch.testing.assert_close(rivals.Tokenwise(layer)(hidden), rows, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_mimo_mixes_images_with_their_labels(rivals: Any, layers: Any) -> None:
    torch.manual_seed(0)
    labels = torch.arange(8).repeat(4)
    images = labels[:, None, None, None].expand(-1, 1, 28, 28).float()
    mixed, targets = rivals.mixed(images, labels)
    assert mixed.shape == (4 * 32, 3, 1, 28, 28)
    torch.testing.assert_close(mixed[..., 0, 0, 0], targets.float(), atol=0, rtol=0)
    alike = (targets == targets[:, :1]).all(dim=1)
    assert alike[64:].all()  # ρ of them
    assert not alike[:64].all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Packed-Ensemble", "MIMO", "BatchEnsemble"])
def test_a_rival_is_trained_once_and_the_same_again(
    rivals: Any, layers: Any, rows: Any, shop: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    steps = {"epochs": "0.1", "dropout": "0", "lr": "2e-3"}  # three
    monkeypatch.setattr(rivals, "FROM_SCRATCH", steps)
    row = rows.ROWS[name](shop)
    assert row.answers.sets["val"].logits.shape == (20, 3, 8)
    weights = shop.folder / f"{name.lower()}.safetensors"
    assert [path.name for path in shop.folder.glob("*.training*")] == []
    first = load_file(weights)
    again = rivals.rival(name, shop.place, 1, shop.folder, base())
    torch.testing.assert_close(dict(again.module.state_dict()), first, atol=0, rtol=0)
    weights.unlink()
    rivals.rival(name, shop.place, 1, shop.folder, base())
    torch.testing.assert_close(load_file(weights), first, atol=0, rtol=0)
    torch.manual_seed(1)
    untrained = rivals.RIVALS[name].build().state_dict()
    moved = [key for key, tensor in first.items() if not torch.equal(tensor, untrained[key])]
    assert len(moved) == len(first)


def test_the_page_says_of_the_rivals_what_their_script_does(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = importlib.import_module("evidence")
    assert set(page.TRAINED) == set(rivals.RIVALS)
    results = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())
    task = results["tasks"]["fashion-mnist"]
    cells = task["rows"]["Hydra (Circ), tuned"]
    task["rows"] |= dict.fromkeys(rivals.RIVALS, cells)
    text = page.evidence(results)
    width = rivals.ALPHA * rivals.PACKED_DIM // rivals.MEMBERS
    assert f"members of {width} channels ({rivals.ALPHA * 64 / rivals.MEMBERS:.1f}, rounded up" in text
    assert (
        f"ρ = {rivals.SAME}, each batch mixed {['', 'once', 'twice', 'three times', 'four times'][rivals.REPEATED]}"
        in text
    )
    for name in rivals.RIVALS:
        (line,) = [line for line in text.splitlines() if f"| {name} detects OOD data worse" in line]
        assert "auroc +0.0 ± 0.0, fpr95 +0.0 ± 0.0" in line
        assert "held" in line or len(cells) < page.SEEDS
