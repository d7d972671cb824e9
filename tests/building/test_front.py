"""build's front: what members of every size cost, that a hydra of them is what was chosen, and what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydrasurgeon.stages.build.cascading import Cascaded, cascaded
from hydrasurgeon.stages.build.comparing import Row
from hydrasurgeon.stages.build.cost import Budget, cost_model, stored
from hydrasurgeon.stages.build.ladder import Size, Sizes
from hydrasurgeon.stages.build.summary import verdict
from tiny_families import FAMILIES, Family, thoroughly
from tiny_task import VIT, Task

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import HydraError, OutputError, SurgeryError, UsageError
from hydrasurgeon.measuring.bootstrap import Difference
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.runtime.classifier import as_classifier
from hydrasurgeon.runtime.pruned import LoadedBackbone


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
        more = {
            "data": self.data,
            "recipe": "demo",
            "set": {"epochs": "1", "lr": "1e-3"},
            "limit": 40,
            "device": "cpu",
        }
        self.models = [
            hs.finetune(self.backbone, **more, seed=seed, out=folder / f"m{seed}.safetensors").path
            for seed in (1, 2)
        ]

    def front(self, out: str = "front/", models: Any = None, **more: Any) -> Any:
        settings: dict[str, Any] = {
            "data": self.data,
            "val": self.val,
            "ood": [self.ood],
            "score_limit": 40,
        }
        settings |= {"batch_size": 32, "candidates": 4, "device": "cpu"} | more
        return hs.build(models or self.models, out=f"{self.folder}/{out}", **settings)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Tasks:
    return Tasks(tmp_path_factory.mktemp("front"))


@pytest.mark.parametrize("family", thoroughly("timm ViT", "BERT", "ModernBERT"))
def test_what_a_size_costs(family: Family, tmp_path: Path) -> None:
    """To the last multiply-add and parameter, before it is made."""
    family.write(tmp_path / "source")
    opened = open_checkpoint(tmp_path / "source")
    sizes = Sizes(cost_model(LoadedBackbone(opened, device="cpu"), family.inputs()), opened)
    chosen = sizes.filling(Budget("macs", 0.7))
    assert chosen is not None
    for size in (chosen, Size(1, 0.3)):
        tower = "vision" if "vision" in opened.manifest.towers else "text"
        member = hs.prune(
            tmp_path / "source",
            method="random",
            keep=size.heads,
            neurons=size.neurons,
            tower=tower,
            out=tmp_path / f"{size.heads}",
        ).path
        planned = sizes.cost(size)
        assert planned["macs"] == price(member, tmp_path / "source", family)
        assert planned["params"] == stored(open_checkpoint(member)) / stored(
            open_checkpoint(tmp_path / "source")
        )
    assert 0.6 < sizes.cost(chosen)["macs"] <= 0.7


def test_a_front_is_a_folder_of_checkpoints(tasks: Tasks) -> None:
    lines: list[str] = []
    built = tasks.front(
        budget="macs=0.5,0.8,1.5",
        plot=tasks.folder / "front.svg",
        progress=lambda what, done, total: lines.append(what),
    )
    # The plan is told first, then in which of its stages the work is.
    assert lines[: len(built.plan)][1:] == list(built.plan[1:])
    assert (
        built.plan[1]
        == "1. scores of heads and neurons, 2 models and their mean: 720 forward passes"
    )
    assert any(line.startswith(f"stage 1 of {len(built.plan) - 1}, about ") for line in lines)
    assert (
        "Beside your model, calibrated too, on data that did not choose: accuracy " in built.summary
    )
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
        assert (
            rung["macs"] < most
            if rung.get("cascade")
            else rung["macs"] == pytest.approx(most, abs=1e-12)
        )
        assert rung["macs"] <= rung["budget"]
        assert {"accuracy", "nll", "ece", "auroc"} <= {*rung} & {*rung["errors"]} | {"ece"}
    names = [row["name"] for row in said["references"]]
    assert names == ["single model, calibrated", "ensemble of 2", "mean of 2"]
    assert [row["macs"] for row in said["references"]] == [1.0, 2.0, 1.0]
    mean = hs.fuse(tasks.models, mean=True, out=tasks.folder / "mean.safetensors")
    assert (
        open_checkpoint(built.work / "mean.safetensors").manifest.weights_sha256
        == mean.manifest.weights_sha256
    )
    assert {path.name for path in built.path.iterdir()} == {
        "front.json",
        *(
            name
            for rung in said["rungs"]
            for name in (rung["path"], rung["path"].replace(".safetensors", ".heads.json"))
        ),
    }
    with pytest.raises(OutputError, match="already exists"):
        tasks.front(budget="macs=0.5,0.8,1.5")


@pytest.mark.slow
def test_a_cascade_stands_where_it_is_worth_more(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worth more by decree here: then it is made, and costs what the record says."""

    def decreed(*about: Any) -> Cascaded | None:
        made = cascaded(*about)
        return made and replace(made, judged=replace(made.judged, value=made.judged.value + 1))

    monkeypatch.setattr("hydrasurgeon.stages.build.front.cascaded", decreed)
    built = tasks.front(
        "cascades/", budget="macs=0.8,1.4", members=2, cache=tasks.folder / "cascades.build"
    )
    said = json.loads((built.path / "front.json").read_text())
    cheap, dear = said["rungs"]
    assert cheap["cascade"]
    assert cheap["made_of"] == dear["made_of"]
    assert said["no_better"] == [1.4]  # nothing is decreed of the dearest, which is then no better
    manifest = open_checkpoint(built.path / cheap["path"]).manifest
    assert cheap["macs"] == manifest.decision.cascade.cost.expected <= 0.8
    assert built.front[0].name == "macs=0.8, as a cascade"


def test_a_hydra_of_halves_answers_as_its_members(tasks: Tasks) -> None:
    """Two members of different whole models: it costs their sum and holds both."""
    built = tasks.front(
        "pair.safetensors", budget="macs=1.2", members=2, cache=tasks.folder / "pair.build"
    )
    assert {label.split(",")[0] for label in built.members} == {"model 1", "model 2"}
    assert built.rows[-1].cost["macs"] == pytest.approx(
        price(built.path, tasks.models[0]), abs=1e-12
    )
    assert built.rows[-1].cost["macs"] <= 1.2
    hydra = hs.load(built.path, device="cpu")
    inputs = VIT.inputs()
    files = sorted((tasks.folder / "pair.build").glob("whole-?-*.safetensors"))
    members = [hs.load(path, device="cpu")(inputs)[:, 0].detach() for path in files]
    for logits in hydra(inputs).detach().unbind(dim=1):
        assert min(float((logits - each).abs().max()) for each in members) < 1e-5


@pytest.mark.parametrize(
    ("members", "cost", "changes", "says"),
    [
        (
            1,
            0.88,
            (),
            "Nothing within 1.5x beats your model on this data by more than chance; written: one member, 12 % ",
        ),
        (1, 1.0, (), "written: one model of the same price."),
        (
            3,
            1.44,
            (),
            "a hydra of 3 members, which costs 1.44 times as much: stay with your model, and calibrate it.",
        ),
        (
            3,
            1.44,
            (("nll", -0.02), ("auroc", 0.03)),
            "better in NLL and AUROC by more than chance, nowhere worse, and",
        ),
        (
            1,
            0.5,
            (("accuracy", -0.02), ("auroc", 0.03)),
            "gains in AUROC, loses in accuracy by more than chance, and is",
        ),
        (
            1,
            0.5,
            (("nll", 0.02),),
            "which is 50 % cheaper and is worse in NLL by more than chance.",
        ),
    ],
)
def test_the_verdict(members: int, cost: float, changes: Any, says: str) -> None:
    """Whether it was worth it, in words."""
    differences = [Difference(name, value, value - 0.01, value + 0.01) for name, value in changes]
    row = Row("what was built", members, {"macs": cost}, {})
    assert says in verdict(row, differences, Budget("macs", 1.5))


@pytest.mark.slow
def test_an_interrupted_front_goes_on(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes as of one that was not."""
    whole = tasks.front("all/", budget="macs=0.5,1.5")
    from hydrasurgeon.stages.build import work

    perform, count = work.perform, 0
    monkeypatch.setattr("hydrasurgeon.stages.build.search.perform", lambda *args: stop(*args))

    def stop(*args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return perform(*args)

    with pytest.raises(KeyboardInterrupt):
        tasks.front("killed/", budget="macs=0.5,1.5")
    assert not (tasks.folder / "killed").exists()
    again = tasks.front("killed/", budget="macs=0.5,1.5")
    assert {p.name: p.read_bytes() for p in whole.path.iterdir()} == {
        p.name: p.read_bytes() for p in again.path.iterdir()
    }


@pytest.mark.slow
def test_the_script_makes_the_same_front(tasks: Tasks) -> None:
    built = tasks.front("whole/", budget="macs=0.5,1.5")
    work, again = tasks.folder / "work", tasks.folder / "again"
    work.mkdir()
    again.mkdir()
    for line in built.script.splitlines():
        if line.startswith("hydrasurgeon "):
            words = (
                line.replace('"$work"', str(work)).replace(str(built.path), str(again)).split()[1:]
            )
            assert run([*words, "--device", "cpu", "--quiet"]) == 0, line
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {
        p.name: p.read_bytes() for p in built.path.iterdir() if p.name != "front.json"
    }


@pytest.mark.slow
def test_taught_where_that_is_better(tasks: Tasks) -> None:
    more: dict[str, Any] = {"models": tasks.models[:1], "budget": "macs=0.6", "limit": 60}
    built = tasks.front("taught.safetensors", **more, tune="auto")
    work = tasks.folder / "taught.build"
    (own,) = work.glob("whole-1-*-taught-*.safetensors")
    (taught,) = (
        step
        for step in open_checkpoint(own).manifest.history
        if step.command == "finetune" and "teacher" in step.args
    )
    assert taught.args["teacher"] == ["whole-1.safetensors"]
    tasks.front("by.safetensors", **more, cache=work, tune="demo", teachers="1")
    assert (work / "teacher-1.safetensors").exists()
    assert len(list(work.glob("whole-1-*-taught-*.safetensors"))) == 2
    others = tasks.models[1:]
    tasks.front(
        "named.safetensors", **more, cache=work, tune="demo", teachers=",".join(map(str, others))
    )
    learnt = [
        open_checkpoint(path).manifest.history[-1].args["teacher"]
        for path in work.glob("whole-1-*-taught-*.safetensors")
    ]
    assert [each.name for each in others] in learnt
    assert ("finetune" in built.script) == ("taught" in built.members[0])
    assert built.rows[-1].cost["macs"] <= 0.6


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"budget": "macs=0.02"}, UsageError, "with one head a layer costs macs=0."),
        (
            {"budget": "macs=0.5,1", "out": "front.safetensors"},
            UsageError,
            "a folder of checkpoints",
        ),
        ({"teachers": "2"}, UsageError, "--teachers requires --tune"),
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
