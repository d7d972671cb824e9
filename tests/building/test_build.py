"""build: the first file after seconds, better ones as they come, an early end that is said, and a work folder that is
believed only whole."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lines_kept import Lines
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_families import Family, thoroughly
from tiny_task import Task, images

import hydrasurgeon as hs
from hydrasurgeon.building import budgets, front, plan
from hydrasurgeon.building.work import Workshop
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run as cli
from hydrasurgeon.data import Batches
from hydrasurgeon.data.sources import in_memory
from hydrasurgeon.deadline import TimeIsUp, check_deadline
from hydrasurgeon.decision.bag_of_words_fit import STRENGTH, passes, solved
from hydrasurgeon.errors import CheckpointError, OutputError, UsageError
from hydrasurgeon.files.decided import Standard
from hydrasurgeon.measuring.cost import interleaved
from hydrasurgeon.options.command_line import CommandLine
from hydrasurgeon.statistics.bootstrap import bootstrap
from hydrasurgeon.statistics.scores.fitted import EnsembleScore
from hydrasurgeon.tuning.probe import logistic


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task(tmp_path)


class Stop:
    """Ends a build before the first command of a kind: by Ctrl-C, or as time is up."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        stage: str,
        minutes: float = 0.0,
        by: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.ran: list[CommandLine] = []
        self.now = 0.0
        perform = Workshop.perform

        def stopping(workshop: Workshop, command: CommandLine) -> None:
            if command.stage == stage and minutes:
                self.now += 60 * minutes
                workshop.progress(stage, 0, 1)
            elif command.stage == stage:
                raise by
            self.ran.append(command)
            perform(workshop, command)

        monkeypatch.setattr(Workshop, "perform", stopping)
        monkeypatch.setattr(plan, "now", lambda: self.now)


def test_the_first_file_is_there_before_anything_is_scored(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meets the budget, holds a decision, and is what an early end leaves; the same command goes on."""
    stop = Stop(monkeypatch, "score")
    told: list[str] = []
    early = task.build("early/", budget="macs=0.7,1,1.2", progress=Lines(told))
    (line,) = [line for line in told if line.startswith("written")]
    name = early.front[0].name.partition(": ")[2]
    assert line == f"written macs=1: {name} at 1.00x, avg {early.estimate:.3f}"
    made = [command.stage for command in stop.ran if command.stage != "calibrate"]
    assert made == ["finetune"]  # the probe
    assert open_checkpoint(early.path / "macs-1.safetensors").manifest.decision is not None
    assert early.notes[0].startswith("interrupted: the best so far is written")
    assert [row.name for row in early.rows] == ["single model, calibrated", "probe"]
    assert early.front[0].cost["macs"] <= 1
    said = json.loads((early.path / "front.json").read_text())
    assert [rung["budget"] for rung in said["rungs"]] == [1, 1.2]
    assert said["no_better"] == []  # nobody looked yet
    monkeypatch.undo()
    again = task.build("early/", budget="macs=0.7,1,1.2")  # without --force
    assert again.rows == early.rows
    assert len(again.front) == 3
    assert again.estimate >= early.estimate - 1e-9
    # Once it is done, what is there is not replaced.
    with pytest.raises(OutputError, match="already exists"):
        task.build("early/", budget="macs=0.7,1,1.2")


@pytest.mark.parametrize("by", [KeyboardInterrupt, SystemExit])
def test_what_was_written_is_not_made_again(
    by: type[BaseException], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended twice at the same place, by Ctrl-C or SIGTERM: the second time there is nothing to do."""
    Stop(monkeypatch, "finetune", by=by)
    first = task.build(ood=[])
    before = first.path.stat().st_mtime_ns
    assert task.build(ood=[]).front == first.front
    assert first.path.stat().st_mtime_ns == before
    # What somebody else wrote there is not replaced.
    shutil.copyfile(task.backbone, first.path)
    with pytest.raises(OutputError, match="already exists"):
        task.build(ood=[])


@pytest.mark.parametrize(
    "more", [{"budget": "macs=1.2"}, {"objective": "acc"}, {"coverage": 0.8, "risk": 0.5}]
)
def test_an_interrupted_build_of_other_options_is_not_replaced(
    more: dict[str, Any], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the same command goes on without --force."""
    Stop(monkeypatch, "finetune")
    before = task.build(ood=[]).path.read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        task.build(ood=[], **more)
    assert (task.folder / "hydra.safetensors").read_bytes() == before
    assert task.build(ood=[], max_minutes=9).path.read_bytes() == before


@pytest.mark.slow
def test_time_that_is_up_ends_it_once_there_is_something(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stop(monkeypatch, "prune", minutes=3)
    early = task.build("late/", budget="macs=0.5,0.8,1", max_minutes=2)
    assert "--max-minutes 2 is over" in " ".join(early.notes)
    said = json.loads((early.path / "front.json").read_text())
    # Nothing quick costs so little: the first smaller model is waited for, the second is not.
    assert [rung["budget"] for rung in said["rungs"]] == [0.5, 0.8, 1.0]
    assert len({*early.work.glob("model-1-k*.safetensors")}) == 1
    assert [row["name"] for row in said["references"]] == ["single model, calibrated", "probe"]


PICTURE = in_memory([Image.new("RGB", (8, 8))], "image")
WORD_IDS = [*np.arange(3)[:, None]]
LONG_STEPS: dict[str, Callable[[], object]] = {
    "a solve of the probe": lambda: logistic(
        torch.eye(3, dtype=torch.float64), torch.arange(3), torch.nn.Linear(3, 3)
    ),
    "a solve of the bag-of-words model": lambda: solved(
        np.eye(3), np.eye(3), "softmax", STRENGTH, np.zeros(12)
    ),
    "passes over a large table": lambda: passes(WORD_IDS, np.eye(3), "softmax"),
    "an OOD score": lambda: EnsembleScore(
        "knn", ({"bank": np.eye(3)},), (Standard(mean=0.0, deviation=1.0),), neighbours=1
    )(np.eye(3)[:, None], np.eye(3)[:, None]),
    "a batch": lambda: [*Batches(PICTURE, lambda picture: 0, batch_size=1, workers=0)],
    "a timed run": lambda: interleaved({"nothing": lambda: None}, runs=1),
    "resamples": lambda: bootstrap(lambda rows: {"rows": rows.mean(axis=1)}, 3),
}


@pytest.mark.parametrize("step", LONG_STEPS.values(), ids=LONG_STEPS)
def test_time_that_is_up_ends_a_step_that_reports_nothing(step: Callable[[], object]) -> None:
    """Once each budget has a file, and not before."""
    ahead = plan.Plan([], 0.0, None, minutes=0.0)
    with ahead.moving():
        step()
        ahead.may_end = True
        with pytest.raises(TimeIsUp):
            step()
        assert ahead.why_ended(RuntimeError()) == "the time of --max-minutes 0 is over"
    step()


def test_time_that_is_up_waits_for_what_is_being_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two files take their places one after the other."""
    ahead = plan.Plan([], 0.0, None, minutes=0.0)
    ahead.may_end = True
    kept = SimpleNamespace(keep=lambda **_: None)
    search = SimpleNamespace(plan=ahead, budgets=["macs=1"], state=kept)
    made = {"search": search, "out": Path("out"), "options": None, "there": "old", "force": True}
    seen: list[bool] = []
    monkeypatch.setattr(front, "publish", lambda *_, **__: seen.append(ahead.may_end))
    monkeypatch.setattr(front, "rung_file", lambda *_: Path("new"))
    monkeypatch.setattr(front, "mark_of", str)
    writing: Any = SimpleNamespace(_make=lambda *_: True, **made)
    rungs: Any = {"macs=1": "entry"}
    assert front.Front._write(writing, rungs)
    assert seen == [False]


def test_what_is_made_first_is_there_when_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The better file of the smaller budget stands, though that of the larger one is not decided yet."""
    monkeypatch.setattr(front, "_describe", str)
    monkeypatch.setattr(front, "mark_of", str)
    about = {"objective": SimpleNamespace(name="nll"), "cost": {"macs": 1.0}}
    old, small = (SimpleNamespace(value=float(at), **about) for at in range(2))
    low, high = budgets.parse_budgets("macs=0.5,1")
    told: list[str] = []
    written: list[Any] = []

    def decided(_: Any, budget: Any, below: Any) -> Any:
        if budget == high:
            raise TimeIsUp
        return small

    def write(rungs: Any) -> bool:
        written.append(rungs)
        return True

    fake: Any = SimpleNamespace(
        rungs={low: old, high: old},
        out=Path("out"),
        options=SimpleNamespace(note=told.append),
        search=SimpleNamespace(
            plan=SimpleNamespace(may_end=True),
            budgets=[low, high],
            state=SimpleNamespace(keep=lambda **_: None),
        ),
        _within=lambda _: [],
        _decided=decided,
        _write=write,
    )
    fake._decided_next = partial(front.Front._decided_next, fake)
    with pytest.raises(TimeIsUp):
        front.Front.settle(fake)
    assert written == [{low: small, high: small}]
    assert fake.rungs == written[0]
    assert [line.partition(":")[0] for line in told] == ["written macs=0.5"]


def end_within_a_library(monkeypatch: pytest.MonkeyPatch, raising: Callable[[], None]) -> None:
    """Before the probe is fitted something is raised, which comes back as a RuntimeError."""
    perform = Workshop.perform

    def stopping(workshop: Workshop, command: CommandLine) -> None:
        if command.stage == "finetune":
            try:
                raising()
            except BaseException as error:
                raise RuntimeError("Python error details") from error
        perform(workshop, command)

    monkeypatch.setattr(Workshop, "perform", stopping)


@pytest.mark.parametrize("why", ["time", "SIGINT", "SIGTERM"])
def test_an_end_that_comes_back_as_an_error_of_a_library(
    why: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from torch's C++, within an export."""
    minutes = 0.0
    monkeypatch.setattr(plan, "now", lambda: 60 * minutes)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def end() -> None:
        nonlocal minutes
        if why == "time":
            minutes = 99.0
            check_deadline()
        signal.raise_signal(getattr(signal, why))

    def ended(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    end_within_a_library(monkeypatch, end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    signal.signal(signal.SIGTERM, ended)
    try:
        early = task.build(out="early", ood=[], max_minutes=9)
        assert signal.getsignal(signal.SIGTERM) is ended
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    said = "the time of --max-minutes 9 is over" if why == "time" else "interrupted"
    assert early.notes[0].startswith(f"{said}: the best so far is written")
    assert early.interrupted == (why != "time")
    assert open_checkpoint(early.path).manifest.decision is not None


def test_an_error_of_its_own_stays_one(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    end_within_a_library(monkeypatch, fail)
    with pytest.raises(RuntimeError):
        task.build(out="failed", ood=[])


def test_ended_before_there_is_anything(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    Stop(monkeypatch, "score")
    with pytest.raises(KeyboardInterrupt):
        task.build(budget="macs=0.6")
    assert not (task.folder / "hydra.safetensors").exists()


def test_what_is_written_never_gets_worse(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that was written in turn, each is worth more than the one before."""
    from hydrasurgeon.building.front import Front

    worth: list[float] = []
    write = Front._write

    def noting(self: Front, rungs: Any) -> bool:
        worth.append(next(iter(rungs.values())).value)
        return write(self, rungs)

    monkeypatch.setattr(Front, "_write", noting)
    built = task.build(budget="macs=1")
    assert worth == sorted(worth)
    assert built.estimate == worth[-1]


@pytest.mark.slow
def test_an_interrupted_build_ends_as_one_that_was_not(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = task.build("whole", budget="macs=0.7")
    with monkeypatch.context() as patch:
        Stop(patch, "prune")
        with pytest.raises(KeyboardInterrupt):
            task.build("killed", budget="macs=0.7")
    work = task.folder / "killed.build"
    (work / "scored-model-1.heads.json").unlink()  # a sidecar that a kill prevented
    again = task.build("killed", budget="macs=0.7")
    assert again.path.read_bytes() == whole.path.read_bytes()
    assert (again.rows, again.front) == (whole.rows, whole.front)


def test_a_dry_run_says_what_is_ahead(task: Task) -> None:
    before = {*task.folder.iterdir()}
    built = task.build(dry_run=True, budget="macs=0.7")
    assert built.path is None
    assert [line.partition(":")[0] for line in built.plan[1:]] == [
        "1. the model as it is, a probe; for texts a bag of words",
        "2. up to 1 smaller model",
    ]
    assert not {p.name for p in {*task.folder.iterdir()} - before if not p.name.startswith(".")}


@pytest.mark.slow
def test_the_commands_of_a_dry_run_make_what_build_makes(task: Task) -> None:
    """Each file that a build leaves in its work folder, but those that its choices calibrated."""
    lines = task.build(dry_run=True, budget="macs=0.7", ood=[]).commands
    assert [[line.split()[1] for line in stage] for stage in lines] == [
        ["finetune"],
        ["score", "score", "prune"],
    ]
    work = task.build(budget="macs=0.7", ood=[]).work
    built = {file.name: file.read_bytes() for file in work.glob("*.safetensors")}
    shutil.rmtree(work)
    work.mkdir()
    for line in (line for stage in lines for line in stage):
        assert cli([*shlex.split(line)[1:], "--device", "cpu"]) == 0
    made = {file.name: file.read_bytes() for file in work.glob("*.safetensors")}
    assert len(made) == 4
    assert made == {name: weights for name, weights in built.items() if name in made}


@pytest.mark.slow
def test_a_work_folder_of_other_work_or_that_somebody_changed(task: Task) -> None:
    how: dict[str, Any] = {"budget": "macs=1", "ood": [], "force": True}
    task.build(**how)
    work = task.folder / "hydra.build"
    other = images(task.folder, "other", 9)
    with pytest.raises(UsageError, match=r"another val"):
        task.build(**how | {"val": other})
    (task.folder / "mine").mkdir()
    (task.folder / "mine" / "scored.safetensors").write_text("mine")
    with pytest.raises(OutputError, match=r"holds scored\.safetensors, and no state of a build"):
        task.build(**how, cache=task.folder / "mine")
    answers = work / "answers" / "model-1.safetensors"
    held = load_file(answers)
    fewer = {name: tensor[:30].contiguous() for name, tensor in held.items()}
    state = json.loads((work / "build.json").read_text())
    changes: list[tuple[Path, Any, str]] = [
        (answers, lambda p: p.write_text("mine"), "the next build makes it anew"),
        (answers, lambda p: save_file(fewer, p), "the next build makes it anew"),
        (work / "build.json", lambda p: p.write_text("[" * 9999), f"Delete {work}"),
        (
            work / "build.json",
            lambda p: p.write_text(json.dumps({**state, "position": "[]"})),
            f"Delete {work}",
        ),
        (  # by a version that knew other candidates
            work / "build.json",
            lambda p: p.write_text(
                json.dumps({**state, "hydrasurgeon.state": "hydrasurgeon.build-state/7"})
            ),
            "build-state/7",
        ),
    ]
    for path, change, says in changes:
        before = path.read_bytes()
        change(path)
        with pytest.raises(CheckpointError) as caught:
            task.build(**how)
        assert says in f"{caught.value.message} {caught.value.hint}"
        path.write_bytes(before)
    task.build(**how)


def test_no_link_is_followed(task: Task) -> None:
    """Answers are written into the work folder, or nowhere."""
    elsewhere = task.folder / "elsewhere"
    elsewhere.mkdir()
    (task.folder / "linked").symlink_to(elsewhere)
    with pytest.raises(OutputError, match="linked: is a link"):
        task.build(cache=task.folder / "linked")
    how: dict[str, Any] = {"ood": []}
    task.build(**how)
    answers = task.folder / "hydra.build" / "answers"
    for path in answers.iterdir():
        path.unlink()
    answers.rmdir()
    answers.symlink_to(elsewhere)
    with pytest.raises(OutputError, match="answers: is a link"):
        task.build(**how, force=True)
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("labels_need_not_fit")
@pytest.mark.parametrize("family", thoroughly("BERT", "ModernBERT", "DINOv3", "OpenCLIP"))
def test_every_family(family: Family, tmp_path: Path) -> None:
    """What is chosen is what the file answers, budget and all."""
    for name in ("val", "foreign"):
        (tmp_path / name).mkdir()
    family.write(tmp_path / "source")
    val = family.data(tmp_path / "val", rows=43, seed=1)
    built = hs.build(
        tmp_path / "source",
        data=family.data(tmp_path),
        val=val,
        out=tmp_path / "h.safetensors",
        ood=[family.data(tmp_path / "foreign", rows=41, seed=2)],
        budget="macs=0.7",
        batch_size=43,
    )
    assert built.objective == "avg"
    assert 0 < built.front[-1].worth["auroc"] <= 1
    cut, single = hs.evaluate(
        [built.path, tmp_path / "source"], data=val, device="cpu"
    ).report.results
    assert cut.cost is not None
    assert single.cost is not None
    assert built.front[-1].cost["params"] == pytest.approx(cut.cost.params / single.cost.params)
    # Of another text.
    expected = pytest.approx(cut.cost.macs / single.cost.macs, rel=0.1)
    assert built.front[-1].cost["macs"] == expected
