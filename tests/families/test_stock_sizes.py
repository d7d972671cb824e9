"""Cuts that leave the same number of heads and neurons in every layer are models of their own library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import CLASSIFIERS, DIM, FAMILIES, HEADS, LAYERS, Family, thoroughly
from tiny_members import member

import hydrasurgeon as hs

SIZED = ("ViT", "DeiT", "DeiT distilled", "DINOv2", "DINOv2 with registers")
"""Image encoders of transformers, which take any number of heads."""
WHOLE = ("DINOv2", "DINOv2 with registers")
"""Their ratio is a whole number."""


def cut(source: Path, out: Path, **amount: Any) -> Path:
    return hs.prune(source, method="magnitude", out=f"{out}/", **amount).path


def settings(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return made


def is_stock(folder: Path) -> bool:
    config = settings(folder)
    ours = str(config.get("model_type", config.get("architecture"))).startswith("hydrasurgeon")
    return not ours and "auto_map" not in config and not [*folder.glob("*.py")]


def check_alike(family: Family, folder: Path, source: Path) -> None:
    inputs = family.inputs()
    found = family.stock(folder)(inputs)
    with torch.inference_mode():
        expected = hs.load(folder, device="cpu")(inputs)[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (family.stock(source)(inputs) - found).abs().max() > 1e-2
    assert hs.verify(folder).holds


@pytest.mark.parametrize(
    "family", thoroughly(*(name for name in CLASSIFIERS if name != "OpenCLIP"))
)
def test_fewer_neurons_are_a_smaller_width(family: Family, tmp_path: Path) -> None:
    family.write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=0.5)
    assert is_stock(folder)
    card = (folder / "README.md").read_text()
    assert "trust_remote_code" not in card
    assert "import hydrasurgeon, timm" not in card
    check_alike(family, folder, tmp_path / "source")


@pytest.mark.parametrize("name", SIZED)
def test_image_encoders_may_have_fewer_heads(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    rows = [[0, 2], [1, 3], [2, 3]]
    folder = member(tmp_path / "source", family, rows, f"{tmp_path / 'm'}/")
    assert is_stock(folder)
    config = settings(folder)
    assert (config["num_attention_heads"], config["head_dim"]) == (2, DIM // HEADS)
    check_alike(family, folder, tmp_path / "source")


@pytest.mark.parametrize("name", ["BERT", "DistilBERT", "ModernBERT", "CLIP", "timm ViT"])
def test_others_need_our_code_for_fewer_heads(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    folder = member(tmp_path / "source", family, [[0, 2]] * LAYERS, f"{tmp_path / 'm'}/")
    assert not is_stock(folder)


@pytest.mark.parametrize("name", WHOLE)
def test_a_width_that_the_ratio_cannot_say_needs_our_code(name: str, tmp_path: Path) -> None:
    FAMILIES[name].write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=0.4)
    assert not is_stock(folder)


@pytest.mark.parametrize("width", [1, 47, 64, 100, 127])
def test_timm_rounds_its_ratio_to_the_width(width: int, tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    folder = cut(tmp_path / "source", tmp_path / "m", neurons=width / 128)
    assert int(settings(folder)["model_args"]["mlp_ratio"] * DIM) == width
    check_alike(family, folder, tmp_path / "source")
