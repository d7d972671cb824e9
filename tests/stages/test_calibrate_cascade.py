"""calibrate --cascade: what it records, that it holds, and who answers afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES
from tiny_members import KEPTS, member

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.decision.cascaded import own_score
from hydrasurgeon.errors import ManifestError
from hydrasurgeon.files.decided import Cascade
from hydrasurgeon.files.manifest import parse_manifest, sidecar
from hydrasurgeon.measuring.cost import single_macs, step_macs

VIT = FAMILIES["timm ViT"]
ROWS = 160


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hydra with a cascade that costs at most so much, and the data it was fitted on."""
    folder = tmp_path_factory.mktemp("cascaded")
    VIT.write(folder / "source")
    paths = [
        member(folder / "source", VIT, rows, folder / f"m{i}.safetensors")
        for i, rows in enumerate(KEPTS)
    ]
    path = hs.fuse(paths, out=folder / "hydra.safetensors").path
    Path(VIT.data(folder, rows=ROWS)).rename(folder / "val.npz")
    noise = np.random.default_rng(3).integers(0, 255, (60, 28, 28, 3), dtype=np.uint8)
    np.savez(folder / "noise.npz", images=noise)
    hs.calibrate(
        path,
        data=str(folder / "val.npz"),
        ood=[str(folder / "noise.npz")],
        ood_score="msp",
        risk=0.9,
        cascade=True,
        budget=1.15,
        out=folder / "c.safetensors",
    )
    return folder


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path / "c.safetensors"


def cascade_of(path: Path) -> Cascade:
    decision = open_checkpoint(path).manifest.decision
    assert decision is not None
    assert decision.cascade is not None
    return decision.cascade


def batch(path: Path, model: hs.Classifier) -> Any:
    samples = open_data(str(path))
    return next(iter(Batches(samples, model.transform, batch_size=ROWS, workers=0)))


def test_the_record_follows_from_the_model_and_the_data(made: Path) -> None:
    """Shares, costs and thresholds, from logits and by other means."""
    record, model = cascade_of(made), hs.load(made, device="cpu")
    val = batch(made.with_name("val.npz"), model)
    assert sorted(record.order) == [0, 1, 2]
    with torch.inference_mode():
        logits = model(val.inputs).double()
    starters = list(record.starters)
    scores = own_score(record.gate.score, logits[:, starters])
    low = -np.inf if record.gate.low is None else record.gate.low
    high = np.inf if record.gate.high is None else record.gate.high
    going = (scores >= low) & (scores <= high)
    assert record.shares == (1.0, float(going.double().mean()))
    single = single_macs(model, val.inputs)
    steps = step_macs(model, val.inputs, tuple(starters))
    assert record.cost.first == steps.first / single
    assert record.cost.expected == pytest.approx(steps.expected(record.shares[1]) / single)
    assert record.cost.expected <= 1.2
    assert record.budget == 1.15
    assert not record.certified
    found = model.decide(val.inputs)
    assert found.members_run.tolist() == [3 if g else len(record.starters) for g in going.tolist()]
    # Of the half that certified, as many lie above the threshold as were to be flagged, at most.
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[ROWS // 2 :]
    flagged = found.unfamiliar[order]
    assert int(flagged.sum()) <= 0.05 * (ROWS // 2)
    held = found.sets[order].gather(1, val.labels[order][:, None])
    assert float(held.double().mean()) >= 0.9
    decision = model.manifest.decision
    assert decision is not None
    plain = model.decide(val.inputs, cascade=False)
    assert torch.equal(plain.unfamiliar, plain.ood_score > decision.ood.threshold)


def test_the_hydras_own_state_is_what_it_is_without(made: Path) -> None:
    folder = made.parent
    plain = hs.calibrate(
        folder / "hydra.safetensors",
        data=str(folder / "val.npz"),
        ood_score="msp",
        risk=0.9,
        out=folder / "plain.safetensors",
    )
    decision = open_checkpoint(made).manifest.decision
    assert decision is not None
    # What is seen are the cascade's answers.
    assert (
        decision.model_copy(update={"cascade": None, "seen": plain.decision.seen}) == plain.decision
    )
    assert "cascade" not in json.loads(sidecar(plain.path).read_text())["decision"]


def test_drops_are_those_of_the_half_that_certifies(made: Path) -> None:
    """Accuracy and AUROC by hand."""
    record, model = cascade_of(made), hs.load(made, device="cpu")
    val = batch(made.with_name("val.npz"), model)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[ROWS // 2 :]
    part, whole = model.decide(val.inputs), model.decide(val.inputs, cascade=False)
    lost = [(d.labels == val.labels)[order].double().mean() for d in (whole, part)]
    assert record.drops["accuracy"].drop == pytest.approx(100 * float(lost[0] - lost[1]))
    for drop in record.drops.values():
        assert drop.low <= drop.high


@pytest.mark.slow
def test_max_drop_is_kept_where_it_was_chosen(made: Path) -> None:
    folder = made.parent
    result = hs.calibrate(
        folder / "hydra.safetensors",
        data=str(folder / "val.npz"),
        ood=[str(folder / "noise.npz")],
        ood_score="msp",
        cascade=True,
        max_drop=60,
        out=folder / "loose.safetensors",
    )
    record = cascade_of(result.path)
    # So much may be lost that one member answers alone, and that is certain.
    assert record.certified
    assert record.shares == (1.0, 0.0)
    model = hs.load(result.path, device="cpu")
    val = batch(folder / "val.npz", model)
    assert set(model.decide(val.inputs).members_run.tolist()) == {1}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c: c.update(order=[0, 1]), "steps: 1 and 3 of 2"),
        (lambda c: c.update(order=[0, 1], steps=[1, 2]), "a cascade of 2 members, there are 3"),
        (lambda c: c.update(order=[0, 1, 3]), "not each of 3 members once"),
        (lambda c: c.update(order=[0, 1, 1]), "not each of 3 members once"),
        (lambda c: c.update(steps=[3, 3]), "steps: 3 and 3"),
        (lambda c: c["gate"].update(score="disagreement"), "the first two members"),
        (lambda c: c["gate"].update(low=2.0, high=1.0), "a window from 2"),
        (lambda c: c["gate"].update(low=None, high=None), "a gate without bounds"),
        (lambda c: c["cost"].update(expected=0.1), "expected is 0.1"),
        (lambda c: c.update(shares=[0.5, 0.5]), "every row comes to the first step"),
        (lambda c: c.update(certified=True), "says other than"),
        (lambda c: c.update(max_drop=1.0), "either max_drop or budget"),
        (lambda c: c["drops"].pop("cov5"), "drops: of accuracy"),
        (lambda c: c["conformal"].update(coverage=0.5), "other prediction sets"),
        (lambda c: c.update(abstain=None), "another risk"),
        (lambda c: c.update(bias=0.5), "a bias belongs to one logit"),
        (lambda c: c.update(temperatures=[1.0]), "drops: of micro_f1, auroc and fpr95"),
        (lambda c: c.update(temperature=0), "greater than 0"),
        (lambda c: c.update(extra=1), "not permitted"),
    ],
)
def test_a_record_that_contradicts_itself(
    made: Path, change: Callable[[dict[str, Any]], object], what: str
) -> None:
    manifest = json.loads(sidecar(made).read_text())
    record = manifest["decision"]["cascade"]
    change(record)
    with pytest.raises(ManifestError, match=what):
        parse_manifest(json.dumps(manifest), "x")
