"""eval --log: what a tracker's client is told, by a stand-in that takes what the real one takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import hydrasurgeon as hs
from hydrasurgeon.errors import UsageError
from hydrasurgeon.sharing.trackers import TRACKERS


@pytest.fixture
def predictions(tmp_path: Path) -> list[Path]:
    paths = []
    for seed, name in enumerate(("one", "two")):
        generator = torch.Generator().manual_seed(seed)
        logits, foreign = torch.randn(30, 1, 4, generator=generator), torch.randn(20, 1, 4)
        save_file(
            {"logits": logits, "labels": torch.arange(30) % 4, "ood.a,b.logits": foreign},
            tmp_path / f"{name}.safetensors",
        )
        paths.append(tmp_path / f"{name}.safetensors")
    return paths


Calls = list[tuple[str, Any]]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Calls]:
    """A client that notes down what it is told."""

    def make(name: str) -> Calls:
        calls: Calls = []
        module: Any = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        if name == "mlflow":

            @contextmanager
            def start_run(*, run_name: str) -> Iterator[None]:
                calls.append(("run", run_name))
                yield

            module.set_experiment = lambda project: calls.append(("project", project))
            module.start_run = start_run
            module.log_params = lambda params: calls.append(("settings", params))
            module.log_metrics = lambda metrics: calls.append(("numbers", metrics))
        else:

            def init(*, project: str, name: str, config: dict[str, Any]) -> None:
                print("* project initialized")  # as trackio does
                calls.extend([("project", project), ("run", name), ("settings", config)])

            module.init = init
            module.log = lambda metrics: calls.append(("numbers", metrics))
            module.finish = lambda: None
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return make


@pytest.mark.parametrize("name", TRACKERS)
def test_a_run_for_each_result(
    name: str, client: Callable[[str], Calls], predictions: list[Path]
) -> None:
    calls = client(name)
    report = hs.evaluate([], predictions_in=predictions, log=f"{name}:mine").report
    assert [about for what, about in calls if what == "project"] == ["mine", "mine"]
    assert [about for what, about in calls if what == "run"] == ["one", "two"]
    numbers = [about for what, about in calls if what == "numbers"]
    for each, result in zip(numbers, report.results, strict=True):
        assert each["id/accuracy"] == result.id.accuracy
        assert each["ood/a_b/auroc"] == result.ood[0].auroc
        assert each["ood_average/all/fpr95"] == result.ood_average["all"].fpr95
        assert all(isinstance(value, float) for value in each.values())
    settings = next(about for what, about in calls if what == "settings")
    assert settings["seed"] == "0"
    assert settings["kind"] == "unknown"


def test_what_a_client_raises_is_one_message(
    client: Callable[[str], Calls], predictions: list[Path], tmp_path: Path
) -> None:
    client("wandb")

    def init(**_: Any) -> None:
        raise RuntimeError("no route\nto it")

    sys.modules["wandb"].init = init  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"--log wandb: one could not be logged \(no route\)"):
        hs.evaluate([], predictions_in=predictions, log="wandb", json=tmp_path / "r.json")
    assert (tmp_path / "r.json").exists()
