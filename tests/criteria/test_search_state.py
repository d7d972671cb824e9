"""The state of a search, interrupted or finished: believed only where it fits, shortened for free and lengthened from
its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import record_in_place
from hydrasurgeon.criteria.circuits import SEARCH
from hydrasurgeon.criteria.circuits.search import Exact, SearchState
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.files.atomic import write_text
from hydrasurgeon.files.manifest import Score
from hydrasurgeon.heads import Head

IDENTITY = {"weights": "0" * 64, "seed": 0, "device": "cpu", "dtype": "float32"}
GOOD: dict[str, Any] = {
    "order": [["vision", 1, 2]],
    "trace": [0.5],
    "start": 0.75,
}


def read(folder: Path, content: bytes | str) -> Any:
    path = folder / "s.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return SearchState(path, IDENTITY).read([Head("vision", 1, 2)])


def written(folder: Path, position: dict[str, Any], identity: Any = IDENTITY) -> bytes:
    state = SearchState(folder / "w.json", identity)
    write_text(state.path, json.dumps(state.texts(position)) + "\n")
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
        {"order": [["vision", 0, 9]]},
        {"order": [["vision", 1, 2]] * 2, "trace": [0.5, 0.5]},
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
        {"more": 1},
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
        written(tmp_path, GOOD).replace(SEARCH[1].encode(), b"hydrasurgeon.search/1"),
    )


MAKE = Callable[..., Path]
SPEC = Callable[..., str]


@pytest.fixture
def data(images: SPEC) -> dict[str, Any]:
    return {"data": images(rows=20), "ood": [images("ood.npz", rows=15, seed=5, labels=False)]}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many heads were left in each round that was run."""
    run: list[int] = []
    step = Exact.next

    def counted(self: Any, removed: Any) -> Any:
        run.append(len(self.problem.left(removed)))
        return step(self, removed)

    monkeypatch.setattr(Exact, "next", counted)
    return run


def score(path: Path, data: dict[str, Any], search: str, remove: int, **more: Any) -> Score:
    return hs.score(
        path,
        method="circuit",
        search=search,
        remove=remove,
        device="cpu",
        batch_size=8,
        **data,
        **more,
    ).result


def test_a_finished_order_goes_on(tiny: MAKE, data: dict[str, Any], rounds: list[int]) -> None:
    path = tiny()
    expected = score(tiny("b.safetensors"), data, "exact", 3)
    score(path, data, "exact", 2)
    rounds.clear()
    assert score(path, data, "exact", 3) == expected
    assert rounds == [10]  # the prefix is not searched again
    score(path, data, "exact", 1)
    assert rounds == [10]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"start": "x"}, {"identity": "0" * 64}])
def test_a_record_that_is_not_whole_is_not_believed(
    tiny: MAKE, data: dict[str, Any], rounds: list[int], change: dict[str, Any]
) -> None:
    path = tiny()
    recorded = score(path, data, "exact", 2)
    expected = score(path, data, "exact", 3)
    opened = open_checkpoint(path)
    spoiled = recorded.model_copy(update={"settings": {**recorded.settings, **change}})
    manifest = rewritten(opened.manifest, scores={"circuit-avg": spoiled})
    record_in_place(path, opened.tensors.files[0], manifest)
    rounds.clear()
    assert score(path, data, "exact", 3) == expected
    assert rounds == [12, 11, 10]
