"""Tensors: written in parts they are what they are in one piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hydrasurgeon.files import tensors as module
from hydrasurgeon.files.tensors import Planned, TensorFile, Tensors, write_tensors


def test_parts_make_the_file_that_one_piece_makes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"t{i}": rng.integers(0, 99, (5, i), dtype="u4") for i in (0, 1, 4, 9, 40, 3)}

    def planned(make: Callable[[Any], Any]) -> list[Planned]:
        return [
            Planned(name, "F32", array.shape, lambda array=array: make(array))
            for name, array in arrays.items()
        ]

    entries = [
        write_tensors(tmp_path / "one", planned(lambda array: [array]), lambda _: {}),
        write_tensors(tmp_path / "parts", planned(list), lambda _: {}),
    ]
    assert entries[0] == entries[1]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "parts").read_bytes()
    for name, array in load_file(tmp_path / "parts").items():
        assert array.tobytes() == arrays[name].tobytes()


def test_rows_and_blocks_are_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    array = np.arange(11 * 6, dtype="f4").reshape(11, 2, 3)
    scalar = np.array(2.5, dtype="f4")
    save_file({"x": array, "none": array[:0], "one": scalar}, tmp_path / "x.safetensors")
    tensors = Tensors([TensorFile(tmp_path / "x.safetensors")])
    rows = list(tensors.rows("x"))
    assert [len(part) for part in rows] == [2, 2, 2, 2, 2, 1]
    assert np.array_equal(np.concatenate(rows).view("f4"), array)
    assert list(tensors.rows("none")) == []
    assert [part.view("f4").tolist() for part in tensors.rows("one")] == [[2.5]]


def test_a_mistake_in_a_part_reaches_the_caller(tmp_path: Path) -> None:
    def broken() -> Any:
        yield np.zeros(3, dtype="u4")
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        write_tensors(tmp_path / "x", [Planned("x", "F32", (6,), broken)], lambda _: {})
