"""ONNX files of calibrated checkpoints decide as `model.decide` does, by every score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from exporting import exports
from runtime_states import drawn
from tiny_families import FAMILIES, Family
from tiny_members import members_of
from torch import nn

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.decision.state import State
from hydrasurgeon.engines.onnx import exporter as sharing
from hydrasurgeon.engines.onnx.program import decision_outputs
from hydrasurgeon.files.decided import SCORES
from hydrasurgeon.stages.export import export

WIDTH, CLASSES = 8, 5


class Decides(nn.Module):
    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state

    def forward(self, logits: torch.Tensor, features: torch.Tensor) -> Any:
        # Both are inputs of the graph, whichever a score reads.
        return (*decision_outputs(self.state, logits, features), features.sum(), logits.sum())


@pytest.mark.slow
@exports
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("score", SCORES)
def test_every_score_is_the_same_in_float64(score: str, members: int) -> None:
    """What is behind logits and features, alone: there nothing is rounded to float32."""
    state = drawn(score, members, width=WIDTH, classes=CLASSES)
    generator = torch.Generator().manual_seed(9)
    logits, features = (torch.randn(7, members, n, generator=generator) for n in (CLASSES, WIDTH))
    free = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        Decides(state), (logits[:2], features[:2]), dynamic_shapes=(free, free), strict=False
    )
    outputs = ("probabilities", "uncertainty", "ood_score", "unfamiliar", "x", "y")
    content = sharing.written(program, ("logits", "features"), outputs, {})
    proto = onnx.load_from_string(content)
    # Not in float64 in the oldest onnxruntime that is allowed.
    assert "ReduceL2" not in {node.op_type for node in proto.graph.node}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    probs, total, value, flag, *_ = session.run(
        None, {"logits": logits.numpy(), "features": features.numpy()}
    )
    right = state.ood_score(logits.numpy(), features.numpy())
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, right, rtol=1e-12, atol=1e-13)
    assert flag.tolist() == (right > 0.4).tolist()
    np.testing.assert_allclose(probs, state.answers(logits.numpy()), rtol=1e-6)
    tempered = (logits.double() / 1.7).softmax(-1).mean(1)
    np.testing.assert_allclose(total, torch.special.entr(tempered).sum(-1).numpy(), rtol=1e-6)


def calibrated(folder: Path, family: Family, score: str, *, kind: str) -> Path:
    family.write(folder / "source")
    path = folder / "source"
    if kind == "hydra":
        members = members_of(path, family, folder)
        path = hs.fuse(members, out=folder / "hydra.safetensors").path
    data = family.data(folder, rows=160)
    return hs.calibrate(path, data=data, ood_score=score, out=folder / "c.safetensors").path


def check(path: Path, family: Family, folder: Path, rows: int = 5) -> onnxruntime.InferenceSession:
    made = export(path, out=folder / "c.onnx", force=True)
    assert made.outputs == ("logits", "probabilities", "uncertainty", "ood_score", "unfamiliar")
    assert made.max_difference < 1e-4
    session = onnxruntime.InferenceSession(
        made.path.read_bytes(), providers=["CPUExecutionProvider"]
    )
    inputs = family.inputs(rows)
    fed = (
        {k: v.numpy() for k, v in inputs.items()}
        if family.is_text
        else {"pixel_values": inputs.numpy()}
    )
    logits, probs, total, score, flag = session.run(list(made.outputs), fed)
    model = hs.load(path, device="cpu")
    decided = model.decide(inputs)
    with torch.inference_mode():
        np.testing.assert_allclose(logits, model(inputs).numpy(), rtol=0, atol=1e-4)
    np.testing.assert_allclose(probs, decided.probabilities, rtol=0, atol=1e-5)
    np.testing.assert_allclose(total, decided.total, rtol=0, atol=1e-5)
    np.testing.assert_allclose(score, decided.ood_score, rtol=1e-4, atol=1e-4)
    assert (total.dtype, score.dtype, flag.dtype) == (np.float32, np.float64, np.bool_)
    clear = np.abs(decided.ood_score - model.state.record.ood.threshold) > 1e-3  # type: ignore[union-attr]
    assert flag[clear].tolist() == decided.unfamiliar[clear].tolist()
    return session


@exports
@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize(
    ("name", "score", "kind"),
    [("timm ViT", "rmds", "hydra"), ("BERT", "vim", "single"), ("OpenCLIP", "mcm", "single")],
)
def test_onnxruntime_decides_alike(name: str, score: str, kind: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    path = calibrated(tmp_path, family, score, kind=kind)
    session = check(path, family, tmp_path)
    told = session.get_modelmeta().custom_metadata_map
    manifest = open_checkpoint(path).manifest
    decision = manifest.decision
    assert decision is not None
    assert told["hydrasurgeon.weights_sha256"] == manifest.weights_sha256
    labels = manifest.model.labels
    assert json.loads(told["hydrasurgeon.labels"]) == (None if labels is None else list(labels))
    record = json.loads(told["hydrasurgeon.decision"])
    assert record["ood"]["threshold"] == decision.ood.threshold
    assert record["conformal"]["threshold"] == decision.conformal.threshold
    assert record["temperature"] == decision.temperature
