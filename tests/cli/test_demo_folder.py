"""The demo's folder: its own files are replaced, whatever else lies there stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydrasurgeon.cli.demo import SHIPPED, demo
from hydrasurgeon.errors import OutputError


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
