"""`finetune --track`: the curves that a tracker gets are those of the training, and change nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import hydrasurgeon as hs

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
RECIPE = {"batch_size": "8", "lr": "1e-3", "warmup": "0", "schedule": "constant", "epochs": "2"}


def test_tensorboard_has_the_trainings_figures(tiny: MAKE, images: SPEC, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, data, val = tiny(), images(), images("val.npz", seed=9, rows=16)
    options = {"data": data, "val": val, "recipe": "demo", "set": RECIPE}
    plain = hs.finetune(path, **options, out=tmp_path / "plain.safetensors")
    tracked = hs.finetune(path, **options, out=tmp_path / "m1.safetensors", track="tensorboard")
    assert tracked.manifest.weights_sha256 == plain.manifest.weights_sha256
    curves = EventAccumulator(str(tmp_path / "runs" / "m1"))
    curves.Reload()
    log, steps = tracked.trained.log, tracked.trained.steps
    nll = [(event.step, event.value) for event in curves.Scalars("val_nll")]
    assert [step for step, _ in nll] == [0, steps // 2, steps]
    assert [value for _, value in nll] == pytest.approx([entry["val_nll"] for entry in log])
    losses = [event.value for event in curves.Scalars("step_loss")]
    assert len(losses) == steps
    assert sum(losses[steps // 2 :]) / (steps // 2) == pytest.approx(log[-1]["loss"])
    rates = [event.value for event in curves.Scalars("lr")]
    assert rates == pytest.approx([1e-3] * steps)
