"""fuse --mean: one ordinary model of mean weights, and no mean of models that have nothing in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cached import once
from edited import edited
from safetensors.torch import load_file

import hydrasurgeon as hs
from hydrasurgeon.errors import CheckFailed, SurgeryError, UsageError

MAKE = Callable[..., Path]


def test_heads_in_another_order_are_another_training(tiny: MAKE, tmp_path: Path) -> None:
    """The same function, whose mean with itself is another."""
    path = tiny()

    def turned(name: str, values: Any) -> Any:
        if ".attn.qkv." in name:
            return values.reshape(3, 4, 8, -1).roll(1, dims=1).reshape(values.shape)
        if name.endswith(".attn.proj.weight"):
            return values.reshape(32, 4, 8).roll(1, dims=1).reshape(values.shape)
        return values

    edited(path, tmp_path / "turned.safetensors", turned)
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    one, other = (hs.load(tmp_path / f"{name}.safetensors")(x) for name in ("vit", "turned"))
    torch.testing.assert_close(one, other)
    with pytest.raises(SurgeryError, match="their attention weights differ"):
        hs.fuse([path, tmp_path / "turned.safetensors"], mean=True, out=tmp_path / "mean")


@pytest.fixture
def tuned(tiny: MAKE, images: Callable[..., str], tmp_path: Path) -> list[Path]:
    """Three fine-tunings of one start."""
    start, data = tiny(), images()
    settings = {"steps": "2", "lr": "1e-3"}
    places = [tmp_path / f"t{seed}.safetensors" for seed in range(3)]

    def train(_: Path) -> None:
        for seed, out in enumerate(places):
            hs.finetune(start, data=data, recipe="demo", set=settings, seed=seed, out=out)

    once("three fine-tunings", tmp_path, train)
    return places


def test_the_mean_is_one_model_of_mean_weights(tuned: list[Path], tmp_path: Path) -> None:
    data = str(tmp_path / "data.npz")
    made = hs.fuse(tuned, mean=True, check=data, out=tmp_path / "mean.safetensors")
    states, mean = [load_file(path) for path in tuned], load_file(made.path)
    assert mean.keys() == states[0].keys()
    for name, tensor in mean.items():
        expected = torch.stack([state[name].double() for state in states]).mean(dim=0)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-9)
    assert any(not torch.equal(mean[name], states[0][name]) for name in mean)
    assert (made.manifest.kind, made.members, made.bytes_members) == (
        "backbone",
        3,
        3 * made.bytes_stored,
    )
    assert made.agreement is not None
    assert 0 < made.agreement.mean_difference < made.agreement.max_difference < 0.1
    (row,) = hs.evaluate([made.path], data=[data], device="cpu").report.results
    *_, ensemble = hs.evaluate(tuned, data=[data], ensemble=True, device="cpu").report.results
    assert row.id.nll == pytest.approx(ensemble.id.nll, abs=0.01)
    with pytest.raises(CheckFailed, match=r"a class probability differs .* allowed is 1e-09"):
        hs.fuse(
            tuned,
            mean=True,
            check=data,
            tolerance=1e-9,
            out=tmp_path / "mean.safetensors",
            force=True,
        )


def test_no_mean_of_what_has_nothing_in_common(
    tiny: MAKE, tuned: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "mean.safetensors"
    other = tiny("other.safetensors", seed=1)
    with pytest.raises(
        SurgeryError,
        match=r"their attention weights differ from their mean by \d+ % of its norm, as in models that",
    ):
        hs.fuse([tuned[0], other], mean=True, out=out)
    member = hs.prune(tuned[1], method="random", keep=2, out=tmp_path / "m.safetensors").path
    with pytest.raises(SurgeryError, match="differ in the heads, neurons or sizes"):
        hs.fuse([tuned[0], member], mean=True, out=out)
    with pytest.raises(UsageError, match="--mean conflicts with --mlp"):
        hs.fuse(tuned, mean=True, mlp="separate", out=out)
    assert not out.exists()

    def mlps_of_its_own(name: str, values: Any) -> Any:
        return values.roll(1) if ".mlp." in name else values

    edited(tuned[1], tmp_path / "mlps.safetensors", mlps_of_its_own)
    with pytest.raises(SurgeryError, match="their mlp weights differ"):
        hs.fuse([tuned[0], tmp_path / "mlps.safetensors"], mean=True, out=out)
