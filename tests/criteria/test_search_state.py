"""The state of an interrupted search is believed only where it fits; what does not is a message, never a traceback."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydrasurgeon.criteria.circuits.engine import Work
from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.greedy import Packed, SearchState, pack, unpack
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.heads import Head

IDENTITY = {"weights": "0" * 64, "seed": 0, "device": "cpu", "dtype": "float32"}
GOOD: dict[str, Any] = {
    "order": [["vision", 1, 2]],
    "trace": [0.5],
    "start": 0.75,
    "counts": [{"evaluations": 12, "off": 0.5}],
    "memory": {"é": 1e-05},
}


def read(folder: Path, content: bytes | str) -> Any:
    path = folder / "s.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return SearchState(path, IDENTITY).read()


def written(folder: Path, position: dict[str, Any], identity: Any = IDENTITY) -> bytes:
    state = SearchState(folder / "w.json", identity)
    state.write(position)
    return state.path.read_bytes()


def test_a_state_is_read(tmp_path: Path) -> None:
    position = read(tmp_path, written(tmp_path, GOOD))
    assert position.order == (("vision", 1, 2),)
    assert (position.trace, position.start) == ((0.5,), 0.75)


@pytest.mark.parametrize(
    "change",
    [
        {"order": []},
        {"order": [["vision", 1]]},
        {"order": [["vision", -1, 0]]},
        {"order": [["vision", True, 0]]},
        {"order": [["vision", 1.0, 0]]},
        {"order": "abc"},
        {"order": None},
        {"trace": []},
        {"trace": ["0.5"]},
        {"trace": [None]},
        {"start": "x"},
        {"start": True},
        {"memory": []},
        {"memory": None},
        {"more": 1},
        {"counts": []},
        {"counts": [{"evaluations": -1}]},
        {"counts": [{"evaluations": "1"}]},
        {"counts": [3]},
    ],
)
def test_a_position_that_no_search_has(tmp_path: Path, change: dict[str, Any]) -> None:
    refused(tmp_path, written(tmp_path, {**GOOD, **change}))


def refused(folder: Path, content: bytes | str) -> None:
    with pytest.raises(
        CheckpointError, match=r"s\.json: the state of an interrupted search is damaged"
    ) as error:
        read(folder, content)
    assert error.value.exit_code == 3
    assert error.value.hint == "Delete s.json: the search then starts over."
    assert len(error.value.message) < 600 + len(str(folder))


@pytest.mark.parametrize(
    "content", ["", "[", "[" * 100_000, "3", "null", "[]", '{"a":' * 5000, "1" * 5000, "{}", "\0"]
)
def test_what_is_no_state(tmp_path: Path, content: str) -> None:
    refused(tmp_path, content)


def test_every_byte_counts(tmp_path: Path) -> None:
    whole = written(tmp_path, GOOD)
    for at in range(len(whole) - 1):  # the last one ends the line
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        refused(tmp_path, bytes(damaged))
    for length in range(0, len(whole) - 1, 5):
        refused(tmp_path, whole[:length])


def test_a_state_of_another_version(tmp_path: Path) -> None:
    refused(
        tmp_path,
        written(tmp_path, GOOD).replace(b"hydrasurgeon.search/4", b"hydrasurgeon.search/1"),
    )


def test_packed_predictions_have_the_rows_of_the_data() -> None:
    made = pack(Outcomes(torch.rand(3), torch.rand(3), torch.rand(2)))
    assert unpack(Packed(**made), (3, 3, 2)).margin.shape == (3,)
    for rows in ((4, 3, 2), (3, 3, 0)):
        with pytest.raises(ValueError, match="does not hold"):
            unpack(Packed(**made), rows)
    for wrong in (
        "!!",
        "é",
        made["margin"][:-4],
        pack(Outcomes(*[torch.full((3,), torch.nan)] * 3))["margin"],
    ):
        with pytest.raises(ValueError):
            unpack(Packed(**{**made, "margin": wrong}), (3, 3, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"favourites": [["vision", 0, 9]]},
        {"favourites": [["vision", 0, 0]] * 2},
        {"favourites": 3},
        {"present": {}},
        {"present": None},
    ],
)
def test_what_a_search_cannot_have_known(change: dict[str, Any]) -> None:
    memory = {
        "present": pack(Outcomes(torch.rand(3), torch.rand(3), torch.rand(2))),
        "favourites": [["vision", 0, 1]],
    }
    problem: Any = SimpleNamespace(
        objective=Objective("avg", 3, 2), candidates=(Head("vision", 0, 0), Head("vision", 0, 1))
    )
    search = object.__new__(Exact)
    search.problem = problem
    search.recall(memory)
    assert search.favourites == [Head("vision", 0, 1)]
    with pytest.raises(ValueError):
        search.recall({**memory, **change})


def test_counts_that_a_search_cannot_have_had() -> None:
    search = object.__new__(Exact)
    search.engine = SimpleNamespace(work=Work())  # type: ignore[assignment]
    search.tally = {"evaluations": 0, "stopped": 0, "rechecked": 0}
    counts = {"evaluations": 1, "stopped": 0, "rechecked": 0, "layers": 3, "parts": 4}
    search.take_over(counts)
    assert search.counts() == counts
    for wrong in (
        {},
        3,
        {**counts, "evaluations": -1},
        {**counts, "more": 1},
        {**counts, "parts": "1"},
    ):
        with pytest.raises(ValueError):
            search.take_over(wrong)  # type: ignore[arg-type]
