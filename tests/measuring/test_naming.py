"""Checkpoints of one name in one table: each has a name of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hydrasurgeon.checkpoints.checkpoint import Checkpoint, open_checkpoint
from hydrasurgeon.measuring.sets import by_path, name_of

MAKE = Callable[..., Path]


@pytest.fixture
def named(tiny: MAKE) -> Callable[[str], Checkpoint]:
    opened = open_checkpoint(tiny())
    return lambda path: replace(opened, path=Path(path))


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
