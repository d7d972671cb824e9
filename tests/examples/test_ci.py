"""examples/ci: what users copy into their repositories is made of commands that exist, and does what its README
says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from hydrasurgeon.cli.app import application
from hydrasurgeon.measuring.asserts import parse_assertion

CI = Path(__file__).parents[2] / "examples" / "ci"
STAGES = ["score", "prune", "prune", "prune", "fuse", "verify", "eval"]


def parsed(line: str) -> str:
    """Read by our own parser, without running anything; returns the command."""
    words = shlex.split(line.split("|")[0].split(" >")[0])
    assert words[0] == "hydrasurgeon", line
    command = get_command(application(None)).commands[words[1]]  # type: ignore[attr-defined]
    context = command.make_context(words[1], words[2:])
    for text in context.params.get("asserts") or ():
        parse_assertion(text)
    return words[1]


def test_every_command_of_the_workflow_is_one_of_ours() -> None:
    workflow = yaml.safe_load((CI / "github-actions.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    lines = [
        line for step in steps for line in step.splitlines() if line.startswith("hydrasurgeon")
    ]
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
                made.add(
                    substituted(out if isinstance(out, str) else next(iter(out)), {"item": item})
                )
    assert names == ["score", "prune", "prune", "prune", "fuse", "eval", "eval", "verify"]
