"""fuse --mean-trunk: leading layers become the mean of the members' own, and the branches behind them stay."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_families import ONE_CLASS, Family, thoroughly
from tiny_members import tune

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.errors import SurgeryError, UsageError

MAKE = Callable[..., Path]


def mean_trunk(opened: Checkpoint, layers: int, states: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of embeddings and leading layers of the tower that data runs through, by hand."""
    tower = next(iter(opened.manifest.towers))
    inside = {
        name
        for name, weight in opened.weights.items()
        if weight.tower == tower
        and (weight.part == "embedding" if weight.layer is None else weight.layer < layers)
    }
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).float()
        for name in inside
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", thoroughly(*ONE_CLASS))
def test_it_answers_as_stock_models_with_the_mean_in_front(family: Family, tmp_path: Path) -> None:
    source = tmp_path / "source"
    family.write(source)
    tuned = [tune(source, tmp_path / f"t{i}.safetensors", seed=i) for i in range(3)]
    made = hs.fuse(tuned, mean_trunk=2, out=tmp_path / "hydra.safetensors")
    opened, states = open_checkpoint(source), [load_file(path) for path in tuned]
    front = mean_trunk(opened, 2, states)
    expected = []
    for i, state in enumerate(states):
        folder = tmp_path / f"stock{i}"
        shutil.copytree(source, folder)
        weights = next(folder.glob("*.safetensors"))
        disk = load_file(weights)
        disk |= {opened.tensors.stored(n): t for n, t in {**state, **front}.items()}
        save_file(disk, weights, metadata={"format": "pt"})
        expected.append(family.stock(folder)(family.inputs()).softmax(dim=-1))
    assert (expected[0] - expected[1]).abs().max() > 1e-3
    answers = hs.load(made.path, device="cpu").predict(family.inputs())
    torch.testing.assert_close(answers, torch.stack(expected).mean(dim=0), rtol=0, atol=1e-5)
    stored = load_file(made.path)
    assert all(torch.equal(stored[name], tensor) for name, tensor in front.items())
    assert made.manifest.fusion is not None
    assert (made.manifest.fusion.mlp, made.manifest.fusion.trunk) == ("separate", 2)


@pytest.fixture
def tuned(tiny: MAKE, images: Callable[..., str], tmp_path: Path) -> list[Path]:
    """Three fine-tunings of one start."""
    start, data = tiny(), images()
    settings = {"steps": "2", "lr": "1e-3"}
    places = [tmp_path / f"t{seed}.safetensors" for seed in range(3)]
    for seed, out in enumerate(places):
        hs.finetune(start, data=data, recipe="demo", set=settings, seed=seed, out=out)
    return places


def test_no_mean_trunk_of_what_has_nothing_in_common(
    tiny: MAKE, tuned: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "hydra.safetensors"
    other = tiny("other.safetensors", seed=1)
    with pytest.raises(
        SurgeryError, match=r"--mean-trunk: their attention weights differ from their mean by \d+ %"
    ):
        hs.fuse([tuned[0], other], mean_trunk=1, out=out)
    cut = hs.prune(tuned[1], method="random", keep=2, out=tmp_path / "m.safetensors").path
    with pytest.raises(SurgeryError, match="differ in the heads, neurons or sizes"):
        hs.fuse([tuned[0], cut], mean_trunk=2, out=out)
    with pytest.raises(SurgeryError, match=r"--mean-trunk 99: the model has \d+ layers"):
        hs.fuse(tuned, mean_trunk=99, out=out)
    with pytest.raises(UsageError, match="--mean conflicts with --mean-trunk"):
        hs.fuse(tuned, mean=True, mean_trunk=1, out=out)
    assert not out.exists()
    averaged = hs.fuse(tuned, mean_trunk=1, mlp="average", out=out).manifest
    assert averaged.fusion is not None
    assert averaged.fusion.mlp == "average"
