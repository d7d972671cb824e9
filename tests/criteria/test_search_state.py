"""The state of an interrupted search is believed only where it fits; what does not is a message, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydrasurgeon.criteria.circuits.exact import Exact
from hydrasurgeon.criteria.circuits.objective import Objective, Outcomes
from hydrasurgeon.criteria.circuits.packed import Packed, pack, unpack
from hydrasurgeon.criteria.circuits.state import FORMAT, State
from hydrasurgeon.errors import UsageError
from hydrasurgeon.heads import Head

IDENTITY = {"weights": "0" * 64, "seed": 0}
GOOD: dict[str, Any] = {
    "format": FORMAT, "identity": IDENTITY, "order": [["vision", 1, 2]], "trace": [0.5], "start": 0.75, "memory": {},
}  # fmt: skip


def read(folder: Path, content: str) -> Any:
    (folder / "s.json").write_text(content)
    return State(folder / "s.json", IDENTITY).read()


def test_a_state_is_read(tmp_path: Path) -> None:
    position = read(tmp_path, json.dumps(GOOD))
    assert position.order == (("vision", 1, 2),)
    assert (position.trace, position.start) == ((0.5,), 0.75)


@pytest.mark.parametrize(
    "change",
    [
        {"order": []}, {"order": [["vision", 1]]}, {"order": [["vision", -1, 0]]}, {"order": [["vision", True, 0]]}, {"order": [["vision", 1.0, 0]]},
        {"order": "abc"}, {"order": None}, {"trace": []}, {"trace": ["0.5"]}, {"trace": [None]}, {"start": "x"}, {"start": True}, {"memory": []},
        {"memory": None}, {"identity": []}, {"identity": "x"}, {"identity": {}}, {"identity": {**IDENTITY, "seed": "x" * 10_000}}, {"format": "x"},
        {"format": None}, {"more": 1},
    ],
)  # fmt: skip
def test_what_is_no_state_of_this_search(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"s\.json") as refused:
        read(tmp_path, json.dumps({**GOOD, **change}))
    assert len(refused.value.message) < 600 + len(str(tmp_path))


@pytest.mark.parametrize(
    "content", ["", "[", "[" * 100_000, "3", "null", "[]", '{"a":' * 5000, "1" * 5000]
)
def test_what_is_no_state(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError, match=r"s\.json"):
        read(tmp_path, content)


def test_packed_predictions_have_the_rows_of_the_data() -> None:
    made = pack(Outcomes(torch.rand(3), torch.rand(3), torch.rand(2)))
    assert unpack(Packed(**made), (3, 3, 2)).margin.shape == (3,)
    for rows in ((4, 3, 2), (3, 3, 0)):
        with pytest.raises(ValueError, match="does not hold"):
            unpack(Packed(**made), rows)
    for wrong in ("!!", "é", made["margin"][:-4], pack(Outcomes(*[torch.full((3,), torch.nan)] * 3))["margin"]):  # fmt: skip
        with pytest.raises(ValueError):
            unpack(Packed(**{**made, "margin": wrong}), (3, 3, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"favourites": [["vision", 0, 9]]}, {"favourites": [["vision", 0, 0]] * 2}, {"favourites": 3}, {"counts": {}}, {"counts": 3},
        {"counts": {"evaluations": -1, "stopped": 0, "rechecked": 0, "layers": 0, "parts": 0}}, {"present": {}}, {"present": None},
    ],
)  # fmt: skip
def test_what_a_search_cannot_have_known(change: dict[str, Any]) -> None:
    memory = {
        "counts": {"evaluations": 1, "stopped": 0, "rechecked": 0, "layers": 3, "parts": 4},
        "present": pack(Outcomes(torch.rand(3), torch.rand(3), torch.rand(2))),
        "favourites": [["vision", 0, 1]],
    }
    problem: Any = SimpleNamespace(
        objective=Objective("avg", 3, 2), candidates=(Head("vision", 0, 0), Head("vision", 0, 1))
    )
    search = object.__new__(Exact)
    search.problem, search.engine = problem, SimpleNamespace(work=None)  # type: ignore[assignment]
    search.tally = {"evaluations": 0, "stopped": 0, "rechecked": 0}
    search.recall(memory)
    assert search.favourites == [Head("vision", 0, 1)]
    with pytest.raises(ValueError):
        search.recall({**memory, **change})
