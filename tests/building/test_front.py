"""build's front: what members of every size cost, that a hydra of them is what was chosen, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitted_heads import solved, with_head
from lines_kept import Lines
from tiny_families import FAMILIES, Family, thoroughly
from tiny_task import VIT, Task

import hydrasurgeon as hs
from hydrasurgeon.building import clock
from hydrasurgeon.building.budgets import Budget, ModelSizes, Size, stored
from hydrasurgeon.building.clock import Clock
from hydrasurgeon.building.front import possible_risk
from hydrasurgeon.checkpoints.checkpoint import as_single, open_checkpoint
from hydrasurgeon.errors import HydraError, OutputError, SurgeryError, UsageError
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.options.shared import Run
from hydrasurgeon.runtime.classifier import as_classifier


def price(path: Path, whole: Path, family: Family = VIT) -> float:
    """Multiply-adds of the model in a file, times the whole one's."""
    counts = [
        macs(as_classifier(open_checkpoint(each), device="cpu", lean=True), family.inputs())
        for each in (path, whole)
    ]
    return counts[0] / counts[1]


class Tasks(Task):
    """Two models of one architecture, and what is built of both."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        head = solved(self.backbone, self.data)
        noise = np.random.default_rng(5).normal(size=head.shape) * np.abs(head).mean() / 2
        self.models = [
            with_head(
                self.backbone, folder / f"m{number}.safetensors", head + sign * noise, moved=0.01
            )
            for number, sign in ((1, 1), (2, -1))
        ]

    def front(self, out: str = "front/", models: Any = None, **more: Any) -> Any:
        settings: dict[str, Any] = {
            "data": self.data,
            "val": self.val,
            "ood": [self.ood],
        }
        settings |= {"batch_size": 32, "device": "cpu"} | more
        return hs.build(models or self.models, out=f"{self.folder}/{out}", **settings)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Tasks:
    return Tasks(tmp_path_factory.mktemp("front"))


@pytest.mark.parametrize("family", thoroughly("timm ViT", "BERT", "ModernBERT"))
def test_what_a_size_costs(family: Family, tmp_path: Path) -> None:
    """To the last multiply-add and parameter, before it is made."""
    family.write(tmp_path / "source")
    opened = as_single(open_checkpoint(tmp_path / "source"))
    sizes = ModelSizes(opened, family.inputs(), Run(device="cpu"))
    chosen = sizes.filling(Budget("macs", 0.7))
    assert chosen is not None
    for size in (chosen, Size(1, 0.3)):
        member = hs.prune(
            tmp_path / "source",
            method="random",
            keep=size.heads,
            neurons=size.neurons,
            tower=sizes.tower,
            out=tmp_path / f"{size.heads}",
        ).path
        assert sizes.cost(size, "macs") == price(member, tmp_path / "source", family)
        assert sizes.cost(size, "params") == stored(open_checkpoint(member)) / stored(opened)
    assert 0.6 < sizes.cost(chosen, "macs") <= 0.7


@pytest.mark.slow
def test_a_front_is_a_folder_of_checkpoints(tasks: Tasks) -> None:
    lines: list[str] = []

    built = tasks.front(budget="macs=0.5,0.8,1.5", progress=Lines(lines))
    # The labels come first, then the plan, then the stage that runs.
    assert {f"{name}.npz: 3 classes, 30 rows each" for name in ("train", "val")} <= set(lines)
    first = lines.index(built.plan[1])
    assert lines[first : first + len(built.plan) - 1] == list(built.plan[1:])
    assert built.plan[2].startswith("2. the other models, and their mean: about ")
    assert any(line.startswith(f"stage 1 of {len(built.plan) - 1} (") for line in lines)
    assert built.to_json()["summary"] == built.summary
    said = json.loads((built.path / "front.json").read_text())
    assert said["format"] == "hydrasurgeon.front/1"
    budgets = [rung["budget"] for rung in said["rungs"]]
    assert budgets == [0.5, 0.8, 1.5]
    estimates = [rung["estimate"] for rung in said["rungs"]]
    assert estimates == sorted(estimates)
    assert said["no_better"] == [
        b
        for b, low, high in zip(budgets[1:], estimates, estimates[1:], strict=False)
        if low == high
    ]
    for rung in said["rungs"]:
        path = built.path / rung["path"]
        manifest = open_checkpoint(path).manifest
        assert manifest.kind == rung["kind"]
        assert manifest.decision is not None
        most = price(path, tasks.models[0])
        assert rung["macs"] == pytest.approx(most, abs=1e-12)
        assert rung["macs"] <= rung["budget"]
        assert {"accuracy", "nll", "ece", "auroc"} <= {*rung} & {*rung["errors"]} | {"ece"}
    names = [row["name"] for row in said["references"]]
    assert names == ["single model, calibrated", "probe", "mean of 2", "ensemble of 2"]
    assert [row["macs"] for row in said["references"]] == [1.0, 1.0, 1.0, 2.0]
    mean = hs.fuse(tasks.models, mean=True, out=tasks.folder / "mean.safetensors")
    assert (
        open_checkpoint(built.work / "mean.safetensors").manifest.weights_sha256
        == mean.manifest.weights_sha256
    )
    paths = {rung["path"] for rung in said["rungs"]}  # equal rungs are stored once
    assert len(paths) == len(budgets) - len(said["no_better"])
    assert {path.name for path in built.path.iterdir()} == {
        "front.json",
        "front.svg",
        *paths,
        *(path.replace(".safetensors", ".heads.json") for path in paths),
    }
    keys = {"members", "made_of", "estimate", "macs", "params", "accuracy", "nll", "errors"}
    for each in (*said["rungs"], *said["references"]):
        assert keys | {"budget", "path", "kind"} <= each.keys()
    with pytest.raises(OutputError, match="already exists"):
        tasks.front(budget="macs=0.5,0.8,1.5")


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"budget": "macs=0.02"}, UsageError, "the smallest possible model costs macs=0."),
        (
            {"budget": "macs=0.5,1", "out": "front.safetensors"},
            UsageError,
            "a folder of checkpoints",
        ),
        ({"models": "twice"}, UsageError, "has the weights of"),
        ({"models": "pruned"}, SurgeryError, "is pruned already"),
        ({"models": "other"}, SurgeryError, "differs"),
    ],
)
def test_what_cannot_be_built(
    more: dict[str, Any], error: type[HydraError], says: str, tasks: Tasks
) -> None:
    models = more.get("models")
    if models == "twice":
        more = {**more, "models": [tasks.models[0], tasks.models[0]]}
    elif models == "pruned":
        cut = hs.prune(
            tasks.models[1], method="random", keep=2, out=tasks.folder / "cut", force=True
        ).path
        more = {**more, "models": [tasks.models[0], cut]}
    elif models == "other":
        FAMILIES["BERT"].write(tasks.folder / "bert")
        more = {**more, "models": [tasks.models[0], tasks.folder / "bert"]}
    before = {*tasks.folder.iterdir()}
    with pytest.raises(error) as caught:
        tasks.front(**{"out": "no.safetensors", **more})
    assert says in f"{caught.value.message} {caught.value.hint}"
    assert {*tasks.folder.iterdir()} == before


SPEED = {"torch": 2.0, "onnx": 1.0, "int8": 0.25}
"""How long an engine takes for a number of a model's, in the tests of budgets of time."""


@pytest.fixture
def counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model takes as long as it has numbers: no test depends on how fast a machine is."""

    def live(self: Clock, opened: Any, **_: Any) -> dict[str, float]:
        return {engine: SPEED[engine] * stored(opened) for engine in self.engines}

    def written(opened: Any, *, engine: str, device: str) -> float:
        return SPEED[engine] * stored(opened)

    def seconds_of(models: Any, *_: Any, **__: Any) -> dict[str, float]:
        return {name: each for name, (each,) in models.items()}

    monkeypatch.setattr(Clock, "_live", live)
    monkeypatch.setattr(clock, "engine_of", written)
    monkeypatch.setattr(clock, "timed_samples", lambda *_, **__: [])
    monkeypatch.setattr(clock, "seconds_of", seconds_of)
    monkeypatch.setattr(clock, "_engines", lambda: ("torch", "onnx"))


@pytest.mark.slow
@pytest.mark.usefixtures("counted_time")
def test_a_budget_of_time_is_kept_in_the_faster_engine(tasks: Tasks) -> None:
    """Everything has an engine, milliseconds and a time, which is that of the file itself."""
    built = tasks.front("timed/", budget="time=0.5,1", cache=tasks.folder / "timed.build")
    said = json.loads((built.path / "front.json").read_text())
    assert [rung["budget"] for rung in said["rungs"]] == [0.5, 1]
    whole = stored(open_checkpoint(tasks.models[0]))
    for each in [*said["rungs"], *said["references"]]:
        assert each["engine"] == "onnx"  # torch takes twice as long
        assert each["ms"] == pytest.approx(1000 * each["time"] * whole)
    for rung in said["rungs"]:
        assert rung["time"] <= rung["budget"]
        numbers = stored(open_checkpoint(built.path / rung["path"]))
        assert rung["time"] == pytest.approx(numbers / whole)
        for other in said["references"]:
            if other["time"] <= rung["budget"]:
                assert rung["estimate"] >= other["estimate"] - 1e-4
    assert [row["time"] for row in said["references"]] == [1, 1, 1, 2]
    assert ", --engine onnx at " in built.summary


@pytest.mark.parametrize(
    ("figures", "risk"),
    [({"accuracy": 0.99}, 0.05), ({"accuracy": 0.7}, 0.15), ({"token_accuracy": 0.8}, 0.1)],
)
def test_the_hinted_risk_can_be_kept(figures: dict[str, float], risk: float) -> None:
    assert possible_risk(figures) == risk
