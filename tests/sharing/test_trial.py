"""`export --check`: what a file answers on the user's data, beside the model that it was made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exporting import exports
from tiny_families import CLASSES, FAMILIES
from torch import Tensor

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import Batches
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.options.measuring import ExportOptions
from hydrasurgeon.sharing import trial

FAMILY = FAMILIES["timm ViT"]


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, str, str]:
    """A model, labelled data, and noise."""
    FAMILY.write(tmp_path / "v")
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "noise.npz",
        images=rng.integers(0, 256, (24, 28, 28, 3), dtype=np.uint8),
        labels=np.arange(24) % CLASSES,
    )
    return tmp_path / "v", FAMILY.data(tmp_path), str(tmp_path / "noise.npz")


def tried(model: Any, data: str, *ood: str, tolerance: float = 0.0) -> trial.Trial:
    options = ExportOptions(checkpoint="v", check=data, ood=ood, tolerance=tolerance)
    return trial.opened_trial(model.manifest.model, data, options)


def test_the_model_is_measured_as_eval_measures_it(prepared: Any) -> None:
    path, data, noise = prepared
    model = hs.load(path, device="cpu")
    compared = tried(model, data, f"noise={noise}").compared(
        model, trial.in_torch(model), trial.in_torch(model)
    )
    assert compared["before"] == compared["after"]
    report = hs.evaluate([path], data=data, ood=[f"noise={noise}"], device="cpu").report.results[0]
    assert report.ood is not None
    assert compared["before"]["accuracy"] == pytest.approx(report.id.accuracy, abs=1e-9)
    assert compared["before"]["ece"] == pytest.approx(report.id.ece, abs=1e-6)
    assert compared["before"]["auroc.noise"] == pytest.approx(report.ood[0].auroc, abs=1e-6)


def test_a_file_that_answers_worse_is_named(prepared: Any) -> None:
    path, data, _ = prepared
    arrays = dict(np.load(data))
    arrays["labels"][::3] = 1  # the model is right of two thirds
    np.savez(data, **arrays)
    model = hs.load(path, device="cpu")
    opened = tried(model, data, tolerance=0.01)

    def too_sure(inputs: Any) -> tuple[Tensor, None]:
        probs = model.predict(inputs)
        return torch.nn.functional.one_hot(probs.argmax(-1), CLASSES).to(probs.dtype), None

    # As often right as before, and always sure of it.
    wrong = 1 - trial.measured(too_sure, model, opened, "it")["accuracy"]
    with pytest.raises(
        CheckFailed, match=rf": ece: 0\.\d+ before, {wrong:.4f} in the file$"
    ) as said:
        opened.compared(model, trial.in_torch(model), too_sure)
    assert said.value.exit_code == 1
    compared = tried(model, data, tolerance=1.0).compared(model, trial.in_torch(model), too_sure)
    assert compared["after"]["ece"] == pytest.approx(wrong)


@pytest.mark.parametrize("where", ["data.npz", "noise.npz"])
@pytest.mark.parametrize("what", ["probabilities", "scores"])
def test_a_file_that_answers_nan_is_named(where: str, what: str, prepared: Any) -> None:
    """OOD samples count too, whose AUROC would be better for it."""
    path, data, noise = prepared
    model = hs.load(path, device="cpu")
    opened = tried(model, data, f"noise={noise}", tolerance=1.0)
    samples = {"data.npz": opened.samples, "noise.npz": opened.ood_sets["noise"]}[where]
    first = next(iter(Batches(samples, model.transform, batch_size=1)))

    def spoiled(inputs: Any) -> tuple[Tensor, Tensor]:
        probs = model.predict(inputs).clone()
        scores = 1 - probs.amax(dim=-1)
        row = (inputs == first.inputs).flatten(1).all(dim=1)
        (probs if what == "probabilities" else scores)[row] = float("nan")
        return probs, scores

    with pytest.raises(
        CheckFailed, match=rf"the file answers NaN for 1 of 24 samples of .*{where}$"
    ):
        opened.compared(model, trial.in_torch(model), spoiled)


@exports
@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
def test_a_file_is_tried(prepared: Any, tmp_path: Path, capsys: Any) -> None:
    path, _, noise = prepared
    data = FAMILY.data(tmp_path, rows=160)
    path = hs.calibrate(path, data=data, ood_score="rmds", out=tmp_path / "c.safetensors").path
    out = tmp_path / "c.onnx"
    line = f"export {path} -o {out} --check {data} --ood noise={noise} --json"
    assert run(line.split()) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["int8"] is None
    before, after = said["check"]["before"], said["check"]["after"]
    assert set(before) >= {"accuracy", "ece", "auroc.noise", "flagged", "coverage"}
    # Thresholds are some sample's own score, and rounding may put that sample on either side.
    assert after == pytest.approx(before, abs=1.5 / 160)
    report = hs.evaluate([path], data=data, ood=[f"noise={noise}"], device="cpu").report.results[0]
    assert report.ood is not None
    assert before["auroc.noise"] == pytest.approx(report.ood[0].auroc, abs=1e-6)
