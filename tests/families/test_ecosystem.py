"""Directories load in the library the model came from, with the same outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_families import FAMILIES
from tiny_members import RAGGED, member, members_of

import hydrasurgeon as hs

pytestmark = pytest.mark.usefixtures("own_module_cache")


def test_unpruned_results_need_no_code_of_ours(tmp_path: Path) -> None:
    family = FAMILIES["ViT"]
    family.write(tmp_path / "source")
    same = hs.prune(tmp_path / "source", method="magnitude", keep=4, out=f"{tmp_path / 'same'}/")
    assert "auto_map" not in json.loads((same.path / "config.json").read_text())
    inputs = family.inputs()
    found, expected = family.stock(same.path)(inputs), family.stock(tmp_path / "source")(inputs)
    assert torch.equal(found, expected)


TIMM = """
import {order}
import json, torch
inputs = torch.load({inputs!r})
model = timm.create_model("local-dir:{folder}", pretrained={pretrained}).eval()
with torch.inference_mode():
    print(json.dumps(model(inputs).softmax(dim=-1).tolist()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("DINOv3 with biases and SwiGLU", "member"), ("timm ViT", "hydra")]
)
def test_timm_loads_members_and_hydras(tmp_path: Path, name: str, kind: str) -> None:
    """In a fresh process, whichever is imported first."""
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    torch.save(family.inputs(), tmp_path / "inputs.pt")
    if kind == "member":
        made = member(tmp_path / "source", family, RAGGED, f"{tmp_path / 'out'}/")
    else:
        parts = members_of(tmp_path / "source", family, tmp_path)
        made = hs.fuse(parts, out=f"{tmp_path / 'out'}/").path
    expected = hs.load(made, device="cpu").predict(family.inputs())
    order, pretrained = (
        ("hydrasurgeon, timm", True) if kind == "member" else ("timm, hydrasurgeon", False)
    )
    code = TIMM.format(
        order=order, inputs=str(tmp_path / "inputs.pt"), folder=made, pretrained=pretrained
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_card_says_what_it_is_and_how_it_was_made(tmp_path: Path) -> None:
    family = FAMILIES["BERT"]
    family.write(tmp_path / "source")
    data = family.data(tmp_path)
    hs.score(tmp_path / "source", method="taylor", data=data, keep=2, device="cpu")
    a = hs.prune(tmp_path / "source", method="taylor", keep=2, out=tmp_path / "a.safetensors").path
    b = hs.prune(
        tmp_path / "source", method="random", keep=3, seed=4, out=tmp_path / "b.safetensors"
    ).path
    card = (hs.fuse([a, b], out=f"{tmp_path / 'h'}/").path / "README.md").read_text()
    assert "keep different attention heads of one pretrained model (6, 9 of 12)" in card
    assert "`hydrasurgeon prune source --method random --keep 3 --seed 4`" in card
    assert (
        'AutoModelForSequenceClassification.from_pretrained("DIR", trust_remote_code=True)' in card
    )
    assert "Nothing was recorded." in card
    assert str(tmp_path) not in card
