"""build of models of numbers: chosen by the error of their mean, which is worked out here in numpy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from edited import edited
from fitted_heads import HEADS, Array, outputs_of
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.errors import UsageError


def table(place: Path, seed: int, rows: int = 120) -> str:
    """A word adds to the number, which is noisy."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        words = [*rng.choice(WORDS[4:], size=4)]
        there = rng.random() < 0.5
        if there:
            words.append(WORDS[0])
        number = 2.0 * there + 0.3 * rng.normal()
        lines.append(json.dumps({"text": " ".join(words), "label": number}))
    place.write_text("\n".join(lines) + "\n")
    return str(place)


def rmse(values: Array, labels: Array) -> float:
    return float(np.sqrt(np.mean((values[:, 0] - labels) ** 2)))


def test_errors_that_cancel_make_the_mean(tmp_path: Path) -> None:
    """One model says too much, the other too little by as much: their mean is right."""
    train, val = (table(tmp_path / f"{name}.jsonl", seed) for name, seed in (("t", 1), ("v", 2)))
    FAMILIES["BERT"].write(tmp_path / "bert")
    start = tmp_path / "start.safetensors"
    settings = {"problem": "number"}
    hs.finetune(tmp_path / "bert", data=train, recipe="probe", set=settings, out=start)
    models = []
    for number, shift in ((1, 1.0), (2, -1.0)):

        def moved(name: str, tensor: torch.Tensor, shift: float = shift) -> torch.Tensor:
            if name.startswith(HEADS) and name.endswith("bias"):
                return tensor + shift
            return tensor

        models.append(edited(start, tmp_path / f"m{number}.safetensors", moved))
    options = {"data": train, "val": val, "device": "cpu"}
    built = hs.build(models, budget="macs=1,2", out=f"{tmp_path / 'front'}/", **options)
    record = json.loads((tmp_path / "front" / "front.json").read_text())
    assert record["objective"] == "rmse"
    (first, labels), (second, _) = (outputs_of(path, val)[1:] for path in models)
    mean, probe = (
        outputs_of(built.work / f"{name}.safetensors", val)[1] for name in ("mean", "probe")
    )
    expected = {
        "single model, calibrated": rmse(first, labels),
        "probe": rmse(probe, labels),
        "mean of 2": rmse(mean, labels),
        "ensemble of 2": rmse((first + second) / 2, labels),
    }
    assert expected["mean of 2"] < expected["single model, calibrated"] - 0.3
    found = {each["name"]: each["rmse"] for each in record["references"]}
    assert found == pytest.approx(expected, abs=1e-5)
    best = min(expected.values())
    for rung in record["rungs"]:
        assert rung["rmse"] <= best + 1e-3
        assert rung["estimate"] == pytest.approx(-rung["rmse"])
        manifest = open_checkpoint(tmp_path / "front" / rung["path"]).manifest
        assert manifest.decision is not None
    with pytest.raises(UsageError, match="--objective nll is not for the problem of"):
        hs.build(models, budget="macs=1", objective="nll", out=tmp_path / "x", **options)
