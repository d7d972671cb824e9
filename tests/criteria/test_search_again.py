"""A finished order is shortened for free and lengthened from its end; both are what a search from the start finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint, rewritten
from hydrasurgeon.checkpoints.writing import record_in_place
from hydrasurgeon.criteria.circuits.search import Exact
from hydrasurgeon.files.manifest import Score

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
