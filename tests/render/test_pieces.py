"""Pieces of several results: towers stand below each other, and a small model has parameters."""

from __future__ import annotations

import pytest

from hydrasurgeon.files.manifest import Tower
from hydrasurgeon.render.tables import millions, picture


def test_layers_of_two_towers_stand_in_line(capsys: pytest.CaptureFixture[str]) -> None:
    tower = Tower(layers=1, heads=4, head_dim=8, dim=32)
    picture({"vision": ((0, 3),), "text": ((1,),)}, {"vision": tower, "text": tower})
    assert capsys.readouterr().out == "    vision  0 ■··■ 2\n    text    0 ·■·· 1\n"


def test_parameters_are_never_none() -> None:
    assert [millions(count) for count in (1_361_000, 5_000, 4_490, 0)] == [
        "1.36 M",
        "0.01 M",
        "4,490",
        "0",
    ]
