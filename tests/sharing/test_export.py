"""ONNX files give torch's outputs in onnxruntime, for other batch sizes and lengths than they were traced with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from edited import edited
from exporting import exports, fed
from tiny_families import FAMILIES, QUICK, Family
from tiny_members import RAGGED, member, members_of

import hydrasurgeon as hs
from hydrasurgeon.errors import CheckFailed
from hydrasurgeon.stages.export import export

# Whose blocks or positions differ; the others are like one of them.
EACH = [FAMILIES[n] for n in (*QUICK, "EVA02", "ModernBERT", "DeBERTa-v3", "Qwen3", "CLIP")]


def made_of(family: Family, folder: Path) -> tuple[Path, Path]:
    """A pruned model with an empty layer, and a hydra."""
    source = folder / "source"
    family.write(source)
    pruned = member(source, family, RAGGED, folder / "m.safetensors")
    parts = members_of(source, family, folder)
    return pruned, hs.fuse(parts, out=folder / "hydra.safetensors").path


@exports
@pytest.mark.slow  # each captures two graphs, which takes seconds
@pytest.mark.parametrize("family", EACH, ids=lambda family: family.name)
def test_onnxruntime_agrees(family: Family, tmp_path: Path) -> None:
    import onnxruntime

    inputs = family.inputs(rows=5)
    for path in made_of(family, tmp_path)[0 if family.name in QUICK else 1 :]:
        made = export(path, out=tmp_path / f"{path.stem}.onnx")
        assert made.max_difference < 1e-4
        session = onnxruntime.InferenceSession(made.path.read_bytes())
        logits, probs = session.run(["logits", "probs"], fed(inputs))
        model = hs.load(path, device="cpu")
        with torch.inference_mode():
            expected = model(inputs)
        assert logits.shape == expected.shape
        np.testing.assert_allclose(logits, expected.numpy(), rtol=0, atol=1e-4)
        np.testing.assert_allclose(probs, model.predict(inputs).numpy(), rtol=0, atol=1e-5)


@pytest.mark.slow
@exports
def test_a_wrong_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FAMILIES["timm ViT"].write(tmp_path / "v")
    monkeypatch.setattr("hydrasurgeon.engines.onnx.exporter.TOLERANCE", -1.0)
    with pytest.raises(CheckFailed, match="differ from torch"):
        export(tmp_path / "v", out=tmp_path / "v.onnx")
    assert not (tmp_path / "v.onnx").exists()


@exports
@pytest.mark.slow
def test_outputs_that_are_nan_are_not_kept(tmp_path: Path) -> None:
    """Python's max(0.0, nan) is 0.0: the check once found no difference here."""
    FAMILIES["timm ViT"].write(tmp_path / "v")
    huge = edited(tmp_path / "v", tmp_path / "huge.safetensors", lambda _, t: t.sign() * 3e38)
    with pytest.raises(CheckFailed, match="differ from torch's by nan"):
        export(huge, out=tmp_path / "v.onnx")
    assert not (tmp_path / "v.onnx").exists()
