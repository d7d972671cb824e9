"""FSDP: two processes, each with a part of every weight, train like one that has them all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_families import FAMILIES, KINDS
from torch import nn
from two_processes import in_two_processes

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import removed
from hydrasurgeon.checkpoints.reading import open_single
from hydrasurgeon.files.tensors import TensorFile
from hydrasurgeon.runtime.classifier import live_module
from hydrasurgeon.tuning.fsdp import units

SETTINGS = {"epochs": "2", "classifier": "keep", "clip": "0.5", "ema": "0.5"}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_unit_is_read_by_its_own_forward_alone(name: str, tmp_path: Path) -> None:
    """Else its weight would be a part where a whole one is read: with zeros in its place outside of
    its forward the logits stay the same."""
    family = FAMILIES[name]
    family.write(tmp_path / "model")
    module = live_module(open_single(tmp_path / "model"))
    with torch.no_grad():
        expected = module(family.inputs())
    linears = list(units(module))
    whole = {linear: linear.weight.data for linear in linears}

    def gather(linear: nn.Module, _: object) -> None:
        assert isinstance(linear, nn.Linear)
        linear.weight.data = whole[linear]

    def leave(linear: nn.Module, *_: object) -> None:
        assert isinstance(linear, nn.Linear)
        linear.weight.data = torch.zeros_like(whole[linear])

    for linear in linears:
        leave(linear)
    hooks = [linear.register_forward_pre_hook(gather) for linear in linears]
    hooks += [linear.register_forward_hook(leave) for linear in linears]
    with torch.no_grad(), removed(*hooks):
        assert torch.equal(module(family.inputs()), expected)
    weights = sum(parameter.numel() for parameter in module.parameters())
    if family.library == "transformers":
        assert sum(linear.weight.numel() for linear in linears) > weights / 2


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["text", "lora"])
def test_two_processes_train_like_one(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the batch each; clipped, averaged, the best epoch kept, one layer without heads."""
    llama = FAMILIES["Llama"]
    llama.write(tmp_path / "llama")
    (tmp_path / "mask.json").write_text(json.dumps({"text": [[0, 1, 2, 3], [], [1, 3]]}))
    start = tmp_path / "start.safetensors"
    hs.prune(tmp_path / "llama", mask=tmp_path / "mask.json", out=start)
    data = llama.data(tmp_path, rows=32)
    options: dict[str, Any] = {"data": data, "val": data, "recipe": recipe, "device": "cpu"}
    one = hs.finetune(
        start, **options, set=SETTINGS | {"batch_size": "8"}, out=tmp_path / "one.safetensors"
    )
    two = tmp_path / "two.safetensors"
    sets = [f"--set={key}={value}" for key, value in (SETTINGS | {"batch_size": "4"}).items()]
    words = [f"--{key}={value}" for key, value in options.items()]
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    printed = in_two_processes("finetune", str(start), *words, *sets, "-o", str(two), "--json")
    log = json.loads(printed)["log"]
    assert len(log) == len(one.trained.log) == 3
    for ours, theirs in zip(log, one.trained.log, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    assert TensorFile(two).infos == TensorFile(one.path).infos
    written, before = load_file(two), load_file(start)
    for name, tensor in load_file(one.path).items():
        torch.testing.assert_close(written[name], tensor, rtol=0, atol=1e-5)
    assert any(not torch.equal(written[name], before[name]) for name in before)


INTERRUPTED = """
import sys
import hydrasurgeon as hs
from hydrasurgeon.tuning import loop

start, data, whole, cut = sys.argv[1:]
options = {"data": data, "val": data, "recipe": "text", "device": "cpu", "save_every": 3}
options["set"] = {"epochs": "3", "classifier": "probe", "batch_size": "4", "ema": "0.5"}
hs.finetune(start, out=whole, **options)
step = loop._Loop.step

def killed(self, number, parts):
    if number == 7:
        raise KeyboardInterrupt
    return step(self, number, parts)

loop._Loop.step = killed
try:
    hs.finetune(start, out=cut, **options)
except KeyboardInterrupt:
    loop._Loop.step = step
hs.finetune(start, out=cut, resume=True, **options)
"""


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, the optimizer's moments, the average and the best epoch come back in parts."""
    llama = FAMILIES["Llama"]
    llama.write(tmp_path / "llama")
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    whole, cut = tmp_path / "whole.safetensors", tmp_path / "cut.safetensors"
    words = [tmp_path / "llama", llama.data(tmp_path, rows=32), whole, cut]
    in_two_processes(*map(str, words), program=(str(tmp_path / "interrupted.py"),))
    assert whole.read_bytes() == cut.read_bytes()
