"""Large tables are held in little memory, and read as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_files import write_lines

from hydrasurgeon.data import open_data, tables
from hydrasurgeon.data.packed import Packed

VALUES = ["one", "", "zwölf", None, "\ud800", 3, float("inf"), "🙂 last", ["x"]]


def test_packed_values_are_the_values() -> None:
    packed = Packed()
    packed.extend(VALUES[:4])
    packed.extend(VALUES[4:])
    assert list(packed) == VALUES
    assert (packed[-1], packed[np.int64(2)], len(packed)) == (["x"], "zwölf", 9)
    with pytest.raises(IndexError):
        packed[9]


def rows(count: int) -> list[dict[str, Any]]:
    """Texts of several lengths, of which some are there twice, and a column that begins late."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        row = {"text": f"row {i % 17} " * (1 + i % 5), "label": f"class {i % 3}"}
        made.append(row | ({"id": i} if i > 7 else {}))
    return made


def written(path: Path, count: int) -> str:
    return write_lines(path, rows(count))


@pytest.mark.parametrize("count", [1, 4, 8, 19])
def test_pieces_of_a_file_make_its_table(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE", 4)
    spec, truth = written(tmp_path / "a.jsonl", count), rows(count)
    samples = open_data(spec, carried=("id",))
    assert [samples.read(i) for i in range(count)] == [row["text"] for row in truth]
    if count > 8:
        assert [*samples.columns["id"]] == [row.get("id") for row in truth]
    labels, names = samples.labels, samples.classes
    assert labels is not None
    assert names is not None
    assert [names[label] for label in labels] == [row["label"] for row in truth]
    written(tmp_path / "b.jsonl", count)
    both = open_data(str(tmp_path / "*.jsonl"))
    assert [both.read(i) for i in range(2 * count)] == [row["text"] for row in truth * 2]
