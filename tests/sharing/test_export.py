"""ONNX files give torch's outputs in onnxruntime, for other batch sizes and lengths than they were traced with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from edited import edited
from tiny_families import FAMILIES, Family
from tiny_members import KEPTS, RAGGED, member

import hydrasurgeon as hs
from hydrasurgeon.errors import CheckFailed, MissingDependency, OutputError, UsageError
from hydrasurgeon.stages.export import export

SOME = [pytest.param(FAMILIES[n], id=n) for n in ("timm ViT", "BERT", "MPNet", "DINOv2", "DistilBERT", "OpenCLIP", "ModernBERT", "ModernBERT pooling by mean", "DINOv3 with biases and SwiGLU", "EVA02 with separate projections", "SigLIP")]  # fmt: skip


@pytest.mark.parametrize("family", SOME)
def test_onnxruntime_agrees(family: Family, tmp_path: Path) -> None:
    import onnxruntime

    source, inputs = tmp_path / "source", family.inputs(rows=5)
    family.write(source)
    pruned = member(source, family, RAGGED, tmp_path / "m.safetensors")
    parts = [member(source, family, rows, tmp_path / f"m{i}.safetensors") for i, rows in enumerate(KEPTS)]  # fmt: skip
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors").path
    for path in (pruned, hydra):
        made = export(path, out=tmp_path / f"{path.stem}.onnx")
        assert made.max_difference < 1e-4
        session = onnxruntime.InferenceSession(made.path.read_bytes())
        fed = {k: v.numpy() for k, v in inputs.items()} if family.is_text else {"pixel_values": inputs.numpy()}  # fmt: skip
        logits, probs = session.run(["logits", "probs"], fed)
        model = hs.load(path, device="cpu")
        with torch.inference_mode():
            expected = model(inputs)
        assert logits.shape == expected.shape
        np.testing.assert_allclose(logits, expected.numpy(), rtol=0, atol=1e-4)
        np.testing.assert_allclose(probs, model.predict(inputs).numpy(), rtol=0, atol=1e-5)


def test_a_wrong_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["timm ViT"].write(tmp_path / "v")
    monkeypatch.setattr("hydrasurgeon.sharing.onnx.TOLERANCE", -1.0)
    with pytest.raises(CheckFailed, match="differ from torch"):
        export(tmp_path / "v", out=tmp_path / "v.onnx")
    assert not (tmp_path / "v.onnx").exists()


def test_outputs_that_are_nan_are_not_kept(tmp_path: Path) -> None:
    """Python's max(0.0, nan) is 0.0: the check once found no difference here."""
    FAMILIES["timm ViT"].write(tmp_path / "v")
    huge = edited(tmp_path / "v", tmp_path / "huge.safetensors", lambda _, t: t.sign() * 3e38)
    with pytest.raises(CheckFailed, match="differ from torch's by nan"):
        export(huge, out=tmp_path / "v.onnx")
    assert not (tmp_path / "v.onnx").exists()


def test_refusals(tmp_path: Path) -> None:
    FAMILIES["timm ViT"].write(tmp_path / "v")
    with pytest.raises(UsageError, match="--format tflite"):
        export(tmp_path / "v", format="tflite")
    (tmp_path / "v.onnx").write_text("mine")
    with pytest.raises(OutputError, match="already exists"):
        export(tmp_path / "v")
    assert (tmp_path / "v.onnx").read_text() == "mine"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from hydrasurgeon.cli.app import run

    FAMILIES["timm ViT"].write(tmp_path / "v")
    assert run(["export", str(tmp_path / "v"), "-o", str(tmp_path / "v.onnx"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == ["pixel_values"]
    assert told["outputs"] == ["logits", "probs"]
    assert told["bytes"] == (tmp_path / "v.onnx").stat().st_size
    assert run(["export", str(tmp_path / "v"), "-o", str(tmp_path / "v.onnx")]) == 2


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_an_onnx_package(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    FAMILIES["timm ViT"].write(tmp_path / "v")
    with pytest.raises(MissingDependency, match=f"needs {package}, which") as refused:
        export(tmp_path / "v", out=tmp_path / "v.onnx")
    assert refused.value.exit_code == 6
    assert not (tmp_path / "v.onnx").exists()
