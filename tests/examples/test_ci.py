"""examples/ci: what users copy into their repositories is made of commands that exist, and does what its README
says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from hydrasurgeon.cli.app import app
from hydrasurgeon.measuring.asserts import parse_assertion

CI = Path(__file__).parents[2] / "examples" / "ci"
STAGES = ["score", "prune", "prune", "prune", "fuse", "verify", "eval"]


def parsed(line: str) -> str:
    """Read by our own parser, without running anything; returns the command."""
    words = shlex.split(line.split("|")[0].split(" >")[0])
    assert words[0] == "hydrasurgeon", line
    command = get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    context = command.make_context(words[1], words[2:])
    for text in context.params.get("asserts") or ():
        parse_assertion(text)
    return words[1]


def test_every_command_of_the_workflow_is_one_of_ours() -> None:
    workflow = yaml.safe_load((CI / "github-actions.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    lines = [line for step in steps for line in step.splitlines() if line.startswith("hydrasurgeon")]
    assert [parsed(line) for line in lines] == STAGES
    (inspect,) = re.findall(r"\$\((hydrasurgeon .*?) \|", "\n".join(steps))
    assert parsed(inspect) == "inspect"
    assert workflow[True] == ["push", "pull_request"]  # YAML 1.1 reads `on` as true
    assert all("uses" in step or "run" in step for step in job["steps"])


def substituted(text: str, values: dict[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        found: Any = values
        for key in match[1].split("."):
            found = found[key]
        return str(found)

    return re.sub(r"\$\{([\w.]+)\}", value, text)


def test_every_command_of_the_pipeline_is_one_of_ours() -> None:
    params = yaml.safe_load((CI / "params.yaml").read_text(encoding="utf-8"))
    stages = yaml.safe_load((CI / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    names, made = [], {params["backbone"]}
    for stage in stages.values():
        for item in stage.get("foreach", [None]):
            body = stage.get("do", stage)
            for command in [body["cmd"]] if isinstance(body["cmd"], str) else body["cmd"]:
                if command.startswith("hydrasurgeon"):
                    names.append(parsed(substituted(command, {**params, "item": item})))
            needed = {substituted(d, {**params, "item": item}) for d in body["deps"]}
            assert needed <= made
            for out in body.get("outs", []):
                made.add(substituted(out if isinstance(out, str) else next(iter(out)), {"item": item}))
    assert names == ["score", "prune", "prune", "prune", "fuse", "eval", "eval", "verify"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with the examples, the demo's backbone, and `hydrasurgeon` on the path."""
    for path in CI.iterdir():
        shutil.copy(path, tmp_path)
    shutil.copy(str(files("hydrasurgeon") / "demo" / "backbone.safetensors"), tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "hydrasurgeon"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hydrasurgeon "$@"\n')
    command.chmod(0o755)
    return tmp_path


def shell(line: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(CI.parents[1]), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PATH": f"{cwd / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": paths}
    env.pop("MAKEFLAGS", None)
    return subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8")


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Which of our commands ran."""
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"^hydrasurgeon (\w+)", done.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile(here: Path) -> None:
    make = ["make", "DATA_OPTIONS=--limit 48 --device cpu", "LIMITS=hydra:id.ece<=0.9"]
    assert sorted(said(shell(make, here))) == sorted([*STAGES, "eval"])
    report = json.loads((here / "build" / "report.json").read_text())
    assert report["results"][0]["members"] == 3
    assert json.loads((here / "build" / "verified.json").read_text())["holds"] is True
    built = {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in (here / "build").iterdir()
        if path.suffix in (".json", ".safetensors")
    }
    # A second run does nothing; a touched backbone is scored again, and comes to the same end.
    assert said(shell(make, here)) == []
    (here / "backbone.safetensors").touch()
    assert said(shell(make, here)) == ["score"]
    assert said(shell(make, here)) == []
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in built} == built
    # Another limit costs no other evaluation, and a broken one stops with its number.
    (here / "Makefile").touch()
    broken = shell([*make[:2], "LIMITS=id.ece<=0"], here)
    assert broken.returncode == 2
    assert re.search(r"hydra: id.ece<=0, but it is 0\.\d+", broken.stderr)
    assert re.findall(r"^hydrasurgeon (\w+)", broken.stdout, re.MULTILINE) == ["eval"]
    # Another backbone is another hydra.
    shutil.copy(str(files("hydrasurgeon") / "demo" / "independent-2.safetensors"), here / "backbone.safetensors")
    (here / "backbone.safetensors").touch()
    assert sorted(said(shell(make, here))) == sorted([*STAGES, "eval"])
