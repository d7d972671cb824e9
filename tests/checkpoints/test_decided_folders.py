"""Directories of calibrated checkpoints: the state lies in a file of its own, so that other libraries load the
weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES, Family
from torch.torch_version import TorchVersion

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, Disagreement
from hydrasurgeon.files.decided import BESIDE, PREFIX
from hydrasurgeon.files.tensors import TensorFile


def calibrated(
    source: Path, family: Family, out: str | Path, score: str = "rmds", **more: Any
) -> Path:
    data = family.data(source.parent, rows=90)
    return hs.calibrate(source, data=data, ood_score=score, out=out, **more).path


def check(folder: Path, family: Family) -> None:
    """The state is beside the weights, and decides as the one in a single file does."""
    names = TensorFile(folder / BESIDE).infos
    assert names
    assert all(name.startswith(PREFIX) for name in names)
    weights = [path for path in folder.glob("*.safetensors") if path.name != BESIDE]
    for path in weights:
        assert not any(name.startswith(PREFIX) for name in TensorFile(path).infos)
    opened = open_checkpoint(folder)
    opened.digests()
    assert hs.verify(folder).holds
    decided = hs.load(folder, device="cpu").decide(family.inputs())
    # By the name of its weight file, too.
    again = hs.load(weights[0], device="cpu").decide(family.inputs())
    assert np.array_equal(decided.ood_score, again.ood_score)


def stock_timm(folder: Path) -> Callable[[Any], torch.Tensor]:
    import timm

    if TorchVersion(timm.__version__) < "1.0.29":
        pytest.skip("timm before 1.0.29 fails at a folder with two weight files")
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return lambda inputs: model(inputs).softmax(-1)


def stock_transformers(folder: Path) -> Callable[[Any], torch.Tensor]:
    from transformers import BertForSequenceClassification

    model, said = BertForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not said["unexpected_keys"]
    assert not said["missing_keys"]
    return lambda inputs: model.eval()(**inputs).logits.softmax(-1)


@pytest.mark.parametrize(
    ("name", "stock"), [("timm ViT", stock_timm), ("BERT", stock_transformers)]
)
def test_the_library_loads_a_calibrated_backbone(
    name: str, stock: Callable[[Path], Callable[[Any], torch.Tensor]], tmp_path: Path
) -> None:
    family = FAMILIES[name]
    family.write(tmp_path / "source")
    folder = calibrated(tmp_path / "source", family, f"{tmp_path / 'ready'}/")
    check(folder, family)
    with torch.inference_mode():
        probs = stock(folder)(family.inputs())
        plain = hs.load(tmp_path / "source", device="cpu").predict(family.inputs())
    torch.testing.assert_close(probs, plain, rtol=0, atol=1e-5)
    alone = calibrated(tmp_path / "source", family, tmp_path / "ready.safetensors")
    one, other = open_checkpoint(folder).manifest, open_checkpoint(alone).manifest
    assert one.weights_sha256 == other.weights_sha256
    assert one.decision == other.decision


@pytest.mark.usefixtures("labels_need_not_fit")
def test_open_clip_loads_a_calibrated_backbone(tmp_path: Path) -> None:
    import open_clip

    family = FAMILIES["OpenCLIP"]
    family.write(tmp_path / "source")
    folder = calibrated(tmp_path / "source", family, f"{tmp_path / 'ready'}/", score="mcm")
    check(folder, family)
    images = family.inputs()
    with torch.inference_mode():
        ours = open_clip.create_model(f"local-dir:{folder}").eval().encode_image(images)
        stock = (
            open_clip.create_model(f"local-dir:{tmp_path / 'source'}").eval().encode_image(images)
        )
    assert torch.equal(ours, stock)


def test_a_state_that_is_gone_or_strange(tmp_path: Path) -> None:
    family = FAMILIES["timm ViT"]
    family.write(tmp_path / "source")
    folder = calibrated(tmp_path / "source", family, f"{tmp_path / 'ready'}/")
    other = calibrated(tmp_path / "source", family, f"{tmp_path / 'other'}/", score="mds", seed=3)
    shutil.copytree(folder, tmp_path / "gone")
    (tmp_path / "gone" / BESIDE).unlink()
    with pytest.raises(Disagreement, match="is missing"):
        open_checkpoint(tmp_path / "gone")
    shutil.copyfile(other / BESIDE, folder / BESIDE)
    with pytest.raises(Disagreement, match="is missing"):
        open_checkpoint(folder)
    # Somebody's own file of that name is no state.
    family.write(tmp_path / "plain")
    shutil.copyfile(tmp_path / "plain" / "model.safetensors", tmp_path / "plain" / BESIDE)
    assert open_checkpoint(tmp_path / "plain").manifest.decision is None
    # A state without the weights it belongs to.
    shutil.copytree(other, tmp_path / "alone")
    (tmp_path / "alone" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "alone")
