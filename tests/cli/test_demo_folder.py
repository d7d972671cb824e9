"""The demo's folder: its own files are replaced, whatever else lies there stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hydrasurgeon.cli.app import run
from hydrasurgeon.cli.demo import SHIPPED, commands, demo, in_time, written
from hydrasurgeon.errors import OutputError


def test_it_knows_the_names_of_its_files() -> None:
    names = written([command for _, command in commands(int8=True)])
    assert {
        "backbone.safetensors",
        "hydra.heads.json",
        "results.json",
        "report.html",
        "mean.int8.onnx",
    } <= names
    assert len(names) == 35


def run_nothing(line: list[str]) -> int:
    """No command but the last, which leaves times."""
    if line[0] == "eval":
        rows = [
            {"name": name, "cost": {"latency_ms": ms}}
            for name, ms in (("ready-mean", 1.24), ("mean.int8.onnx", 0.31))
        ]
        Path("results.json").write_text(json.dumps({"results": rows}))
    return 0


def test_without_onnxruntime_there_are_no_eight_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are left out, in a line that says what to install."""
    ran: list[list[str]] = []
    monkeypatch.setattr("hydrasurgeon.lookup.find_spec", lambda name: None)
    demo(tmp_path / "d", run=lambda line: ran.append(line) or 0, force=False)
    said = capsys.readouterr().err
    assert "The mean in 8 bits needs onnx and onnxscript and onnxruntime" in said
    assert ran[-1][:2] == ["eval", "ready-single"]
    assert not any("int8" in word for line in ran for word in line)


def test_times_are_those_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_nothing(["eval"])
    assert "1.2 ms in torch, and 0.31 ms in 8 bits" in in_time(tmp_path / "results.json")


def test_force_replaces_its_own_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "mine").mkdir(parents=True)
    for name in ("notes.txt", "mine/hydra.safetensors", "vit.safetensors"):
        (folder / name).write_text("mine")
    (folder / "hydra.safetensors").write_text("old")
    with pytest.raises(OutputError, match="is not empty"):
        demo(folder, run=lambda _: 0, force=False)
    demo(folder, run=run_nothing, force=True)
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.safetensors" for name in SHIPPED),
        "results.json",
        "notes.txt",
        "mine",
        "vit.safetensors",
    }
    assert (folder / "mine" / "hydra.safetensors").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text("mine")
    for force in ([], ["--force"]):
        assert run(["demo", "-o", str(tmp_path / "f"), *force]) == 2
        assert "is not a directory" in capsys.readouterr().err
    assert run(["demo", "-o", str(tmp_path / "f" / "d")]) == 2
    assert (tmp_path / "f").read_text() == "mine"
