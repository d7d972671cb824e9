"""examples/paper/tables.py: the commands of all tables, and a table made from end to end."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

import hydrasurgeon as hs
from hydrasurgeon.cli.app import application

PAPER = Path(__file__).parents[2] / "examples" / "paper"
PLACES = ("imagenet", "openood", "tiny_imagenet", "places", "texts")
SCALES = ("small", "paper")
STAGES = {"score", "prune", "finetune", "fuse", "eval"}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import the script."""
    monkeypatch.syspath_prepend(str(PAPER))
    import tables

    yield tables
    for name in ("gpu", "tables", "settings"):
        sys.modules.pop(name, None)


def used_commands(lines: Iterable[str]) -> set[str]:
    """Parse command lines as the tool does, and return the commands; scripts must exist."""
    used = set()
    for line in lines:
        words = shlex.split(line)
        if words[:2] != ["-m", "hydrasurgeon"]:
            assert Path(words[0]).parent == PAPER
            assert Path(words[0]).exists()
            continue
        called = get_command(application(None)).commands[words[2]]  # type: ignore[attr-defined]
        called.make_context(words[2], words[3:])
        used.add(words[2])
    return used


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_every_command_is_one_of_ours(scale: str, tmp_path: Path) -> None:
    line = [sys.executable, str(PAPER / "tables.py"), "all", "--scale", scale, "--seeds", "1"]
    line += [word for name in PLACES for word in ("--place", f"{name}=/data/{name}")]
    line += ["--work", str(tmp_path), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    *commands, count = done.stdout.splitlines()
    assert count == f"{len(commands)} commands"
    assert not re.search(r"{\w+}/", done.stdout), "a place that nothing filled"
    assert used_commands(command.partition("$ ")[2] for command in commands) == STAGES


def test_every_command_of_the_gpu_run_is_one_of_ours(tables: Any, tmp_path: Path) -> None:
    import gpu

    places = {"shared": "/data", "here": str(PAPER)}
    shop = tables.Workshop(gpu.GPU[gpu.SETTING], 0, tmp_path, places, dry=True)
    for row in gpu.ROWS:
        shop.measure(gpu.QUALITY, row)
    assert used_commands(shop.commands) == STAGES


def test_latency_is_measured_beside_the_single_model(tables: Any, tmp_path: Path) -> None:
    """For both data types and each batch size, in one table; the single model's ratio to itself is 1."""
    import gpu

    single, member = tmp_path / "single-1.safetensors", tmp_path / "circ-avg-tuned.safetensors"
    shutil.copy(Path(hs.__file__).parent / "demo" / "backbone.safetensors", single)
    mask = tmp_path / "mask.json"
    mask.write_text(json.dumps({"vision": [[0]] * 6}))
    hs.prune(single, mask=mask, out=member)
    rows = gpu.measure_latency(tmp_path, [1, 2], torch.device("cpu"), runs=1)
    assert len(rows) == 2 * 2 * 2
    assert {row["ratio"] for row in rows if row["model"] == "Single"} == {1.0}
    assert {row["cuda_graphs"] for row in rows} == {"off"}
    table = gpu.latency_table(rows).splitlines()
    assert [line.split("|")[1].strip() for line in table] == [
        "ms (ratio)",
        "---",
        "Single",
        "CircAvg",
    ]


@pytest.mark.slow
def test_a_table_is_made(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two epochs of a few samples: every file is made once, and every figure of the table is there."""
    monkeypatch.setenv("PYTHONPATH", str(PAPER.parents[1]))
    few = "--limit 128 --set epochs=1"
    clothes = tables.SCALES["small"]["clothes"]
    small = replace(
        clothes, training=f"{clothes.training} {few}", tuning=f"{clothes.tuning} {few}", limit=40
    )
    shop = tables.Workshop(small, 0, tmp_path, {"here": str(PAPER)}, dry=False)
    results = tables.Results(tmp_path / "results.json")
    table = tables.TABLES["11"]
    for row in table.rows:
        results.add(shop.measure(table, row), "11", "clothes", row.name, "0")
    made = [command for command in shop.commands if " eval " not in command]
    assert len(made) == len(set(made))
    assert results.holds("11", "clothes", "Single", "0")
    assert not results.holds("11", "clothes", "Single", "1")
    rows = json.loads((tmp_path / "results.json").read_text())["11"]["clothes"]
    for row in rows.values():
        assert set(table.columns) <= set(row["0"])
    assert (
        rows["Single"]["0"]["params"]
        < rows["Hydra (Circ)"]["0"]["params"]
        < rows["Hydra (Circ), separate MLPs"]["0"]["params"]
    )
    lines = tables.markdown(table, {"clothes": rows}).splitlines()
    assert len(lines) == 2 + len(table.rows)
    assert lines[-1].count("|") == len(table.columns) + 2
