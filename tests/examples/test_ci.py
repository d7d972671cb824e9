"""examples/ci: what users copy into their repositories is made of commands that exist, and does what its README
says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

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
