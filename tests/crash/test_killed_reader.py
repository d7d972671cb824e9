"""A worker of the data loader that is killed ends a command with a message, and nothing half-written."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny_families import CLASSES, FAMILIES

from hydrasurgeon.cli.app import run
from hydrasurgeon.data import batches


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a forked worker inherits what kills it")
@pytest.mark.parametrize("line", ["predict {} --engine torch -o a.csv", "eval {} --json a.json"])
def test_a_killed_reader_is_a_message(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    FAMILIES["timm ViT"].write(tmp_path / "vit")
    random = np.random.default_rng(0)
    for at in range(60):
        folder = tmp_path / "images" / str(at % CLASSES)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{at}.png")
    monkeypatch.setattr(batches, "FEW", 1)
    usual, alone = batches._Prepared.__getitem__, os.getpid()

    def killed(self: batches._Prepared, at: int) -> object:
        if at == 40 and os.getpid() != alone:
            os.kill(os.getpid(), signal.SIGKILL)
        return usual(self, at)

    monkeypatch.setattr(batches._Prepared, "__getitem__", killed)
    before = {path.name for path in tmp_path.iterdir()}
    more = ["--data", "images", "--batch-size", "8", "--device", "cpu", "-q"]
    assert run([*line.format("vit").split(), *more]) == 5
    assert "a process that reads the samples ended" in " ".join(capsys.readouterr().err.split())
    assert {path.name for path in tmp_path.iterdir()} == before
