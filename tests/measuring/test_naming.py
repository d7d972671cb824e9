"""Checkpoints of one name in one table: each has a name of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import Checkpoint, open_checkpoint
from hydrasurgeon.measuring.running import by_path, name_of

MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def runs(tiny: MAKE, tmp_path: Path) -> list[Path]:
    """a/model and b/model, which keep other heads."""
    path = tiny()
    made = []
    for i, folder in enumerate("ab"):
        (tmp_path / folder).mkdir()
        out = tmp_path / folder / "model.safetensors"
        made.append(hs.prune(path, method="random", keep=1 + i, seed=i, out=out).path)
    return made


@pytest.fixture
def named(tiny: MAKE) -> Callable[[str], Checkpoint]:
    opened = open_checkpoint(tiny())
    return lambda path: replace(opened, path=Path(path))


def test_predictions_of_the_same_name(runs: list[Path], images: SPEC, tmp_path: Path) -> None:
    """Each row, and each verdict of a page, is of the model that it names."""
    labels = torch.from_numpy(np.load(images())["labels"])
    for name, at in (("right", labels), ("wrong", (labels + 1) % 5)):
        (tmp_path / name).mkdir()
        logits = 9.0 * torch.nn.functional.one_hot(at, 5)
        save_file({"logits": logits, "labels": labels}, tmp_path / name / "model.safetensors")
    files = [tmp_path / name / "model.safetensors" for name in ("right", "wrong")]
    page = tmp_path / "r.md"
    rows = hs.evaluate(runs[:1], data=images(), predictions_in=files, markdown=page).report.results
    assert [row.name for row in rows] == ["model", *(f"model ({file})" for file in files)]
    assert [row.id.accuracy for row in rows[1:]] == [1, 0]
    better, worse = page.read_text(encoding="utf-8").splitlines()[:2]
    assert better.startswith(f"- **Better**: `model ({files[0]})`")
    assert worse.startswith(f"- **Worse**: `model ({files[1]})`")
    alone = hs.evaluate([], predictions_in=[files[0], files[0]]).report.results
    assert [row.name for row in alone] == ["model", "model"]  # one and the same


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/a.safetensors", "/y/b.safetensors"], ["a", "b"]),
        (["/x/a.safetensors", "/x/b.safetensors", "/y/a.safetensors"], ["/x/a", "b", "/y/a"]),
        (["/x/a.safetensors", "/x/a.safetensors"], ["a", "a"]),
        ([f"{os.getcwd()}/a.safetensors", "a.safetensors"], ["a", "a"]),
    ],
    ids=["other names", "one apart", "one file twice", "one file, named in two ways"],
)
def test_the_path_tells_them_apart(
    paths: list[str], names: list[str], named: Callable[[str], Checkpoint]
) -> None:
    assert [name_of([each]) for each in by_path([named(path) for path in paths], paths)] == names
