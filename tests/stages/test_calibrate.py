"""calibrate: what it writes into a checkpoint, that it is whole and hashed, and what surgery does to it."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_families import FAMILIES, ONE_CLASS, Family, thoroughly
from tiny_members import members_of

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.errors import CheckpointError, DataError, Disagreement, UsageError
from hydrasurgeon.files.decided import PREFIX
from hydrasurgeon.files.manifest import sidecar

VIT = FAMILIES["timm ViT"]


def images(
    folder: Path, name: str = "val", rows: int = 120, seed: int = 0, noise: bool = False
) -> str:
    rng = np.random.default_rng(seed)
    truth = np.arange(rows) % 3
    pixels = rng.integers(0, 100, (rows, 28, 28, 3), dtype=np.uint8)
    if noise:
        np.savez(folder / f"{name}.npz", images=rng.integers(0, 255, pixels.shape, dtype=np.uint8))
        return str(folder / f"{name}.npz")
    for i, label in enumerate(truth):
        pixels[i, 9 * label : 9 * label + 9] = 230
    np.savez(folder / f"{name}.npz", images=pixels, labels=truth.astype(np.int64))
    return str(folder / f"{name}.npz")


def hydra(folder: Path, family: Family = VIT) -> Path:
    family.write(folder / "source")
    paths = members_of(folder / "source", family, folder)
    return hs.fuse(paths, out=folder / "hydra.safetensors").path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    data, out = images(folder), folder / "c.safetensors"
    hs.calibrate(hydra(folder), data=data, out=out, ood_score="rmds", risk=0.9)
    return folder


@pytest.fixture
def made(calibrated: Path, tmp_path: Path) -> Path:
    """A hydra with a decision state, to be read or broken."""
    shutil.copytree(calibrated, tmp_path, dirs_exist_ok=True)
    return tmp_path / "c.safetensors"


def test_what_is_stored_is_whole_and_hashed(made: Path) -> None:
    opened = open_checkpoint(made)
    decision = opened.manifest.decision
    assert decision is not None
    assert decision.ood.score == "rmds"
    assert len(decision.ood.members) == 3
    assert (decision.fitted, decision.certified) == (40, 80)
    own = [name for name in opened.tensors if name.startswith(PREFIX)]
    assert own == sorted(
        f"{PREFIX}{m}.{part}"
        for m in range(3)
        for part in ("background", "centre", "factor", "means")
    )
    opened.digests()
    checks = hs.verify(made).checks
    assert all(check.holds is not False for check in checks)
    # Weights are those of the hydra, bit for bit.
    plain = open_checkpoint(made.with_name("hydra.safetensors"))
    for name in plain.tensors:
        assert np.array_equal(plain.tensors.read(name), opened.tensors.read(name))
    step = opened.manifest.history[-1]
    assert step.command == "calibrate"
    assert step.inputs[0].sha256 == plain.manifest.weights_sha256
    assert step.args["ood_score"] == "rmds"


def test_the_same_arguments_give_the_same_bytes(made: Path) -> None:
    folder = made.parent
    again = hs.calibrate(
        folder / "hydra.safetensors",
        data=str(folder / "val.npz"),
        out=folder / "again.safetensors",
        ood_score="rmds",
        risk=0.9,
    )
    assert again.path.read_bytes() == made.read_bytes()
    # Calibrating what is calibrated starts from the plain weights.
    twice = hs.calibrate(
        made,
        data=str(folder / "val.npz"),
        out=folder / "twice.safetensors",
        ood_score="rmds",
        risk=0.9,
    )
    assert [s.command for s in twice.manifest.history].count("calibrate") == 1
    assert twice.manifest.decision == again.manifest.decision
    assert twice.manifest.weights_sha256 == again.manifest.weights_sha256
    assert twice.notes == again.notes


def test_a_flipped_bit_in_the_state_is_found(made: Path) -> None:
    content = bytearray(made.read_bytes())
    opened = open_checkpoint(made)
    info = opened.tensors[f"{PREFIX}1.means"]
    content[info.start + 1] ^= 1
    made.write_bytes(bytes(content))
    with pytest.raises(Disagreement, match="belongs to other weights"):
        hs.load(made)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: d["ood"].update(width=31), "with these heads needs"),
        (lambda d: d["ood"]["members"].pop(), "2 members"),
        (lambda d: d["ood"].update(score="msp"), "width and members"),
        (lambda d: d["ood"].update(score="mds"), "is not part of"),
        (lambda d: d["ood"].update(score="vim", size=3), "is missing"),
        (
            lambda d: d.update(temperature=0),
            "temperature: Input should be greater than or equal to 0",
        ),
        (
            lambda d: d.update(joint={"aleatoric": 1.0, "epistemic": 1.0}),
            "joint calibration",
        ),
        (
            lambda d: d.update(costs={"wrong": 1.0}),
            r"costs: .* \(hydrasurgeon [0-9.]+ calibrated it\)",
        ),
        (
            lambda d: d["conformal"].update(method="raps"),
            r"conformal.method: .* \(hydrasurgeon",
        ),
        (lambda d: d["ood"].update(score="nci"), r"nci: no such OOD score \(hydrasurgeon"),
    ],
)
def test_a_record_that_disagrees_with_its_tensors(
    made: Path, change: Callable[[dict[str, object]], None], what: str
) -> None:
    content = made.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    manifest = json.loads(header["__metadata__"]["hydrasurgeon"])
    change(manifest["decision"])
    header["__metadata__"]["hydrasurgeon"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    made.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    sidecar(made).unlink()
    with pytest.raises(CheckpointError, match=what):
        open_checkpoint(made)


def test_what_is_not_calibrated_decides_nothing(made: Path) -> None:
    with pytest.raises(CheckpointError, match="has no decision state"):
        hs.load(made.with_name("hydra.safetensors"), device="cpu").decide(VIT.inputs())


@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize("family", thoroughly(*ONE_CLASS))
def test_every_family_keeps_its_state(family: Family, tmp_path: Path) -> None:
    path = hydra(tmp_path, family)
    data = family.data(tmp_path, rows=90)
    for source, score in ((tmp_path / "source", "auto"), (path, "vim")):
        result = hs.calibrate(
            source, data=data, out=tmp_path / "c.safetensors", ood_score=score, force=True
        )
        model = hs.load(result.path, device="cpu")
        found = model.decide(family.inputs())
        assert np.isfinite(found.ood_score).all()
        np.testing.assert_allclose(found.probabilities.sum(-1), np.ones(5))
        if score == "auto":
            assert result.decision.ood.chosen_by == "perturbed"
            assert "rmds" in result.decision.ood.auroc
            assert ("mcm" in result.decision.ood.auroc) == bool(family.towers)


def test_surgery_drops_the_state_and_says_so(tmp_path: Path) -> None:
    VIT.write(tmp_path / "source")
    data = images(tmp_path)
    plain = members_of(tmp_path / "source", VIT, tmp_path)
    ready = [
        hs.calibrate(
            p, data=data, out=tmp_path / f"c{i}.safetensors", ood_score="mds" if i else "msp"
        ).path
        for i, p in enumerate(plain)
    ]
    fused = hs.fuse(ready, out=tmp_path / "from-ready.safetensors")
    assert len(fused.notes) == 3
    assert all("decision state is dropped" in note for note in fused.notes)
    other = hs.fuse(plain, out=tmp_path / "from-plain.safetensors")
    assert fused.manifest.weights_sha256 == other.manifest.weights_sha256
    assert fused.manifest.decision is None
    assert all(check.holds is not False for check in hs.verify(fused.path).checks)
    # A score written meanwhile read the calibrated weights.
    hs.score(ready[1], method="random")
    assert open_checkpoint(ready[1]).manifest.decision is not None
    cut = hs.prune(ready[1], method="random", remove=1, out=tmp_path / "cut.safetensors")
    assert any("decision state is dropped" in note for note in cut.notes)
    assert cut.manifest.decision is None
    assert not [name for name in open_checkpoint(cut.path).tensors if name.startswith(PREFIX)]
    assert all(check.holds is not False for check in hs.verify(cut.path).checks)
    recipe = {"steps": "1"}
    tuned = hs.finetune(
        ready[1], data=data, recipe="demo", set=recipe, out=tmp_path / "t.safetensors"
    )
    assert any("decision state is dropped" in note for note in tuned.notes)
    assert tuned.manifest.decision is None
    assert all(check.holds is not False for check in hs.verify(tuned.path).checks)


def test_rows_that_no_ood_score_is_fitted_on_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    VIT.write(tmp_path / "source")
    data, train = images(tmp_path), images(tmp_path, "train", seed=7)
    options: dict[str, Any] = {"data": data, "fit_data": train, "ood_score": "rmds", "force": True}
    for most, noted in ((4_000, []), (100, ["100 of 120"])):
        monkeypatch.setattr("hydrasurgeon.decision.ood_score.MOST_GATHERED", most)
        notes = hs.calibrate(tmp_path / "source", out=tmp_path / "c", **options).notes
        counts = [re.search(r"OOD scores are fitted on (\d+ of \d+) rows", note) for note in notes]
        assert [match[1] for match in counts if match is not None] == noted


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VIT.write(tmp_path / "source")
    data, source = images(tmp_path), tmp_path / "source"
    target = {"data": data, "out": tmp_path / "c.safetensors"}
    with pytest.raises(DataError, match="holds the same samples as --data"):
        hs.calibrate(source, ood=[data], **target)
    np.savez(tmp_path / "turned.npz", images=np.load(data)["images"][::-1])
    with pytest.raises(DataError, match="holds the same samples as --data"):
        hs.calibrate(source, ood=[str(tmp_path / "turned.npz")], **target)
    more = np.load(images(tmp_path, "more", seed=7))
    both = {key: np.concatenate([np.load(data)[key], more[key]]) for key in ("images", "labels")}
    np.savez(tmp_path / "both.npz", **both)
    with pytest.raises(
        DataError, match=r"--data val.npz: 100 % of these rows are in --fit-data both.npz too"
    ):
        hs.calibrate(source, fit_data=str(tmp_path / "both.npz"), ood_score="rmds", **target)
    with monkeypatch.context() as patched:  # refused before a sample is run
        patched.setattr("hydrasurgeon.runtime.classifier.as_classifier", None)
        with pytest.raises(
            DataError, match="120 rows cannot promise it, even if no answer is wrong"
        ):
            hs.calibrate(source, risk=0.01, ood_score="msp", **target)
        with pytest.raises(DataError, match="too few to certify a coverage"):
            hs.calibrate(source, coverage=0.999, ood_score="msp", **target)
        with pytest.raises(DataError, match="are too few for --id-flagged"):
            hs.calibrate(source, id_flagged=0.001, ood_score="msp", **target)
    notes = hs.calibrate(source, ood_score="msp", **target).notes
    assert [note for note in notes if "120 validation rows are few (80 certify)" in note]
    target["out"] = tmp_path / "other.safetensors"
    with pytest.raises(UsageError, match="has one"):
        hs.calibrate(source, ood_score="mi", **target)
    with pytest.raises(UsageError, match="compare images with class names"):
        hs.calibrate(source, ood_score="mcm", **target)
