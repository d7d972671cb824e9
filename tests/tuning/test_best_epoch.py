"""With a validation set the best epoch is written, and training ends when no better one comes; weights are averaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fitted_heads import outputs_of
from safetensors.torch import load_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import hydrasurgeon as hs

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
LEARNS = {"batch_size": "8", "lr": "3e-3", "warmup": "0", "schedule": "constant", "dropout": "0.1"}
"""No step depends on how many there are, so that a training of fewer epochs is the beginning of a longer one."""


def least(path: Path, data: str) -> float:
    """The NLL at the temperature that fits these labels best."""
    _, logits, labels = outputs_of(path, data)

    def nll(log_temperature: float) -> float:
        logs = log_softmax(logits / np.exp(log_temperature), axis=-1)
        return -float(np.mean(logs[np.arange(len(labels)), labels]))

    return float(minimize_scalar(nll, bounds=(-3, 3), method="bounded").fun)


@pytest.mark.slow
def test_the_best_epoch_is_what_a_training_that_ended_there_writes(
    tiny: MAKE, images: SPEC, tmp_path: Path
) -> None:
    path, data = tiny(), images()
    options = {"data": data, "val": images("val.npz", seed=9, rows=20), "recipe": "demo"}
    settings = LEARNS | {"augment.hflip": "1"}
    whole = hs.finetune(
        path,
        set=settings | {"epochs": "12", "patience": "2"},
        out=tmp_path / "whole.safetensors",
        **options,
    )
    measured = [entry["val_calibrated_nll"] for entry in whole.trained.log]
    best = measured.index(min(measured))
    assert whole.trained.kept_epoch == best > 0
    assert whole.trained.stopped_early
    assert len(measured) == best + 3  # the start is epoch 0
    short = settings | {"epochs": str(best), "keep": "last"}
    until = hs.finetune(path, set=short, out=tmp_path / "until.safetensors", **options)
    assert until.trained.kept_epoch is None
    assert not until.trained.stopped_early
    assert until.manifest.weights_sha256 == whole.manifest.weights_sha256
    # What was measured is what was written.
    nll = hs.evaluate([whole.path], data=str(options["val"])).report.results[0].id.nll
    assert nll == pytest.approx(whole.trained.log[best]["val_nll"], abs=1e-5)
    assert least(whole.path, str(options["val"])) == pytest.approx(min(measured), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_start_may_be_kept(tiny: MAKE, images: SPEC, tmp_path: Path, keep: str) -> None:
    """A rate that ruins the model: what is written is no worse than what was given."""
    val, path = images("val.npz", seed=9, rows=20), tmp_path / "learnt.safetensors"
    learns = LEARNS | {"epochs": "6", "keep": "last"}
    hs.finetune(tiny(), data=images(), recipe="demo", set=learns, out=path)
    ruin = {"lr": "10", "optimizer": "sgd", "clip": "null", "epochs": "2", "keep": keep}
    out = tmp_path / "t.safetensors"
    tuned = hs.finetune(path, data=images(), val=val, recipe="demo", set=ruin, out=out)
    start, *epochs = tuned.trained.log
    given = hs.evaluate([path], data=val).report.results[0].id
    assert start == {
        "epoch": 0.0,
        "val_accuracy": pytest.approx(given.accuracy),
        "val_nll": pytest.approx(given.nll, abs=1e-5),
        "val_calibrated_nll": pytest.approx(least(path, val), abs=1e-4),
    }
    kept_by = "val_calibrated_nll"
    assert all(epoch[kept_by] > start[kept_by] for epoch in epochs if kept_by in epoch)
    before, after = load_file(path), load_file(out)
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    assert unchanged == (keep == "best")
    assert tuned.trained.kept_epoch == (0 if keep == "best" else None)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [23, 33])
def test_an_interrupted_run_chooses_the_same(
    tiny: MAKE, images: SPEC, tmp_path: Path, cut: int
) -> None:
    """Before and after the best epoch, which is kept in the state."""
    path = tiny()
    val = images("val.npz", seed=9, rows=20)
    options = {"data": images(), "val": val, "recipe": "demo"}
    options |= {"set": LEARNS | {"epochs": "12", "patience": "4"}}
    whole = hs.finetune(path, out=tmp_path / "whole.safetensors", **options)

    class Killed(Exception):
        pass

    def kill(what: str, done: int, total: int) -> None:
        if done == cut:
            raise Killed

    with pytest.raises(Killed):
        hs.finetune(path, out=tmp_path / "cut.safetensors", save_every=3, progress=kill, **options)
    best = 5 * int(whole.trained.kept_epoch or 0)
    assert 23 < best < 33 < whole.trained.steps < 60
    resumed = hs.finetune(path, out=tmp_path / "cut.safetensors", resume=True, **options)
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert resumed.trained == whole.trained
