"""replay of what was calibrated: the state is made again, bit for bit, here and by the script."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.stages.replay import replay

MAKE = Callable[..., Path]
SPEC = Callable[..., str]
BEFORE = (
    "prune --method random --keep 3 --seed 1 vit -o m1",
    "prune --method random --keep 2 --seed 2 vit -o m2",
    "fuse m1 m2 -o hydra",
)
# Several OOD sets, data of its own to fit on, and other values than the defaults.
CALIBRATE = (
    "calibrate hydra --data data/val.npz --fit-data train.npz --ood o1.npz --ood o2.npz --conformal raps --coverage 0.8"
    " --id-flagged 0.1 --limit 100 --seed 4 --batch-size 16 -o ready"
)


@pytest.fixture
def folder(tiny: MAKE, images: SPEC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A calibrated hydra, and what it was made of in `from`."""
    tiny()
    (tmp_path / "data").mkdir()
    images("data/val.npz", rows=120)
    images("train.npz", rows=60, seed=2)
    images("o1.npz", seed=3, labels=False)
    images("o2.npz", seed=5, labels=False)
    monkeypatch.chdir(tmp_path)
    return made(tmp_path, *BEFORE, CALIBRATE)


def made(folder: Path, *lines: str) -> Path:
    for line in lines:
        assert run([*shlex.split(line), "--quiet"]) == 0, line
    return folder


def sources(folder: Path) -> Path:
    kept = folder / "from"
    (kept / "data").mkdir(parents=True)
    for name in ("vit.safetensors", "data/val.npz", "train.npz", "o1.npz", "o2.npz"):
        (kept / name).write_bytes((folder / name).read_bytes())
    return kept


def test_a_calibration_is_run_again(folder: Path) -> None:
    assert hs.verify(folder / "ready").holds
    assert hs.verify(folder / "ready", parents=folder).holds
    result = replay(folder / "ready.safetensors", folder=sources(folder), out=folder / "again")
    assert [check.holds for check in result.checks] == [True] * 6, result.checks
    assert result.checks[-1].detail == "identical, and so are the files"
    assert (folder / "again" / "ready.safetensors").read_bytes() == (folder / "ready.safetensors").read_bytes()
    assert result.commands[-1].startswith("calibrate hydra.safetensors --data data/val.npz --fit-data")


def test_a_directory_and_what_was_scored_since(folder: Path) -> None:
    made(folder, "calibrate m1 --data data/val.npz --ood-score msp -o alone/", "score alone --method random --keep 2")
    opened = open_checkpoint(folder / "alone")
    assert [step.command for step in opened.manifest.history] == ["init", "prune", "calibrate", "score"]
    result = replay(folder / "alone", folder=sources(folder))
    assert all(check.holds for check in result.checks), result.checks


def test_other_data_than_then_is_said(folder: Path, images: SPEC) -> None:
    kept = sources(folder)
    images("from/train.npz", rows=60, seed=9)
    result = replay(folder / "ready.safetensors", folder=kept)
    (step,) = [check for check in result.checks if check.name.startswith("calibrate")]
    assert step.holds is False
    assert "train.npz is other data than then" in step.detail


@pytest.mark.slow
def test_the_script_makes_the_same_file(folder: Path) -> None:
    kept = sources(folder)
    text = replay(folder / "ready.safetensors", folder=kept, dry_run=True).script
    place = folder / "it's fresh"
    place.mkdir()
    command = f'hydrasurgeon() {{ {shlex.quote(sys.executable)} -m hydrasurgeon "$@" --quiet; }}\n{text}'
    env = {**os.environ, "PYTHONPATH": str(Path(hs.__file__).parents[1])}
    assert subprocess.run(["sh", "-c", command], cwd=place, env=env, check=False).returncode == 0
    assert (place / "ready.safetensors").read_bytes() == (folder / "ready.safetensors").read_bytes()


@pytest.mark.slow
def test_a_cascade_is_made_again(folder: Path) -> None:
    """With a score that was asked for, foreign data choose the cascade alone; its limit is recorded though nobody gave
    it."""
    lines = (
        "calibrate hydra --data data/val.npz --ood o1.npz --ood-score msp --cascade -o quick",
        "calibrate hydra --data data/val.npz --cascade --budget 1.3 --ood-score entropy -o cheap",
    )
    made(folder, *lines)
    kept = sources(folder)
    for name, limit in (("quick", {"max_drop": 0.5}), ("cheap", {"budget": 1.3})):
        step = open_checkpoint(folder / f"{name}.safetensors").manifest.history[-1]
        assert {key: step.args[key] for key in ("cascade", *limit)} == {"cascade": True, **limit}
        result = replay(folder / f"{name}.safetensors", folder=kept, out=folder / f"again-{name}")
        assert all(check.holds for check in result.checks), result.checks
        again = folder / f"again-{name}" / f"{name}.safetensors"
        assert again.read_bytes() == (folder / f"{name}.safetensors").read_bytes()
