"""Labels are looked at before any work: all that is wrong in one list, and notes on what looks wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_labels import any_labels
from row_files import write_lines
from tiny_families import TEXT, tokenizer, transformers_model

import hydrasurgeon as hs
from hydrasurgeon.building.work import Workshop
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.data.label_check import class_counts, label_notes
from hydrasurgeon.errors import DataError
from hydrasurgeon.families.hf_encoder.family import HFEncoder


def table(path: Path, labels: list[Any], texts: list[str] | None = None) -> str:
    texts = texts or [f"text {number}" for number in range(len(labels))]
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    return write_lines(path, rows)


def notes(path: Path, labels: list[Any], texts: list[str] | None = None) -> list[str]:
    """Without the name of the file."""
    said = label_notes(open_data(table(path / "d.jsonl", labels, texts)))
    return [note.partition(": ")[2] for note in said]


@pytest.mark.parametrize(
    ("rare", "frequent"),
    [
        ("conactless_work", "contactless_work"),
        ("contactless_worl", "contactless_work"),
        ("refund item", "refund items"),
        ("Überweisung", "Überweisungs"),
    ],
)
def test_a_rare_class_one_letter_from_a_frequent_one(
    rare: str, frequent: str, tmp_path: Path
) -> None:
    (note,) = notes(tmp_path, [rare, *[frequent] * 41])
    assert note == f"one letter apart, perhaps one class: {rare!r} (1) and {frequent!r} (41)"


@pytest.mark.parametrize(
    ("labels"),
    [
        ["conactless_work"] * 3 + ["contactless_work"] * 41,  # not rare: three rows, and 7 %
        ["item_10"] + ["item_11"] * 41,
        ["item_1"] + ["item_11"] * 41,
        ["type_a"] + ["type_b"] * 41,
        ["grade A1"] + ["grade B1"] * 41,
        ["cat"] + ["cut"] * 41,
        ["pinn reset"] + ["pin reset"] * 41,
        ["refund_items"] + ["refunditem"] * 41,  # two letters
        [f"class_{number}" for number in range(1, 100)],
        [*range(60)],
        [0.1, 0.25, 0.75],
        [["refund"], ["refuse"], []],
    ],
)
def test_other_names_are_two_classes(labels: list[Any], tmp_path: Path) -> None:
    assert notes(tmp_path, labels) == []


def test_a_small_share_is_rare_too(tmp_path: Path) -> None:
    labels = ["transfer failed"] * 4 + ["transfer_failed"] * 3 + ["transfers_failed"] * 81
    assert notes(tmp_path, labels) == [
        "one letter apart, perhaps one class: 'transfer_failed' (3) and 'transfers_failed' (81)"
    ]


def test_repeated_texts(tmp_path: Path) -> None:
    texts = ["thanks", "my card is lost and I cannot find it anywhere", "thanks", "stop"]
    texts += [texts[1], "stop", "stop"]
    labels = ["praise", "lost", "praise", "end", "stolen", "praise", "end"]
    assert notes(tmp_path, labels, texts) == [
        "2 texts have two labels: 'my card is lost and I cannot find it any…' (lost in row 1, stolen in row 4); 'stop' (end in row 3, praise in row 5)",
        "4 of its 7 rows are copies of others",
    ]
    numbers = [1.5, 2.0, 1.5, 3.0, 4.5, 3.0, 3.0]  # two measurements of one text may differ
    assert notes(tmp_path, numbers, texts) == ["4 of its 7 rows are copies of others"]


def test_repeated_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)
    pixels[3] = pixels[0]
    np.savez(tmp_path / "d.npz", images=pixels, labels=np.arange(6) % 2)
    said = label_notes(open_data(str(tmp_path / "d.npz")))
    assert said == [
        "d.npz: 1 images have two labels: (0 in row 0, 1 in row 3)",
        "d.npz: 1 of its 6 rows are copies of others",
    ]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["b"] * 3 + ["a"] * 65, "2 classes, 3 to 65 rows; fewest: b 3"),
        (["b"] * 3 + ["a"] * 3, "2 classes, 3 rows each"),
        ([2, 2, 0, 1], "3 classes, 1 to 2 rows; fewest: 0, 1 1"),
        ([["a", "b"], ["a"], []], "2 classes, 1 to 2 rows; fewest: b 1"),
        ([0.5, 0.25], None),
        (list("aabcde"), "5 classes, 1 to 2 rows; fewest: b, c, d … 1"),
    ],
)
def test_how_many_rows_a_class_has(labels: list[Any], said: str | None, tmp_path: Path) -> None:
    expected = None if said is None else f"d.jsonl: {said}"
    assert class_counts(open_data(table(tmp_path / "d.jsonl", labels))) == expected


NAMES = ("alarm", "call", "play")


class Place:
    """A body, a probe of it, and tables in which five things are wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        transformers_model("BertModel", TEXT).save_pretrained(folder / "body")
        tokenizer(folder / "body")
        labels = [NAMES[at % 3] for at in range(60)]
        right = table(folder / "right.jsonl", labels)
        hs.finetune(folder / "body", recipe="probe", data=right, out=folder / "probe", device="cpu")
        texts = [f"other {number}" for number in range(60)]
        texts[7] = " "
        labels[0], labels[4] = "Alarm", "call "
        self.train = table(folder / "train.jsonl", labels, texts)
        self.val = table(folder / "val.jsonl", [*labels[6:], "cell", "play."])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("labels"))


NEW = (
    "train.jsonl: the labels 'Alarm' (1 rows) and 'alarm' (19 rows) differ only in case",
    "train.jsonl: the labels 'call' (19 rows) and 'call ' (1 rows) differ only in blanks",
    "--val val.jsonl: row 54 has the class 'cell', which --data lacks",
    "--val val.jsonl: row 55 has the class 'play.', which --data lacks; it differs only in "
    "punctuation at the ends from 'play'",
    "train.jsonl: row 7 has no text",
)
KNOWN = (
    "train.jsonl: row 7 has no text",
    "train.jsonl: row 0: the model has no class Alarm, call , which differs only in case from 'alarm'; "
    "the model's: alarm, call, play",
    "val.jsonl: row 54: the model has no class cell, play. (did you mean call?); the model's: alarm, "
    "call, play",
)
COMMANDS: dict[str, tuple[Callable[[Place], list[str]], tuple[str, ...]]] = {
    "build of a body": (
        lambda p: ["build", "body", "--data", p.train, "--val", p.val, "-o", "x"],
        NEW,
    ),
    "build": (lambda p: ["build", "probe", "--data", p.train, "--val", p.val, "-o", "x"], KNOWN),
    "finetune of a body": (
        lambda p: ["finetune", "body", "--data", p.train, "--val", p.val, "-o", "x"],
        NEW,
    ),
    "finetune": (
        lambda p: ["finetune", "probe", "--data", p.train, "--val", p.val, "-o", "x"],
        KNOWN,
    ),
    "calibrate": (
        lambda p: ["calibrate", "probe", "--data", p.val, "--fit-data", p.train, "-o", "x"],
        KNOWN,
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_all_that_is_wrong_is_one_error(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a model is made, and nothing is written."""

    def made(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(HFEncoder, "module", made)
    monkeypatch.chdir(place.folder)
    line, expected = COMMANDS[name]
    before = {*place.folder.rglob("*")}
    assert run([word.replace(f"{place.folder}/", "") for word in line(place)]) == 5
    said = capsys.readouterr().err
    first, *lines = said.splitlines()
    assert first == f"error: the data have {len(expected)} faults"
    assert sorted(each.strip() for each in lines[: len(expected)]) == sorted(expected)
    assert "leave such rows out by --skip-bad" in said
    assert {*place.folder.rglob("*")} == before


def test_rows_without_text_are_one_fault(place: Place, tmp_path: Path) -> None:
    texts = ["" if number % 3 else f"text {number}" for number in range(60)]
    spec = table(tmp_path / "d.jsonl", [NAMES[at % 3] for at in range(60)], texts)
    with pytest.raises(DataError, match="row 1 has no text") as refused:
        hs.finetune(place.folder / "body", recipe="probe", data=spec, out=tmp_path / "x")
    assert refused.value.details == ("39 more rows cannot be read: 2, 4, 5, 7, 8, 10, 11, 13 …",)


def test_a_single_fault_is_said_as_before(place: Place, tmp_path: Path) -> None:
    spec = table(tmp_path / "d.jsonl", ["card", "Card", "cash"])
    with pytest.raises(DataError, match=r"'Card' .* differ only in case") as refused:
        hs.finetune(place.folder / "body", recipe="probe", data=spec, out=tmp_path / "x")
    assert not refused.value.details


def test_notes_are_printed_once(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before the work, and among the notes of the result."""
    labels = [NAMES[at % 3] for at in range(60)] + ["alarmm"]
    spec = table(tmp_path / "hints.jsonl", labels)
    val = table(tmp_path / "val.jsonl", labels[:60], [f"new {number}" for number in range(60)])
    note = "hints.jsonl: one letter apart, perhaps one class: 'alarmm' (1) and 'alarm' (20)"
    monkeypatch.chdir(tmp_path)
    about = ["--data", spec, "--val", val, "--device", "cpu", "-o", "x"]
    assert run(["finetune", str(place.folder / "body"), "--recipe", "probe", *about]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "hints.jsonl: 4 classes, 1 to 20 rows; fewest: alarmm 1"
    assert [line for line in said if "one letter" in line] == [f"note: {note}"]
    done = hs.finetune(place.folder / "body", recipe="probe", data=spec, out="y", device="cpu")
    assert note in done.notes

    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Workshop, "perform", ended)
    run(["build", str(place.folder / "body"), *about[:-1], "z"])
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "one letter" in line] == [f"note: {note}"]
    with any_labels():
        done = hs.calibrate("x", data=val, fit_data=spec, out="c", device="cpu")
    assert note in done.notes
