"""calibrate --cascade: what it records, who answers afterwards, and records that contradict themselves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import read_lines
from tiny_families import FAMILIES
from tiny_members import KEPTS, member, tune

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.errors import CheckpointError, ManifestError, UsageError
from hydrasurgeon.files.manifest import parse_manifest, sidecar

VIT = FAMILIES["timm ViT"]
ROWS = 160
HOW: dict[str, Any] = {"ood_score": "msp", "risk": 0.6, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hydra with a cascade, and the data it was fitted on."""
    folder = tmp_path_factory.mktemp("cascaded")
    VIT.write(folder / "source")
    paths = [
        tune(
            member(folder / "source", VIT, rows, folder / f"m{i}.safetensors"),
            folder / f"t{i}.safetensors",
            i,
        )
        for i, rows in enumerate(KEPTS)
    ]
    hydra = hs.fuse(paths, out=folder / "hydra.safetensors", mlp="separate").path
    data = str(folder / "val.npz")
    with np.load(VIT.data(folder, rows=ROWS)) as drawn:
        images = drawn["images"]
    np.savez(data, images=images)
    said = np.array([row["label"] for row in hs.predict(hydra, data=data, device="cpu")])
    # The hydra is right of four fifths, and its first member less often.
    other = np.random.default_rng(0).integers(3, size=ROWS)
    np.savez(data, images=images, labels=np.where(np.arange(ROWS) % 5 > 0, said, other))
    hs.calibrate(hydra, data=data, cascade=True, out=folder / "c.safetensors", **HOW)
    return folder


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "c.safetensors"


def test_the_record_follows_from_the_model_and_the_data(made: Path) -> None:
    model = hs.load(made, device="cpu")
    assert model.state is not None
    cascade, record = model.state.record.cascade, model.state.record
    assert cascade is not None
    samples = open_data(str(made.with_name("val.npz")))
    (val,) = Batches(samples, model.transform, batch_size=ROWS, workers=0)
    with torch.inference_mode():
        logits = model(val.inputs).double()
    sure = (logits[:, 0] / cascade.temperature).softmax(-1).amax(-1)
    unsure = 1 - logits[:, 0].softmax(-1).amax(-1)
    going = (sure < cascade.threshold) | (unsure > record.ood.threshold)
    assert cascade.share_on == float(going.double().mean())
    assert 0 < cascade.share_on < 1
    found = model.decide(val.inputs)
    assert found.members_run.tolist() == [3 if goes else 1 for goes in going.tolist()]
    assert record.seen is not None
    assert record.seen.predicted == tuple(np.bincount(found.labels, minlength=3).tolist())
    # Of the half that certified.
    order = np.random.default_rng(0).permutation(ROWS)[ROWS // 2 :]
    assert int(found.unfamiliar[order].sum()) <= 0.05 * (ROWS // 2)
    held = np.take_along_axis(found.sets[order], val.labels[order][:, None].numpy(), 1)
    assert float(held.mean()) >= 0.9
    lines = hs.predict(
        made, data=str(made.with_name("val.npz")), device="cpu", out=made.parent / "p.jsonl"
    )
    rows = read_lines(lines.path)
    assert [row["members_run"] for row in rows] == found.members_run.tolist()


def test_the_models_own_state_is_what_it_is_without(made: Path) -> None:
    folder = made.parent
    plain = hs.calibrate(
        folder / "hydra.safetensors", data=str(folder / "val.npz"), out=folder / "p.st", **HOW
    )
    decision = open_checkpoint(made).manifest.decision
    assert decision is not None
    # What is seen are the cascade's answers.
    assert (
        decision.model_copy(update={"cascade": None, "seen": plain.decision.seen}) == plain.decision
    )
    assert "cascade" not in json.loads(sidecar(plain.path).read_text())["decision"]


def test_where_nothing_is_saved_there_is_none(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = made.parent
    data, hydra = str(folder / "val.npz"), folder / "hydra.safetensors"
    monkeypatch.setattr("hydrasurgeon.decision.cascade_fit.MAX_LOSS", -10.0)
    done = hs.calibrate(hydra, data=data, cascade=True, out=folder / "none", **HOW)
    assert done.decision.cascade is None
    assert any(note.startswith("no cascade is written: none saves time") for note in done.notes)
    with pytest.raises(CheckpointError, match="has no cascade"):
        hs.predict(done.path, data=data, cascade=True, out=folder / "p.jsonl")
    with pytest.raises(UsageError, match="--cascade requires several members"):
        hs.calibrate(folder / "m0.safetensors", data=data, cascade=True, out=folder / "x", **HOW)
    with pytest.raises(UsageError, match="--engine conflicts with --cascade"):
        hs.calibrate(hydra, data=data, cascade=True, engine="onnx", out=folder / "x", **HOW)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    manifest = json.loads(sidecar(path).read_text())
    change(manifest["decision"]["cascade"])
    return json.dumps(manifest)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c: c.update(threshold=1.5), "less than or equal to 1"),
        (lambda c: c["conformal"].update(coverage=0.5), "promises something else"),
        (lambda c: c.pop("abstain"), "promises something else"),
        (lambda c: c.update(bias=0.5), "promises something else"),
        (
            lambda c: c.update(temperature=0),
            "temperature: Input should be greater than or equal to 0",
        ),
        (lambda c: c.update(extra=1), "not permitted"),
    ],
)
def test_a_record_that_contradicts_itself(
    made: Path, change: Callable[[dict[str, Any]], object], what: str
) -> None:
    with pytest.raises(ManifestError, match=what):
        parse_manifest(changed(made, change), "x")


def test_a_cascade_of_an_older_version_is_named(made: Path) -> None:
    older = {"order": [0, 1, 2], "steps": [1, 3], "gate": {"score": "msp", "low": 0.2}}
    with pytest.raises(ManifestError, match=r"cascade\.order: .* \(hydrasurgeon 0"):
        parse_manifest(changed(made, lambda cascade: cascade.update(older)), "x")
