"""What goes where: with --json stdout is one JSON document and nothing else, with --quiet only what was measured is
printed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ARCH
from fitted_heads import solved, with_head
from random_models import fresh

from hydrasurgeon.cli.app import run

EVAL = "eval vit --data data.npz --ood data.npz --shift fog:1=data.npz"

# Each command, and what must have run before it.
LINES = {
    "score": "score --method taylor --data data.npz vit",
    "score circuit": "score --method circuit --objective acc --data data.npz --remove 2 vit",
    "prune": "prune --method random --keep 2 vit -o m",
    "finetune": "finetune a --data data.npz --val data.npz --recipe demo --set steps=2 -o t",
    "fuse": "fuse a b -o h2 --check data.npz",
    "calibrate": "calibrate vit --data data.npz --ood-score msp --coverage 0.5 --id-flagged 0.5 -o c",
    "build": ("build vit --data data.npz --val val.npz --budget macs=2 -o built"),
    "predict": "predict vit --data data.npz -o p.jsonl",
    "monitor": "monitor answers.jsonl --against ready",
    "eval": EVAL,
    "bench": "bench hydra --vs a b --backbone vit --batch 1 --runs 1",
    "inspect": "inspect hydra",
    "verify": "verify hydra",
    "export": "export vit --format stock",
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    fresh(f"init:{ARCH}", folder / "vit.safetensors", seed=0)
    pixels, truth = np.zeros((40, 28, 28), np.uint8), np.arange(40) % 5
    for seed, name in enumerate(("data", "val")):
        pixels[:] = np.random.default_rng(seed).integers(0, 120, pixels.shape)
        for row, label in enumerate(truth):
            pixels[row, 5 * label : 5 * label + 5] = 220
        np.savez(folder / f"{name}.npz", images=pixels, labels=truth)
    vit = folder / "vit.safetensors"
    with_head(vit, vit, solved(vit, str(folder / "data.npz")))
    with contextlib.chdir(folder):
        for line in (
            "prune --method random --keep 2 --seed 1 vit -o a",
            "prune --method random --keep 3 --seed 2 vit -o b",
            "fuse a b -o hydra",
            "calibrate vit --data data.npz --ood-score msp --coverage 0.5 --id-flagged 0.5 -o ready",
            "predict ready --data data.npz -o answers.jsonl",
        ):
            assert run([*line.split(), "--quiet"]) == 0
    return folder


@pytest.fixture
def here(start: Path, tmp_path: Path) -> Path:
    shutil.copytree(start, tmp_path, dirs_exist_ok=True)
    os.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", LINES)
def test_json_is_all_there_is(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Down to the file descriptors: libraries do not print beside it either."""
    words = LINES[name].split()
    report = ["-"] if words[0] in ("eval", "bench") else []
    capfd.readouterr()
    assert run([*words, "--quiet", "--json", *report]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("{")
    assert out.isascii()
    json.loads(out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("score", "backbone"),
        ("prune", "member"),
        ("finetune", "member"),
        ("fuse", "hydra"),
        ("calibrate", "backbone"),
    ],
)
def test_json_says_what_was_written(
    name: str, kind: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run([*LINES[name].split(), "--quiet", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert run(["inspect", made["path"], "--json"]) == 0
    manifest = json.loads(capfd.readouterr().out)["manifest"]
    assert made["kind"] == manifest["kind"] == kind
    assert made["weights_sha256"] == manifest["weights_sha256"]


def test_scores_of_a_bare_file_are_written_beside_it(
    bare: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights without a manifest are never written to, and the message names what was."""
    bare("vit.safetensors")
    before = (tmp_path / "vit.safetensors").read_bytes()
    line = ["score", "vit", "--method", "magnitude"]
    assert run(line) == 0
    assert capsys.readouterr().out.splitlines()[0] == "vit.heads.json: magnitude scores written"
    assert (tmp_path / "vit.safetensors").read_bytes() == before
    assert run([*line, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["path"], made["written"]) == ("vit.safetensors", "vit.heads.json")
    assert run(["score", "vit", "--method", "random", "-o", "copy"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "copy.safetensors: random scores written"


@pytest.mark.parametrize("name", ["prune", "fuse", "predict"])
def test_quiet_says_nothing(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run([*LINES[name].split(), "--quiet"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["eval", "bench", "inspect", "monitor", "verify"])
def test_quiet_prints_what_was_measured(
    name: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run([*LINES[name].split(), "--quiet"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    says = {"eval": "Acc", "bench": "samples/s", "inspect": "hydra of timm", "monitor": "promised"}
    assert says.get(name, "holds") in out


def test_an_error_is_said_even_when_quiet(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "gone", "--data", "data.npz", "--quiet", "--json", "-"]) == 3
    assert capfd.readouterr().out == ""
    assert run(["eval", "gone", "--data", "data.npz", "--quiet"]) == 3
    assert capfd.readouterr().err.startswith("error: gone: no such checkpoint")
