"""The demo's folder: its own files are replaced, whatever else lies there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.cli.app import run
from hydrasurgeon.cli.demo import COMMANDS, demo, written
from hydrasurgeon.errors import OutputError


def test_it_knows_the_names_of_its_files() -> None:
    names = written([command for _, command in COMMANDS])
    assert {
        "backbone.safetensors",
        "hydra.heads.json",
        "results.json",
        "report.html",
        "ensemble.predictions.safetensors",
    } <= names
    assert len(names) == 31


def test_force_replaces_its_own_files_only(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    (folder / "mine").mkdir(parents=True)
    for name in ("notes.txt", "mine/hydra.safetensors", "vit.safetensors"):
        (folder / name).write_text("mine")
    (folder / "hydra.safetensors").write_text("old")
    with pytest.raises(OutputError, match="is not empty"):
        demo(folder, run=lambda _: 0, force=False)
    demo(folder, run=lambda _: 0, force=True)
    shipped = {f"{name}.safetensors" for name in ("backbone", "independent-2", "independent-3")}
    assert {path.name for path in folder.iterdir()} == {
        *shipped,
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
