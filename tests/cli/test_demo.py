"""The demo runs as a user runs it, the README's and the examples' commands as they stand; of its folder only its own
files are replaced."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from warm import warm_path

from hydrasurgeon.cli.app import run
from hydrasurgeon.cli.demo import COMMANDS, SHIPPED, demo
from hydrasurgeon.commands import NAMED
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import OutputError

ROOT = Path(__file__).parents[2]
DEMO = files("hydrasurgeon") / "demo"
GUIDES = (
    "commands",
    "paper-pipeline",
    "building",
    "decision",
    "cascade",
    "trust",
    "serving",
)
"""The pages of docs/guide that have commands for the demo's folder."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`hydrasurgeon demo`, once for all tests here."""
    root = tmp_path_factory.mktemp("demo")
    done = shell("hydrasurgeon demo", root)
    assert done.returncode == 0, done.stderr
    for _, command in COMMANDS:
        assert f"hydrasurgeon {command}" in done.stderr
    return root / "hydra-demo"


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=cwd,
        env=os.environ | {"PATH": warm_path()},
        capture_output=True,
        text=True,
    )


def test_the_demo_data() -> None:
    sizes = {
        "train": 4000,
        "val": 1000,
        "test": 2000,
        "near": 1000,
        "digits": 1000,
        "textures": 900,
    }
    for name, size in sizes.items():
        samples = open_data(f"demo:{name}")
        assert len(samples) == size
        assert samples.read(0).size == (28, 28)
        if name in ("train", "val", "test"):
            assert set(samples.labels.tolist()) == set(range(8))
            assert "shirt" not in samples.classes
            assert "sneaker" not in samples.classes
        else:
            assert samples.labels is None
    train, val = (
        np.load(str(DEMO / f"{n}.npz"))["images"].reshape(-1, 784) for n in ("train", "val")
    )
    assert not {row.tobytes() for row in train} & {row.tobytes() for row in val}
    assert sum(f.stat().st_size for f in Path(str(DEMO)).iterdir()) <= 8_000_000


@pytest.mark.slow
def test_the_demo_tells_its_story(folder: Path) -> None:
    report = json.loads((folder / "results.json").read_text())
    single, member, hydra, mean, ensemble = report["results"]
    assert [result["members"] for result in report["results"]] == [1, 1, 3, 1, 3]
    for result in report["results"]:
        assert result["id"]["accuracy"] > 0.75
        assert {ood["name"] for ood in result["ood"]} == {"held-out", "digits"}
    assert member["cost"]["params"] < single["cost"]["params"]
    assert mean["cost"]["macs"] == single["cost"]["macs"]
    assert mean["id"]["nll"] < single["id"]["nll"]
    assert ensemble["cost"]["macs"] == pytest.approx(3 * single["cost"]["macs"], rel=0.02)
    assert hydra["cost"]["params"] < 0.6 * ensemble["cost"]["params"]
    assert hydra["diversity"]["mi"] > 0
    assert len((folder / "answers.csv").read_text().splitlines()) == 2001


@pytest.mark.slow
@pytest.mark.parametrize("page", [f"docs/guide/{name}.md" for name in GUIDES])
def test_the_commands_of_a_page_run(page: str, folder: Path, tmp_path: Path) -> None:
    """Each bash block but those that make the demo, in a copy of the demo's folder, in order."""
    if (
        "openssl" in (text := (ROOT / page).read_text(encoding="utf-8"))
        and shutil.which("openssl") is None
    ):
        pytest.skip("needs openssl to make a key")
    blocks = [
        b for b in re.findall(r"```bash\n(.*?)```", text, re.S) if not b.startswith(("make", "pip"))
    ]
    assert blocks
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for block in blocks:
        done = shell("set -e\n" + block, tmp_path)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


@pytest.mark.slow
def test_the_pipeline_runs(folder: Path) -> None:
    line = f"{ROOT}/examples/pipeline.sh backbone.safetensors demo:val demo:val demo:test out"
    done = shell(line, folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "out" / "report.json").read_text())["results"][1]["kind"] == "hydra"


def test_figures_of_the_demo_are_generated() -> None:
    """The guide has two tables with five rows each, README one."""
    guide = (ROOT / "docs" / "guide" / "commands.md").read_text(encoding="utf-8")
    table = guide.split("results.json -->")[1].split("<!-- end of demo table -->")[0]
    rows = ("| single", "| one member", "| hydra", "| mean", "| Deep")
    assert sum(line.startswith(rows) for line in table.splitlines()) == 10
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lead = readme.split("<!-- demo:")[1].split("<!-- end of demo -->")[0]
    assert sum(line.startswith(rows) for line in lead.splitlines()) == 5
    assert (ROOT / "docs" / "hydra.svg").read_text().count("<rect") == 1 + 3 * 6 * 8


def test_force_replaces_its_own_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "mine").mkdir(parents=True)
    for name in ("notes.txt", "mine/hydra.safetensors", "other.safetensors"):
        (folder / name).write_text("mine")
    (folder / "hydra.safetensors").write_text("old")
    with pytest.raises(OutputError, match="is not empty"):
        demo(folder, run=lambda _: 0, force=False)
    demo(folder, run=lambda _: 0, force=True)
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.safetensors" for name in SHIPPED),
        "notes.txt",
        "mine",
        "other.safetensors",
    }
    assert (folder / "mine" / "hydra.safetensors").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


@pytest.mark.slow
def test_the_examples_of_the_help_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, in a copy of the demo's folder."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name, command in NAMED.items():
        for line in command.examples:
            # Whether a budget of time can be met, or answers drift, is for the machine to say.
            if name not in ("demo", "serve", "monitor") and "time=" not in line:
                few = ["--limit", "400"] if name == "build" else []
                assert run([name, *shlex.split(line), *few]) == 0, f"{name} {line}"
