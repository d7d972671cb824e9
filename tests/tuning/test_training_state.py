"""The state of an interrupted training is believed only where it fits the model, the optimizer and the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hydrasurgeon.errors import HydraError
from hydrasurgeon.tuning.state import State

IDENTITY = {"seed": 0}
POSITION = {"step": 3, "loss_sum": 1.5, "loss_count": 2, "log": [{"epoch": 1.0, "loss": 0.5}]}
Change = Callable[[dict[str, torch.Tensor], dict[str, str]], Any]


def trained(*, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.fixture
def state(tmp_path: Path) -> State:
    made = State(tmp_path / "t.training.safetensors", IDENTITY)
    made.write(*trained(steps=2), POSITION)
    return made


def changed(state: State, change: Change) -> None:
    from safetensors import safe_open

    with safe_open(state.path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(state.path)
    change(tensors, metadata)
    save_file(tensors, state.path, metadata=metadata)


def test_everything_comes_back(state: State) -> None:
    model, optimizer = trained(steps=0)
    position = state.read(model, optimizer)
    assert position is not None
    assert position.model_dump() == POSITION
    wanted, other = trained(steps=2)
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    slots = other.state_dict()["state"]
    for index, slot in optimizer.state_dict()["state"].items():
        assert all(torch.equal(slot[key], slots[index][key]) for key in slots[index])


def said(key: str, value: object) -> Change:
    return lambda tensors, metadata: metadata.update({key: json.dumps(value)})


CHANGES: dict[str, Change] = {
    "no position": lambda tensors, metadata: metadata.pop("position"),
    "no identity": lambda tensors, metadata: metadata.pop("identity"),
    "identity of another type": said("identity", []),
    "another identity": said("identity", {"seed": 1}),
    "position of another type": said("position", 3),
    "position too deep": lambda tensors, metadata: metadata.update(position="[" * 100_000),
    "negative step": said("position", {**POSITION, "step": -1}),
    "step as text": said("position", {**POSITION, "step": "3"}),
    "log of another type": said("position", {**POSITION, "log": [3]}),
    "one field too many": said("position", {**POSITION, "more": 1}),
    "a tensor less": lambda tensors, metadata: tensors.pop("model.0.weight"),
    "a tensor more": lambda tensors, metadata: tensors.update({"model.x": torch.ones(1)}),
    "a stranger": lambda tensors, metadata: tensors.update({"x": torch.ones(1)}),
    "another shape": lambda tensors, metadata: tensors.update({"model.0.weight": torch.ones(4, 3)}),
    "another dtype": lambda tensors, metadata: tensors.update({"model.0.bias": torch.ones(3).long()}),
    "NaN": lambda tensors, metadata: tensors["model.0.weight"].fill_(torch.nan),
    "a slot less": lambda tensors, metadata: tensors.pop("optimizer.0.exp_avg"),
    "a slot of no parameter": lambda tensors, metadata: tensors.update({"optimizer.9.exp_avg": torch.ones(3)}),
    "a slot of another shape": lambda tensors, metadata: tensors.update({"optimizer.0.exp_avg": torch.ones(3)}),
    "a slot of another name": lambda tensors, metadata: tensors.update({"optimizer.0.momentum_buffer": torch.ones(3, 4)}),
    "no number": lambda tensors, metadata: tensors.update({"optimizer.x.exp_avg": torch.ones(3)}),
}  # fmt: skip


@pytest.mark.parametrize("what", list(CHANGES))
def test_what_does_not_fit_is_refused_before_anything_changes(state: State, what: str) -> None:
    changed(state, CHANGES[what])
    model, optimizer = trained(steps=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(HydraError, match=r"t\.training") as refused:
        state.read(model, optimizer)
    assert refused.value.exit_code in (2, 3)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not optimizer.state_dict()["state"]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_state_at_all(state: State, content: bytes) -> None:
    state.path.write_bytes(content)
    with pytest.raises(HydraError, match=r"t\.training"):
        state.read(*trained(steps=0))
