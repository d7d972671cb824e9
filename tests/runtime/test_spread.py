"""Weights that stay in the checkpoint's file until they are read: scores and repairs to the last bit."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.runtime import spread


@pytest.fixture(params=["nothing fits", "one layer's", "all"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What memory has room for, beside what must be there."""

    def places(
        _: nn.Module, inner: dict[nn.Linear, object], main: torch.device, *__: object
    ) -> dict[nn.Linear, torch.device | None]:
        fits = {"nothing fits": 0, "one layer's": 2, "all": len(inner)}[request.param]
        return {layer: main if at < fits else None for at, layer in enumerate(inner)}

    monkeypatch.setattr(spread, "_places", places)
    return str(request.param)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    FAMILIES["Llama"].write(tmp_path / "llama")
    return tmp_path / "llama"


def absent(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.is_meta}


def test_logits_are_the_same(llama: Path, room: str) -> None:
    """Of a decoder's three matrices in each of three MLPs the last is always there."""
    inputs = FAMILIES["Llama"].inputs()
    model = hs.load(llama, device="spread")
    assert len(absent(model)) == 2 * {"nothing fits": 6, "one layer's": 4, "all": 0}[room]
    with torch.inference_mode():
        assert torch.equal(model(inputs), hs.load(llama, device="cpu")(inputs))


@pytest.mark.parametrize("method", ["taylor", "fisher", "headmap"])
def test_scores_are_the_same(llama: Path, room: str, tmp_path: Path, method: str) -> None:
    data = FAMILIES["Llama"].data(tmp_path)
    options: dict[str, Any] = {"method": method, "data": data}
    expected = hs.score(llama, device="cpu", out=tmp_path / "a.safetensors", **options).result
    scored = hs.score(llama, device="spread", out=tmp_path / "b.safetensors", **options).result
    assert expected.values == scored.values


@pytest.mark.parametrize("repair", ["mean", "lstsq"])
def test_repairs_are_the_same(llama: Path, room: str, tmp_path: Path, repair: str) -> None:
    """Of heads and neurons."""
    data = FAMILIES["Llama"].data(tmp_path)
    options: dict[str, Any] = {
        "method": "magnitude",
        "keep": 3,
        "neurons": 0.5,
        "compensate": repair,
        "data": data,
    }
    written = [
        load_file(
            hs.prune(llama, device=device, out=tmp_path / f"{device}.safetensors", **options).path
        )
        for device in ("cpu", "spread")
    ]
    assert all(torch.equal(written[0][name], written[1][name]) for name in written[0])


def test_gradients_hold_one_matrix_at_a_time(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd keeps none of what is brought; it is read again."""
    read: list[weakref.ref[Any]] = []
    bring = spread.InFile.__getitem__

    def watched(weights: spread.InFile, name: str) -> torch.Tensor:
        tensor = bring(weights, name)
        if name == "weight":
            assert sum(storage() is not None for storage in read) <= 1
            read.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    monkeypatch.setattr(spread, "room", dict)
    model = hs.load(llama, device="spread").requires_grad_(False)
    model.anatomy.blocks[0].attention.out.weight.requires_grad_(True)
    monkeypatch.setattr(spread.InFile, "__getitem__", watched)
    model(FAMILIES["Llama"].inputs()).sum().backward()
    assert len(read) == 2 * 6
