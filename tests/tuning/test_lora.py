"""Low-rank changes: what comes out differs from the start by rank 4 in attention's projections, and nowhere else but in the classifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, Family

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import SurgeryError

pytest.importorskip("peft")
CHANGED = ("attention", "output", "classifier")
FIELDS = {"steps": "3", "batch_size": "8", "lr": "0.05"}


def pruned(family: Family, folder: Path) -> Path:
    """A backbone without some heads, another number in each layer."""
    family.write(folder / "backbone")
    rows = [[0, 2], [0, 1, 2, 3], [1]]
    (folder / "mask.json").write_text(json.dumps(family.both(rows)))
    return hs.prune(folder / "backbone", mask=folder / "mask.json", out=folder / "member").path


@pytest.mark.parametrize("name", ["timm ViT", "BERT"])
def test_only_attention_moves_and_only_by_the_rank(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    start = pruned(family, tmp_path)
    data = family.data(tmp_path)
    fields = FIELDS | {"lora_rank": "2"}
    tuned = hs.finetune(start, data=data, recipe="lora", set=fields, out=tmp_path / "t", device="cpu").path  # fmt: skip
    before, after = load_file(start), load_file(tuned)
    weights = {w.name: w for w in open_checkpoint(start).weights.values()}
    assert before.keys() == after.keys()
    for key, old in before.items():
        change = (after[key] - old).double()
        if weights[key].part not in CHANGED or (weights[key].part != "classifier" and old.ndim < 2):
            assert not change.any(), key
        elif weights[key].part != "classifier":
            rank = int(torch.linalg.matrix_rank(change, rtol=1e-4))
            assert 1 <= rank <= 2, key


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)

    def tuned(name: str, seed: int) -> bytes:
        made = hs.finetune(start, data=data, recipe="lora", set=FIELDS, seed=seed, out=tmp_path / name, device="cpu")  # fmt: skip
        return made.path.read_bytes()

    assert tuned("a", 1) == tuned("b", 1) != tuned("c", 2)


def test_an_ensemble_shares_what_no_change_touched(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    start, data = pruned(family, tmp_path), family.data(tmp_path)
    members = [
        hs.finetune(start, data=data, recipe="lora", set=FIELDS, seed=seed, out=tmp_path / f"m{seed}", device="cpu").path
        for seed in (1, 2, 3)
    ]  # fmt: skip
    fused = hs.fuse(members, out=tmp_path / "hydra")
    names = load_file(fused.path).keys()
    own = {name.split(".", 2)[2] for name in names if name.startswith("members.")}
    parts = {w.name: w.part for w in open_checkpoint(start).weights.values()}
    assert own
    assert {parts[name] for name in own} <= set(CHANGED)


def test_attention_without_linear_layers_is_refused(tmp_path: Path) -> None:
    family = FAMILIES["EVA02"]
    family.write(tmp_path / "eva")
    with pytest.raises(SurgeryError, match="does not run as such"):
        hs.finetune(
            tmp_path / "eva", data=family.data(tmp_path), recipe="lora", set=FIELDS, out=tmp_path / "t", device="cpu"
        )  # fmt: skip
    assert not (tmp_path / "t.safetensors").exists()
