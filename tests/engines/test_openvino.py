"""The engine `openvino`: torch's answers, in either precision; which one is measured and recorded."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_labels import any_labels
from exporting import exports, lacking, onnx_writes
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.engines import engine_of, runnable
from hydrasurgeon.engines import runtimes as engine
from hydrasurgeon.stages import calibrate
from hydrasurgeon.stages.export import export

pytestmark = [exports, onnx_writes]
installed = pytest.mark.skipif(lacking("openvino"), reason="openvino is not installed")
APART = 1e-2
"""How far a probability may lie from torch's."""


def written(name: str, place: Path) -> tuple[Path, str]:
    """A model, and data."""
    FAMILIES[name].write(place / "source")
    return place / "source", FAMILIES[name].data(place, rows=90)


def probabilities(rows: Any) -> Any:
    return np.array([row["probability"] for row in rows])


@pytest.mark.slow
@installed
def test_answers_are_torchs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, data = written("ViT", tmp_path)
    right = probabilities(hs.predict(source, data=data, engine="torch"))
    for precision in ("bfloat16", "int8"):
        monkeypatch.setattr(engine, "precisions", lambda only=precision: (only,))
        found = probabilities(hs.predict(source, data=data, engine="openvino", batch_size=16))
        np.testing.assert_allclose(found, right, atol=APART)
        alone = probabilities(hs.predict(source, data=data, engine="openvino", batch_size=1))
        np.testing.assert_allclose(found, alone, atol=1e-3)
    assert sys.modules["openvino_telemetry"] is None


def test_few_samples_are_timed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["ViT"].write(tmp_path / "source")
    opened = open_checkpoint(tmp_path / "source")
    few = open_data(FAMILIES["ViT"].data(tmp_path, rows=5))
    live = engine_of(opened, engine="torch", device="cpu")
    monkeypatch.setattr(calibrate, "precisions", lambda: ("int8",))
    monkeypatch.setattr(calibrate, "engine_of", lambda *_, **__: live)
    found, how = calibrate._in_openvino(opened, few, False)
    assert (found, how.precision) == (live, "int8")


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "apart"), [("bfloat16", 0.03), ("int8", 0.2)])
def test_calibrate_records_how(
    precision: str, apart: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which precision is the faster one is up to the machine."""
    if precision not in engine.precisions():
        pytest.skip(f"this processor has no {precision}")
    monkeypatch.setattr(calibrate, "precisions", lambda: (precision,))
    source, data = written("BERT", tmp_path)
    out = tmp_path / "ready.safetensors"
    with any_labels():
        ready = hs.calibrate(source, data=data, engine="openvino", ood_score="msp", out=out)
    how = ready.decision.openvino
    assert ready.decision.engine == "openvino"
    assert how is not None
    assert how.cpu == engine.processor()
    assert how.precision == precision
    folder = export(out, out=f"{tmp_path / 'graph'}/", int8=True, check=data, tolerance=1.0)
    right = hs.predict(out, data=data, engine="openvino")
    assert not [note for note in right.notes if "fitted to" in note]
    for place, options in ((out, {}), (folder.path, {}), (folder.path, {"engine": "openvino"})):
        found = hs.predict(place, data=data, device="cpu", **options)
        most = 0.0 if place == out else apart  # its graph is another one, and rounds elsewhere
        np.testing.assert_allclose(probabilities(found), probabilities(right), atol=most)
        assert not [note for note in found.notes if "fitted to" in note]
    asked = hs.Predictor(folder.path, engine="openvino")({"text": ["good film", "bad plot"]})
    assert len(asked["answer"]) == 2
    onnx = hs.predict(out, data=data, engine="onnx")
    assert [note for note in onnx.notes if "fitted to another engine's outputs" in note]
    monkeypatch.setattr("hydrasurgeon.engines.processor", lambda: ("avx2",))
    elsewhere = hs.predict(out, data=data, engine="openvino")
    (note,) = (note for note in elsewhere.notes if "fitted to" in note)
    assert f"OpenVINO in {how.precision} with" in note
    assert "run calibrate --engine openvino" in note


@pytest.mark.slow
def test_bench_measures_every_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = written("ViT", tmp_path)
    words = ["bench", str(source), "--engine", "all", "--batch", "1,16", "--runs", "2"]
    assert run([*words, "--data", data, "--json", str(tmp_path / "b.json")]) == 0
    report = json.loads((tmp_path / "b.json").read_text())
    more = engine.precisions() if find_spec("openvino") else ()
    names = ["torch", "onnx", "int8", *(f"openvino {precision}" for precision in more)]
    assert [each["engine"] for each in report["engines"]] == names
    best = min(report["engines"], key=lambda each: each["ms"]["16"])
    assert best["engine"].startswith(report["use"])
    assert f"use --engine {report['use']}" in capsys.readouterr().out
    torch, onnx, *others = (each["difference"] for each in report["engines"])
    assert torch == 0
    assert onnx < 1e-5
    samples, said = open_data(data), []  # their difference on these samples
    for name, opened in runnable(source).items():
        live = engine_of(opened, engine=name)
        batch = live.prepared([samples.read(int(i)) for i in np.linspace(0, 89, 16).round()])
        said.append(live.answered(batch).probabilities)
    assert others[0] == pytest.approx(np.abs(said[2] - said[0]).max(), rel=1e-3)
    assert all(1e-7 < difference < APART for difference in others)
    assert run([*words, "--vs", str(source)]) == 2


def test_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, data = written("ViT", tmp_path)

    def without(name: str) -> Any:
        return None if name == "openvino" else find_spec(name)

    monkeypatch.setattr("hydrasurgeon.lookup.find_spec", without)
    assert run(["predict", str(source), "--engine", "openvino", "--data", data]) == 6
    assert 'pip install "hydrasurgeon[openvino]"' in capsys.readouterr().err
