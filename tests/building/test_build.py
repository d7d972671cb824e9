"""build: the members it chooses, that the commands it prints make the same bytes, and that nothing is done twice."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_families import Family, thoroughly
from tiny_task import Task, images

import hydrasurgeon as hs
from hydrasurgeon.building import cache as caching
from hydrasurgeon.building.cost import stored
from hydrasurgeon.checkpoints.reading import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import (
    CheckpointError,
    DataError,
    HydraError,
    OutputError,
    SurgeryError,
    UsageError,
)
from hydrasurgeon.measuring.cost import macs
from hydrasurgeon.measuring.predictions import read_predictions
from hydrasurgeon.options.commands import Command
from hydrasurgeon.runtime.classifier import as_classifier


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


def test_what_is_built_is_what_was_chosen(task: Task) -> None:
    built = task.build(members=2, budget="macs=2.5", calibrate=False)
    opened = open_checkpoint(built.path)
    assert opened.manifest.kind == "hydra"
    assert len(opened.manifest.members) == 2 == len(built.members)
    model = as_classifier(opened, lean=True)
    whole = as_classifier(open_checkpoint(task.backbone), lean=True)
    picture = torch.zeros(1, 3, 28, 28)
    cost = built.front[-1].cost
    assert cost["macs"] == macs(model, picture) / macs(whole, picture) <= 2.5
    assert cost["params"] == stored(opened) / stored(open_checkpoint(task.backbone))
    assert built.rows[0].name == "single model, calibrated"
    assert built.rows[0].cost == {"macs": 1.0, "params": 1.0}


def test_answers_are_those_of_the_files(task: Task) -> None:
    """Every candidate is pruned in memory: the hydra made of files answers as they did."""
    built = task.build(members=3, budget="macs=3", calibrate=False)
    predictions = task.folder / "p.safetensors"
    hs.evaluate([built.path], data=task.val, ood=[f"near:x={task.ood}"], predictions=predictions)
    said = read_predictions(predictions)
    kept = [load_file(path) for path in (task.folder / "hydra.build" / "answers").iterdir()]
    assert len(kept) >= 9
    orders = [
        torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        for rows in (said.logits, said.ood[0].logits)
    ]
    for member in range(3):
        logits = [
            rows[order, member]
            for rows, order in zip((said.logits, said.ood[0].logits), orders, strict=True)
        ]
        nearest = min(kept, key=lambda answers: float((answers["val"] - logits[0]).abs().max()))
        torch.testing.assert_close(nearest["val"], logits[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(nearest["ood.0"], logits[1], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_the_script_makes_the_same_bytes(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    built = task.build()
    again = task.folder / "again.safetensors"
    lines = [line for line in built.script.splitlines() if line.startswith("hydrasurgeon ")]
    work = task.folder / "work"
    work.mkdir()
    monkeypatch.chdir(task.folder)
    for line in lines:
        words = line.replace('"$work"', str(work)).replace(str(built.path), str(again)).split()[1:]
        assert run([*words, "--quiet"]) == 0, line
    assert again.read_bytes() == built.path.read_bytes()
    assert (
        again.with_suffix("").with_suffix(".heads.json").read_bytes()
        == built.path.with_suffix("").with_suffix(".heads.json").read_bytes()
    )


def test_nothing_runs_twice(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another budget and another objective are arithmetic on what is there."""
    first = task.build()

    def refuse(*_: object) -> None:
        raise AssertionError("a candidate ran again")

    monkeypatch.setattr(caching.Cache, "_run", refuse)
    again = task.build(
        "other",
        cache=task.folder / "hydra.build",
        objective="nll",
        budget="params=1.5",
        calibrate=False,
    )
    assert again.rows[0].worth == first.rows[0].worth
    same = task.build(force=True)
    assert (same.rows, same.front) == (first.rows, first.front)


@pytest.mark.slow
def test_a_killed_search_goes_on(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = task.build("whole")
    monkeypatch.setattr(caching, "SIDE_BY_SIDE", 2)
    ran = caching.Cache._run
    count = 0

    def stop(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return ran(self, *args)

    monkeypatch.setattr(caching.Cache, "_run", stop)
    with pytest.raises(KeyboardInterrupt):
        task.build("killed")
    assert len(list((task.folder / "killed.build" / "answers").iterdir())) == 3
    monkeypatch.setattr(caching.Cache, "_run", ran)
    # Within a chunk, too: who runs beside whom shows in the last bits.
    sorted((task.folder / "killed.build" / "answers").iterdir())[0].unlink()
    work = task.folder / "killed.build"
    # What a kill leaves half-written, and a file whose sidecar it did not come to write.
    (work / "scored-taylor.heads.json").unlink()
    (work / "answers" / ".a.safetensors.89abcdef.part").write_text("half")
    again = task.build("killed")
    (work / "answers" / ".a.safetensors.89abcdef.part").unlink()
    assert (again.rows, again.front) == (whole.rows, whole.front)
    kept = {p.name: p.read_bytes() for p in (task.folder / "whole.build" / "answers").iterdir()}
    assert kept == {
        p.name: p.read_bytes() for p in (task.folder / "killed.build" / "answers").iterdir()
    }
    assert again.members == whole.members


def test_a_dry_run_writes_the_work_folder_alone(task: Task) -> None:
    built = task.build(dry_run=True)
    assert built.path is None
    assert not (task.folder / "hydra.safetensors").exists()
    assert built.script == task.build().script


def test_a_folder_is_written_as_one(task: Task) -> None:
    """`-o DIR/`: paths lose the slash, and the last command wrote a file of that name."""
    built = task.build("folder/", calibrate=False, members=2)
    assert built.path == task.folder / "folder"
    assert open_checkpoint(f"{built.path}/").manifest.history
    assert not (task.folder / "folder.safetensors").exists()


@pytest.mark.parametrize(
    ("more", "error", "says"),
    [
        ({"ood": [], "objective": "avg"}, UsageError, "requires OOD data"),
        ({"members": 9, "candidates": 3}, UsageError, "there are 4 candidates"),
        (
            {"members": 3, "budget": "macs=1.01"},
            SurgeryError,
            "no 3 candidates cost at most macs=1.01",
        ),
    ],
)
def test_what_cannot_be_built(
    more: dict[str, Any], error: type[HydraError], says: str, task: Task
) -> None:
    with pytest.raises(error) as caught:
        task.build(**more)
    assert says in f"{caught.value.message} {caught.value.hint}"
    assert not (task.folder / "hydra.safetensors").exists()


@pytest.mark.slow
def test_a_work_folder_of_other_work(task: Task) -> None:
    task.build()
    with pytest.raises(UsageError, match=r"another .*score limit \(40, now 30\)"):
        task.build(score_limit=30, force=True)
    other = images(task.folder, "other", 9)
    with pytest.raises(UsageError, match=r"another val\.0"):
        task.build(val=other, force=True)
    (task.folder / "mine").mkdir()
    (task.folder / "mine" / "scored.safetensors").write_text("mine")
    with pytest.raises(OutputError, match=r"holds scored\.safetensors, and no state of a build"):
        task.build(cache=task.folder / "mine", force=True)
    state = task.folder / "hydra.build" / "build.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "position": "[]"}))
    with pytest.raises(HydraError, match="damaged"):
        task.build(force=True)


def _changed(path: Path, **change: Any) -> None:
    """Stored answers with other tensors."""
    with safe_open(path, "pt") as file:
        texts = file.metadata()
    save_file({**load_file(path), **change}, path, metadata=texts)


def _flipped(path: Path) -> None:
    """One bit of the last logits."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_work_folder_that_somebody_changed(task: Task) -> None:
    few: dict[str, Any] = {
        "criteria": "magnitude",
        "candidates": 3,
        "calibrate": False,
        "force": True,
    }
    task.build(**few)
    work = task.folder / "hydra.build"
    first, second = sorted((work / "answers").iterdir())[:2]
    changes: list[tuple[Path, Any, str]] = [
        (
            first,
            lambda: _changed(first, val=torch.full((90, 3), math.nan)),
            "the next build makes it anew",
        ),
        (first, lambda: first.write_text("mine"), "the next build makes it anew"),
        (first, lambda: _flipped(first), "the next build makes it anew"),
        (first, lambda: first.write_bytes(second.read_bytes()), "the next build makes it anew"),
        (
            work / "build.json",
            lambda: (work / "build.json").write_text("[" * 9999),
            f"Delete {work}",
        ),
    ]
    for path, change, says in changes:
        before = path.read_bytes()
        change()
        with pytest.raises(CheckpointError) as caught:
            task.build(**few)
        assert says in f"{caught.value.message} {caught.value.hint}"
        path.write_bytes(before)
    task.build(**few)
    hs.prune(
        task.backbone,
        method="random",
        keep=1,
        out=work / "scored-magnitude.safetensors",
        force=True,
    )
    with pytest.raises(
        CheckpointError, match=r"scored-magnitude\.safetensors: holds other weights"
    ):
        task.build(**few)


def test_no_link_is_followed(task: Task) -> None:
    """Answers are written into the work folder, or nowhere."""
    elsewhere = task.folder / "elsewhere"
    elsewhere.mkdir()
    (task.folder / "linked").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="linked: is a link"):
        task.build(cache=task.folder / "linked")
    few: dict[str, Any] = {"criteria": "magnitude", "candidates": 2, "calibrate": False}
    task.build(**few)
    answers = task.folder / "hydra.build" / "answers"
    for path in answers.iterdir():
        path.unlink()
    answers.rmdir()
    answers.symlink_to(elsewhere)
    with pytest.raises(OutputError, match="answers: is a link"):
        task.build(**few, force=True)
    assert not list(elsewhere.iterdir())


def test_few_ood_samples_choose_nothing(task: Task) -> None:
    few = images(task.folder, "few", 4, 19, labelled=False)
    built = task.build("few", ood=[few], criteria="magnitude", candidates=2, calibrate=False)
    assert any("19 OOD samples choose nothing" in note for note in built.notes)
    assert "auroc" not in built.rows[0].worth
    with pytest.raises(DataError, match="--objective ood requires OOD data"):
        task.build("few2", ood=[few], objective="ood", criteria="magnitude")


@pytest.mark.slow
def test_other_criteria_use_what_is_there(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each criterion has a copy of its own: nothing is scored twice, and the outcome knows of no other criteria."""
    fresh = task.build("fresh", criteria="magnitude", calibrate=False)
    task.build("wide", calibrate=False)
    scored: list[str] = []
    run = Command.run

    def noting(self: Command, **more: Any) -> Any:
        scored.append(self.stage)
        return run(self, **more)

    monkeypatch.setattr(Command, "run", noting)
    narrow = task.build(
        "narrow", criteria="magnitude", calibrate=False, cache=task.folder / "wide.build"
    )
    assert "score" not in scored
    assert narrow.path.read_bytes() == fresh.path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", thoroughly("BERT", "ModernBERT", "DINOv3", "OpenCLIP"))
def test_every_family(family: Family, tmp_path: Path) -> None:
    """What is chosen in memory is what the file answers, budget and all."""
    for name in ("val", "foreign"):
        (tmp_path / name).mkdir()
    family.write(tmp_path / "source")
    built = hs.build(
        tmp_path / "source",
        data=family.data(tmp_path),
        val=family.data(tmp_path / "val", rows=27, seed=1),
        out=tmp_path / "h.safetensors",
        ood=[family.data(tmp_path / "foreign", rows=31, seed=2)],
        criteria="taylor,headmap,magnitude",
        candidates=10,
        members=2,
        budget="macs=3",
        calibrate=False,
        batch_size=27,
    )
    assert built.objective == "avg"
    assert 0 < built.front[-1].worth["auroc"] <= 1
    (result,) = hs.evaluate(
        [built.path], data=str(tmp_path / "val" / Path(family.data(tmp_path)).name), device="cpu"
    ).report.results
    assert result.members == 2
    (single,) = hs.evaluate(
        [tmp_path / "source"],
        data=str(tmp_path / "val" / Path(family.data(tmp_path)).name),
        device="cpu",
    ).report.results
    assert result.cost is not None
    assert single.cost is not None
    held = [
        sum(math.prod(t.shape) for t in open_checkpoint(path).tensors.values())
        for path in (built.path, tmp_path / "source")
    ]
    assert built.front[-1].cost["params"] == held[0] / held[1]
    assert built.front[-1].cost["macs"] == pytest.approx(
        result.cost.macs / single.cost.macs, rel=0.1
    )  # of another text


@pytest.mark.slow
def test_a_backbone_in_bfloat16(task: Task) -> None:
    """As people have them: two bytes a weight, which candidates, repairs and files keep."""
    source = task.folder / "source"
    weights = next(source.glob("*.safetensors"))
    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
    save_file({name: t.bfloat16() for name, t in load_file(weights).items()}, weights, metadata)
    task.backbone = hs.score(source, method="random", out=task.folder / "half.safetensors").path
    built = task.build(members=2, budget="macs=3", calibrate=False, dtype="bfloat16")
    tensors = open_checkpoint(built.path).tensors
    assert {tensors[name].dtype for name in tensors} == {"BF16"}
    (result,) = hs.evaluate(
        [built.path], data=task.val, device="cpu", batch_size=32, dtype="bfloat16"
    ).report.results
    kept = [load_file(path) for path in (task.folder / "hydra.build" / "answers").iterdir()]
    assert all(torch.isfinite(each["val"]).all() for each in kept)
    again = task.build("again", members=2, budget="macs=3", calibrate=False, dtype="bfloat16")
    assert again.members == built.members
    assert again.path.read_bytes() == built.path.read_bytes()
    assert result.members == 2


@pytest.mark.slow
def test_two_processes_share_the_candidates(task: Task) -> None:
    alone = task.build("alone")
    command = (
        f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 -m hydrasurgeon build"
        f" {task.backbone.name} --data {task.data} --val {task.val} --ood {task.ood} --budget macs=2"
        " --criteria taylor,magnitude --candidates 8 --score-limit 40 --batch-size 32 -o both.safetensors --quiet"
    ).split()
    done = subprocess.run(command, cwd=task.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, two = load_file(alone.path), load_file(task.folder / "both.safetensors")
    assert one.keys() == two.keys()
    # The decision state is computed on one thread here and on several there.
    assert all(
        torch.equal(two[name], one[name])
        for name in one
        if not name.startswith("hydrasurgeon.decision")
    )
