"""The state of an interrupted training is believed only where it fits the model, the optimizer and the arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hydrasurgeon.errors import CheckpointError, UsageError
from hydrasurgeon.files.resumable import FORMAT
from hydrasurgeon.files.tensors import TensorFile, Tensors, weights_sha256
from hydrasurgeon.tuning.training_state import TrainingState

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
def state(tmp_path: Path) -> TrainingState:
    made = TrainingState(tmp_path / "t.training.safetensors", IDENTITY)
    made.write(*trained(steps=2), POSITION)
    return made


def changed(state: TrainingState, change: Change, *, hashed: bool) -> None:
    """The file with other tensors or texts; `hashed` as its writer would have hashed them."""
    metadata, tensors = TensorFile(state.path).metadata, load_file(state.path)
    change(tensors, metadata)
    save_file(tensors, state.path, metadata=metadata)
    if hashed and {"identity", "position"} <= metadata.keys():
        file = Tensors([TensorFile(state.path)])
        other = TrainingState(state.path, json.loads(metadata["identity"]))
        texts = other.texts(json.loads(metadata["position"]), weights_sha256(file, file.digests()))
        save_file(tensors, state.path, metadata={"format": "pt", **texts})


def test_everything_comes_back(state: TrainingState) -> None:
    model, optimizer = trained(steps=0)
    back = state.read(model, optimizer)
    assert back is not None
    assert back[0].model_dump() == POSITION
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
    "a text more": lambda tensors, metadata: metadata.update(more="x"),
    "another format": lambda tensors, metadata: metadata.update(format="np"),
    "an older state": lambda tensors, metadata: metadata.update(
        {FORMAT: "hydrasurgeon.training/1"}
    ),
    "position of another type": said("position", 3),
    "negative step": said("position", {**POSITION, "step": -1}),
    "step as text": said("position", {**POSITION, "step": "3"}),
    "log of another type": said("position", {**POSITION, "log": [3]}),
    "one field too many": said("position", {**POSITION, "more": 1}),
    "a tensor less": lambda tensors, metadata: tensors.pop("model.0.weight"),
    "a tensor more": lambda tensors, metadata: tensors.update({"model.x": torch.ones(1)}),
    "a stranger": lambda tensors, metadata: tensors.update({"x": torch.ones(1)}),
    "another shape": lambda tensors, metadata: tensors.update({"model.0.weight": torch.ones(4, 3)}),
    "another dtype": lambda tensors, metadata: tensors.update(
        {"model.0.bias": torch.ones(3).long()}
    ),
    "NaN": lambda tensors, metadata: tensors["model.0.weight"].fill_(torch.nan),
    "a slot less": lambda tensors, metadata: tensors.pop("optimizer.0.exp_avg"),
    "a slot of no parameter": lambda tensors, metadata: tensors.update(
        {"optimizer.9.exp_avg": torch.ones(3)}
    ),
    "a slot of another shape": lambda tensors, metadata: tensors.update(
        {"optimizer.0.exp_avg": torch.ones(3)}
    ),
    "a slot of another name": lambda tensors, metadata: tensors.update(
        {"optimizer.0.momentum_buffer": torch.ones(3, 4)}
    ),
    "no number": lambda tensors, metadata: tensors.update({"optimizer.x.exp_avg": torch.ones(3)}),
}


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("what", list(CHANGES))
def test_what_does_not_fit_is_refused_before_anything_changes(
    state: TrainingState, what: str, hashed: bool
) -> None:
    changed(
        state,
        CHANGES[what],
        hashed=hashed and "text more" not in what and "format" not in what and "older" not in what,
    )
    model, optimizer = trained(steps=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    refused(state, model, optimizer)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not optimizer.state_dict()["state"]


def refused(state: TrainingState, *parts: Any) -> None:
    with pytest.raises(
        CheckpointError,
        match=(
            r"t\.training\.safetensors: the state of an interrupted training (is damaged|was written by another version"
            r" of hydrasurgeon \(hydrasurgeon\.training/[0-9];)"
        ),
    ) as error:
        state.read(*(parts or trained(steps=0)))
    assert error.value.exit_code == 3
    assert error.value.hint == "Delete t.training.safetensors: the training then starts over."


@pytest.mark.slow
def test_every_byte_counts(state: TrainingState) -> None:
    """In the header, in the texts and in each tensor, and each byte that is not there."""
    whole, parts = state.path.read_bytes(), trained(steps=0)
    length = 8 + int.from_bytes(whole[:8], "little")
    padding = len(whole[:length].rstrip(b" "))
    for at in [*range(padding), *range(length, len(whole), 7)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        state.path.write_bytes(damaged)
        refused(state, *parts)
    for kept in range(0, len(whole), 31):
        state.path.write_bytes(whole[:kept])
        refused(state, *parts)
    state.path.write_bytes(whole)
    assert state.read(*parts) is not None


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({"seed": 1}, r"seed \(0, now 1\)"),
        ({"seed": 0, "device": "cuda"}, r"device \(null, now cuda\)"),
        ({}, r"seed \(0, now null\)"),
    ],
)
def test_another_training_is_named(
    state: TrainingState, identity: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=f"an interrupted training with another {said}$"):
        TrainingState(state.path, identity).read(*trained(steps=0))


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\x02\0\0\0\0\0\0\0[]"])
def test_what_is_no_state_at_all(state: TrainingState, content: bytes) -> None:
    state.path.write_bytes(content)
    refused(state)
