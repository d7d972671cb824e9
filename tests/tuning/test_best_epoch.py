"""With a validation set the best epoch is written, and training ends when no better one comes; weights are averaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.tuning.copies import Copies
from hydrasurgeon.tuning.recipes import load_recipe

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
LEARNS = {"batch_size": "8", "lr": "3e-3", "warmup": "0", "schedule": "constant", "dropout": "0.1"}
"""No step depends on how many there are, so that a training of fewer epochs is the beginning of a longer one."""


def misleading(images: SPEC) -> str:
    """A validation set of other labels, which learning harms sooner or later."""
    path = images("val.npz", seed=9, rows=20)
    arrays = dict(np.load(path))
    np.savez(
        path, images=arrays["images"], labels=np.random.default_rng(1).permutation(arrays["labels"])
    )
    return path


@pytest.mark.parametrize("ema", ["0", "0.9"])
def test_the_best_epoch_is_what_a_training_that_ended_there_writes(
    tiny: MAKE, images: SPEC, tmp_path: Path, ema: str
) -> None:
    path, data = tiny(), images()
    options = {"data": data, "val": misleading(images), "recipe": "demo"}
    settings = LEARNS | {"ema": ema, "augment.hflip": "1"}
    whole = hs.finetune(
        path,
        set=settings | {"epochs": "8", "patience": "2"},
        out=tmp_path / "whole.safetensors",
        **options,
    )
    measured = [entry["val_nll"] for entry in whole.trained.log]
    best = measured.index(min(measured)) + 1
    assert whole.trained.kept_epoch == best
    assert whole.trained.stopped_early
    assert len(measured) == best + 2
    short = settings | {"epochs": str(best), "keep": "last"}
    until = hs.finetune(path, set=short, out=tmp_path / "until.safetensors", **options)
    assert until.trained.kept_epoch is None
    assert not until.trained.stopped_early
    assert until.manifest.weights_sha256 == whole.manifest.weights_sha256
    # What was measured is what was written.
    nll = hs.evaluate([whole.path], data=str(options["val"])).report.results[0].id.nll
    assert nll == pytest.approx(min(measured), abs=1e-5)


def test_an_average_by_hand() -> None:
    model, recipe = nn.Linear(1, 1, bias=False), load_recipe("demo", {"ema": "0.5"})
    with torch.no_grad():
        model.weight.fill_(1.0)
        copies, average = Copies(model, recipe, validated=False), 1.0
        for step in range(1, 20):
            model.weight.fill_(step)
            copies.average(step)
            decay = min(0.5, (1 + step) / (10 + step))
            average = decay * average + (1 - decay) * step
        with copies.averaged():
            assert model.weight.item() == pytest.approx(average)
        assert model.weight.item() == 19
        copies.settle()
    assert model.weight.item() == pytest.approx(average)


@pytest.mark.parametrize("cut", [12, 23])
def test_an_interrupted_run_chooses_the_same(
    tiny: MAKE, images: SPEC, tmp_path: Path, cut: int
) -> None:
    """Before and after the best epoch, which is kept in the state."""
    path = tiny()
    options = {"data": images(), "val": misleading(images), "recipe": "demo"}
    options |= {"set": LEARNS | {"epochs": "8", "patience": "2", "ema": "0.9"}}
    whole = hs.finetune(path, out=tmp_path / "whole.safetensors", **options)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == cut:
            raise Killed

    with pytest.raises(Killed):
        hs.finetune(path, out=tmp_path / "cut.safetensors", save_every=3, progress=kill, **options)
    best = 5 * int(whole.trained.kept_epoch or 0)
    assert 12 < best < 23 < whole.trained.steps < 40
    resumed = hs.finetune(path, out=tmp_path / "cut.safetensors", resume=True, **options)
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert resumed.trained == whole.trained
