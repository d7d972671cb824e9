"""build from a body, as a newcomer meets it: what is wrong is said before any work and binds nothing, and what is
printed can be typed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines_kept import Lines
from row_files import write_lines
from tiny_families import TEXT, WORDS, tokenizer, transformers_model

import hydrasurgeon as hs
from hydrasurgeon.building.plan import Plan, PlannedStage
from hydrasurgeon.building.work import Workshop
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import CheckpointError, DataError, UsageError
from hydrasurgeon.options.command_line import CommandLine

NAMES = ("alarm", "call", "play")


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    write_lines(path, rows)
    return path


def rows(seed: int, count: int = 60) -> list[dict[str, str]]:
    """The first word tells the intent."""
    words = [str(word) for word in WORDS[4:]]
    random = np.random.default_rng(seed)
    first = np.arange(count) % len(NAMES)
    texts = [f"{words[at]} {' '.join(random.choice(words, 6))}" for at in first]
    return [{"utterance": text, "intent": NAMES[at]} for text, at in zip(texts, first, strict=True)]


class Place:
    """A body of texts, TRAIN and VAL, in a folder with a blank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        transformers_model("BertModel", TEXT).save_pretrained(folder / "body")
        tokenizer(folder / "body")
        self.train = write(folder / "train.jsonl", rows(1))
        self.val = write(folder / "val.jsonl", rows(2))
        self.work = folder / "chosen.build"

    def build(self, **more: Any) -> Any:
        settings: dict[str, Any] = {"columns": "text=utterance,label=intent", "device": "cpu"}
        settings |= {"data": str(self.train), "val": str(self.val), "out": self.folder / "chosen"}
        return hs.build(self.folder / "body", **settings | more)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "my out")


class Ran(Exception):
    """The first command runs."""


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise Ran

    monkeypatch.setattr(Workshop, "perform", refuse)


WRONG = {
    "a class that TRAIN lacks": (
        "val",
        "cell",
        "row 0 has the class 'cell', which --data lacks",
        "Delete such rows, or move some of them to --data.",
    ),
    "blanks in VAL": (
        "val",
        "alarm ",
        "row 0 has the class 'alarm ', which --data lacks; it differs only in blanks from 'alarm'",
        "Spell them alike.",
    ),
    "blanks in TRAIN": ("train", "alarm ", "differ only in blanks", "Write them alike"),
}


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("file", "intent", "says", "hint"), WRONG.values(), ids=WRONG)
def test_wrong_labels_are_said_first(
    file: str, intent: str, says: str, hint: str, dry_run: bool, place: Place
) -> None:
    right = rows(3)
    write(getattr(place, file), [{**right[0], "intent": intent}, *right[1:]])
    with pytest.raises(DataError) as refused:
        place.build(dry_run=dry_run)
    assert says in refused.value.message
    assert hint in str(refused.value.hint)
    assert not place.work.exists()


def test_finetune_says_the_same_of_a_new_classifier_alone(place: Place) -> None:
    right = rows(3)
    wrong = write(place.folder / "wrong.jsonl", [{**right[0], "intent": "cell"}, *right[1:]])
    settings: dict[str, Any] = {"columns": "text=utterance,label=intent", "device": "cpu"}
    settings |= {"data": str(place.train), "recipe": "probe", "out": place.folder / "probe"}
    with pytest.raises(DataError, match="row 0 has the class 'cell', which --data lacks"):
        hs.finetune(place.folder / "body", val=str(wrong), **settings)
    probe = hs.finetune(place.folder / "body", **settings).path
    settings |= {"recipe": "text", "out": place.folder / "tuned"}
    with pytest.raises(DataError, match="row 0: the model has no class cell"):
        hs.finetune(probe, val=str(wrong), **settings)


@pytest.mark.usefixtures("nothing_runs")
def test_a_folder_in_which_nothing_was_made_binds_nothing(place: Place) -> None:
    with pytest.raises(Ran):
        place.build()
    assert [path.name for path in place.work.iterdir()] == ["build.json"]
    write(place.val, rows(3))
    with pytest.raises(Ran):
        place.build()
    (place.work / "probe.safetensors").write_text("made")
    write(place.val, rows(4))
    with pytest.raises(UsageError, match="another val"):
        place.build()
    # What somebody else calls so stays.
    (place.work / "probe.safetensors").unlink()
    (place.work / "build.json").write_text("{}")
    with pytest.raises(CheckpointError):
        place.build()
    assert (place.work / "build.json").read_text() == "{}"


@pytest.mark.usefixtures("nothing_runs")
def test_rows_of_train_in_val_are_said_first(place: Place) -> None:
    """A few by a note, more than a tenth by a refusal, as calibrate has it."""
    told: list[str] = []

    write(place.val, rows(2) + rows(1)[:5])
    with pytest.raises(Ran):
        place.build(progress=Lines(told))
    assert told[0].startswith("note: --val ")
    assert "rows are in --data" in told[0]
    write(place.val, rows(2) + rows(1)[:20])
    with pytest.raises(DataError, match=r"--val .*: 25 % of these rows are in --data"):
        place.build()


def test_the_plan_is_told_once(place: Place) -> None:
    told: list[str] = []

    plan = place.build(dry_run=True, progress=Lines(told)).plan
    assert plan
    assert not {*told} & {*plan}  # it is the result


def test_a_plan_says_when_it_will_be_ended() -> None:
    steps = [PlannedStage("quick", "this", 0, 200.0), PlannedStage("sizes", "that", 0, 100.0)]
    (long, *stages), (short, *_) = (Plan(steps, 0, None, each).lines for each in (2, 5))
    assert short == "2 stages, about 5 min in all on this machine"
    assert long == f"{short}; --max-minutes 2 ends it earlier, once each budget has a file"
    assert stages == ["1. this: about 3 min", "2. that: about 2 min"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "last"), [("macs=1", "seed-1"), ("macs=1,1.5", "heads-model-1")]
)
def test_what_it_says_next_can_be_typed(
    budget: str, last: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = Workshop.perform

    def stopping(workshop: Workshop, command: CommandLine) -> None:
        if command.out is not None and command.out.stem == last:
            raise KeyboardInterrupt
        perform(workshop, command)

    monkeypatch.setattr(Workshop, "perform", stopping)
    monkeypatch.chdir(place.folder)
    *_, measure, abstain = place.build(budget=budget).summary.splitlines()
    fresh = write(place.folder / "fresh.jsonl", rows(5, 240))
    for line, option in ((measure, ""), (abstain, " --risk 0.5")):
        _, _, command = line.partition("hydrasurgeon ")
        command = command.replace("TEST", shlex.quote(str(place.train)))
        command = command.replace("UNUSED", shlex.quote(str(fresh))).replace(" --risk 0.05", option)
        typed = subprocess.run(
            ["sh", "-c", f'printf "%s\\n" {command}'], capture_output=True, text=True, check=True
        )
        assert run(typed.stdout.splitlines()) == 0
    decision = open_checkpoint("ready").manifest.decision
    assert decision is not None
    assert decision.abstain is not None
