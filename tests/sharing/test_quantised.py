"""`export --int8`: kept only where accuracy, ECE and AUROC stay as good on data that the user gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exporting import exports
from tiny_families import CLASSES, FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.engines import chosen, fitted_otherwise, open_any
from hydrasurgeon.engines.onnx.exporter import in_onnxruntime
from hydrasurgeon.engines.onnx.program import Exported
from hydrasurgeon.sharing import trial
from hydrasurgeon.stages.export import export
from hydrasurgeon.statistics.metrics import accuracy, auroc, ece

pytestmark = [exports, pytest.mark.slow]


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Path, str, str]:
    """A model, labelled data, and noise."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "v")
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "noise.npz",
        images=rng.integers(0, 256, (24, 28, 28, 3), dtype=np.uint8),
        labels=np.arange(24) % CLASSES,
    )
    return tmp_path / "v", family.data(tmp_path), str(tmp_path / "noise.npz")


def test_figures_are_those_of_the_files(prepared: Any, tmp_path: Path) -> None:
    path, data, noise = prepared
    plain = export(path, out=tmp_path / "plain.onnx")
    made = export(
        path, out=tmp_path / "v.onnx", int8=True, check=data, ood=[f"noise={noise}"], tolerance=1.0
    )
    assert made.nbytes < 0.7 * plain.nbytes  # what is not a product's weight stays
    kinds = {each.data_type for each in onnx.load(made.path).graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    compared = made.quantised
    assert compared is not None
    report = hs.evaluate([path], data=data, ood=[f"noise={noise}"], device="cpu").report.results[0]
    assert compared["before"]["accuracy"] == pytest.approx(report.id.accuracy, abs=1e-9)
    assert compared["before"]["ece"] == pytest.approx(report.id.ece, abs=1e-4)
    assert report.ood is not None
    assert compared["before"]["auroc.noise"] == pytest.approx(report.ood[0].auroc, abs=1e-3)
    probs, scores, labels = _run(made.path, hs.load(path, device="cpu"), data)
    assert labels is not None
    assert compared["after"]["accuracy"] == accuracy(probs, labels)
    assert compared["after"]["ece"] == ece(probs, labels)
    others = _run(made.path, hs.load(path, device="cpu"), noise)[1]
    assert compared["after"]["auroc.noise"] == auroc(scores, others)


def _run(file: Path, model: Any, data: str, outputs: tuple[str, ...] = ("logits", "probs")) -> Any:
    content = file.read_bytes()
    exported = Exported(content, (), outputs, in_onnxruntime(content, outputs), 0.0)
    return trial.answers(trial.in_file(exported), model, trial.open_data(data), "it")


def test_an_answer_that_got_worse_is_not_kept(
    prepared: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, data, noise = prepared
    figures = iter(
        [
            {"accuracy": 0.9, "ece": 0.02, "auroc.noise": 0.8},
            {"accuracy": 0.895, "ece": 0.01, "auroc.noise": 0.75},
        ]
        * 2
    )
    monkeypatch.setattr(trial, "measured", lambda *_: next(figures))
    line = [
        "export",
        str(path),
        "-o",
        str(tmp_path / "v.onnx"),
        "--int8",
        "--check",
        data,
        "--ood",
        f"noise={noise}",
    ]
    assert run(line) == 1
    said = capsys.readouterr().err
    assert "auroc.noise: 0.8000 before, 0.7500 in int8" in said
    assert "accuracy:" not in said
    assert not (tmp_path / "v.onnx").exists()
    assert run([*line, "--tolerance", "0.06", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["int8"]["after"]["auroc.noise"] == 0.75


@pytest.mark.usefixtures("labels_need_not_fit")
def test_what_decides_stays_in_float64(tmp_path: Path) -> None:
    """The matrices of an OOD score are no weights of the model."""
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "v")
    data = family.data(tmp_path, rows=160)
    path = hs.calibrate(
        tmp_path / "v", data=data, ood_score="rmds", out=tmp_path / "c.safetensors"
    ).path
    made = export(path, out=tmp_path / "c.onnx", int8=True, check=data, tolerance=1.0)
    proto = onnx.load(made.path)
    double = {
        each.name for each in proto.graph.initializer if each.data_type == onnx.TensorProto.DOUBLE
    }
    assert any(node.op_type == "MatMul" and double & set(node.input) for node in proto.graph.node)


def test_a_folder_follows_the_decision(tmp_path: Path) -> None:
    """What was fitted to answers in 8 bits runs in 8 bits there, without being asked for it."""
    family = FAMILIES["BERT"]
    family.write(tmp_path / "b")
    data = family.data(tmp_path, rows=120)
    about: Any = {"data": data, "ood_score": "msp", "device": "cpu"}
    decided = hs.calibrate(tmp_path / "b", engine="int8", out=tmp_path / "decided", **about).path
    folder = export(decided, out=f"{tmp_path / 'folder'}/")
    assert folder.quantised is None  # nobody gave data to compare on
    assert (folder.path / "onnx" / "model_quantized.onnx").exists()
    opened = open_any(folder.path)
    assert chosen(opened, "auto", device="cpu", dtype="float32") == "int8"
    assert fitted_otherwise(opened, "int8") is None
    plain = hs.calibrate(tmp_path / "b", out=tmp_path / "plain", **about).path
    assert not [*(export(plain, out=f"{tmp_path / 'whole'}/").path / "onnx").glob("*quant*")]
