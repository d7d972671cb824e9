"""The rivals in benchmarks/quality_rivals_trained.py: what they cost, what is kept of them, and that their members are what the
methods say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import Classifier, as_classifier

ROOT = Path(__file__).parents[2]
# torch-uncertainty's own, and of what it imports.
pytestmark = [
    pytest.mark.bench,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("quality_rivals_trained")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("quality_rows")


def base() -> Classifier:
    return as_classifier(
        open_checkpoint(ROOT / "hydrasurgeon" / "demo" / "backbone.safetensors"), device="cpu"
    )


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
    hidden = torch.randn(
        6, 7, 5, generator=random, dtype=torch.float64
    )  # two images for each of three members
    result = rivals.Tokenwise(layer)(hidden)
    for row in range(6):
        member = row // 2
        weight = linear.weight * torch.outer(s[member], r[member])
        torch.testing.assert_close(
            result[row], hidden[row] @ weight.T + bias[member], atol=1e-12, rtol=0
        )
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


def test_the_page_says_of_the_rivals_what_their_script_does(
    rivals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    page = importlib.import_module("pages.evidence")
    assert set(page.TRAINED) == set(rivals.RIVALS)
    results = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())
    task = results["tasks"]["fashion-mnist"]
    cells = task["rows"]["Hydra (Circ), tuned"]
    task["rows"] |= dict.fromkeys(rivals.RIVALS, cells)
    text = page.page(results)
    width = rivals.ALPHA * rivals.PACKED_DIM // rivals.MEMBERS
    assert (
        f"members of {width} channels ({rivals.ALPHA * 64 / rivals.MEMBERS:.1f}, rounded up" in text
    )
    assert (
        f"ρ = {rivals.SAME}, each batch mixed {['', 'once', 'twice', 'three times', 'four times'][rivals.REPEATED]}"
        in text
    )
    for name in rivals.RIVALS:
        (line,) = [line for line in text.splitlines() if f"| {name} detects OOD data worse" in line]
        assert "auroc +0.0 ± 0.0, fpr95 +0.0 ± 0.0" in line
        assert "held" in line
