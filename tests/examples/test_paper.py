"""examples/paper: every command of the pipelines is one of ours, and each runs whole on stand-ins;
examples/predictions.py."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import hydrasurgeon as hs
from hydrasurgeon.cli.app import application
from hydrasurgeon.stages.inspect import inspect

PAPER = Path(__file__).parents[2] / "examples" / "paper"
COMMANDS = {
    "cifar100": {"finetune": 8, "score": 4, "prune": 7, "fuse": 2, "eval": 1},
    "imagenet": {"finetune": 8, "score": 4, "prune": 7, "fuse": 2, "eval": 2},
    "sst2": {"finetune": 11, "score": 4, "prune": 7, "fuse": 2, "eval": 3},
    "clip": {"score": 4, "prune": 7, "fuse": 2, "eval": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_a_pipeline_is_one_of_ours(name: str, tmp_path: Path) -> None:
    """With the real settings, and a command that only writes its words down."""
    stub = tmp_path / "hydrasurgeon"
    stub.write_text(f'#!/bin/sh\nprintf "%s\\0" "$#" "$@" >> "{tmp_path}/words"\n')
    stub.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "true"}
    subprocess.run(["bash", str(PAPER / f"{name}.sh"), str(tmp_path / "out")], env=path, check=True)
    words = (tmp_path / "words").read_text().split("\0")
    counts: dict[str, int] = {}
    while words and words[0]:
        count, words = int(words[0]), words[1:]
        line, words = words[:count], words[count:]
        command = get_command(application(None)).commands[line[0]]  # type: ignore[attr-defined]
        command.make_context(line[0], line[1:])
        counts[line[0]] = counts.get(line[0], 0) + 1
    assert counts == COMMANDS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipeline_runs_whole_on_stand_ins(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(PAPER.parents[1])}
    line = ["bash", str(PAPER / f"{name}.sh"), "--smoke", str(out)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((out / "report.json").read_text())
    results = {result["name"]: result for result in report["results"]}
    circuits = results["hydra-circ"]
    assert circuits["kind"] == "hydra"
    assert circuits["members"] == 3
    assert {each["name"] for each in circuits["ood"]} == {"near", "far"}
    manifest = inspect(out / "hydra-circ").manifest
    assert manifest.members is not None
    heads = sum(tower.layers * tower.heads for tower in manifest.towers.values())
    for member in manifest.members:
        kept = sum(len(row) for rows in member.kept.values() for row in rows)
        assert kept == heads - 4
    plain = inspect(out / "taylor").manifest
    rows = plain.kept["vision" if name != "sst2" else "text"]
    assert [len(row) for row in rows] == [3] * len(rows)  # layer by layer, as D.1.1
    assert sum(len(row) for rows in plain.kept.values() for row in rows) == heads - len(rows)
    tuned = [entry for entry in manifest.history if entry.command == "finetune"]
    assert len(tuned) == (0 if name == "clip" else 4)  # the backbone, and three members


def convert(source: Path, target: Path) -> list[str]:
    spec = importlib.util.spec_from_file_location("predictions", PAPER.parent / "predictions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.convert(source, target)


def test_predictions_of_any_method_are_evaluated(tmp_path: Path) -> None:
    """Draws of a posterior as members, and a score of the method's own, which is asked for by name."""
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 4
    logits = rng.normal(size=(40, 5, 4)).astype(np.float32)
    logits[np.arange(40), :, labels] += 2
    foreign = rng.normal(size=(20, 5, 4)).astype(np.float32)
    inside, outside = rng.random(40), rng.random(20) + 0.4
    np.savez(
        tmp_path / "answers.npz",
        logits=logits,
        labels=labels,
        **{
            "scores.vilu": inside,
            "ood.birds.logits": foreign,
            "ood.birds.scores.vilu": outside,
            "ood.cars.scores.vilu": outside + 1,
        },
    )
    file = tmp_path / "vilu.safetensors"
    assert convert(tmp_path / "answers.npz", file)[-1] == "scores.vilu"
    (result,) = hs.evaluate([], predictions_in=[file], ood_score="vilu").report.results
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    mean = (probs / probs.sum(-1, keepdims=True)).mean(1)
    assert result.members == 5
    assert result.id.accuracy == (mean.argmax(-1) == labels).mean()
    aurocs = {each.name: each.auroc for each in result.ood}
    pairs = (outside[None] > inside[:, None]).mean()
    assert aurocs["birds"] == pytest.approx(pairs, abs=1e-12)
    assert aurocs["cars"] == pytest.approx(1.0)
