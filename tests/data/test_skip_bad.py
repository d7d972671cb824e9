"""Rows without a text or a label: --skip-bad leaves them out, counted and named, and what is made is
what clean tables make.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_models import texts
from row_files import write_lines, write_rows
from safetensors.numpy import load_file
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import DataError

Row = tuple[str | None, Any]
ROWS: list[Row] = [
    ("good film", "praise"),
    ("so-so", None),
    (None, "blame"),
    ("first\nsecond\n\nthird", "blame"),
    (None, None),
    ("bad film", "blame"),
    ("no\nlabel", ""),
    ("dull", "shrug"),
]
KEPT = [0, 3, 5, 7]


def csv_of(path: Path, rows: list[Row]) -> str:
    cells = [tuple(f'"{cell}"' if cell else "" for cell in row) for row in rows]
    path.write_text("text,label\n\n" + "".join(f"{text},{label}\n" for text, label in cells))
    return str(path)


def table_of(path: Path, rows: list[Row]) -> str:
    return write_rows(path, [{"text": text, "label": label} for text, label in rows])


WRITERS: dict[str, tuple[Callable[[Path, list[Row]], str], list[str]]] = {
    "csv": (csv_of, ["line 4", "line 5", "line 10", "line 12"]),
    "jsonl": (table_of, ["line 2", "line 3", "line 5", "line 7"]),
    "parquet": (table_of, ["row 1", "row 2", "row 4", "row 6"]),
}
WHY = [
    " has no label ('so-so')",
    " has no text ('blame')",
    " has no text",
    " has no label ('no label')",
]


@pytest.mark.parametrize("ending", WRITERS)
def test_rows_are_named_by_their_place_in_the_file(tmp_path: Path, ending: str) -> None:
    write, places = WRITERS[ending]
    spec = write(tmp_path / f"d.{ending}", ROWS)
    samples = open_data(spec, skip_bad=True)
    assert samples.left_out == tuple(map("".join, zip(places, WHY, strict=True)))
    assert [samples.read(i) for i in range(len(samples))] == [ROWS[i][0] for i in KEPT]
    assert samples.labels.tolist() == [1, 0, 0, 2]
    assert [samples.name(i) for i in range(len(samples))] == KEPT
    clean = open_data(write(tmp_path / f"clean.{ending}", [ROWS[i] for i in KEPT]))
    assert samples.fingerprint()["sha256"] == clean.fingerprint()["sha256"]
    # Of a part that is drawn the same is said, and where no labels are needed none is missed.
    assert open_data(spec, skip_bad=True, limit=2).left_out == samples.left_out
    texts_alone = open_data(spec, skip_bad=True, labelled=False)
    assert len(texts_alone) == 6
    assert len(texts_alone.left_out) == 2
    with pytest.raises(DataError, match="row 1 has no label") as refused:
        open_data(spec)
    assert "--skip-bad" in str(refused.value.hint)
    with pytest.raises(DataError, match="none of its 2 rows can be used"):
        open_data(write(tmp_path / f"none.{ending}", ROWS[1:3]), skip_bad=True)


def test_lists_tags_entities_and_probabilities_may_lack(tmp_path: Path) -> None:
    def opened(*records: dict[str, Any]) -> Any:
        path = tmp_path / "d.jsonl"
        write_lines(path, records)
        return open_data(str(path), skip_bad=True)

    several = opened(
        {"text": "a", "labels": ["x"]}, {"text": "b", "labels": None}, {"text": "c", "labels": []}
    )
    assert several.labels.tolist() == [[1], [0]]
    tags = opened({"tokens": ["a"], "tags": ["O"]}, {"tokens": ["b"], "tags": None}, {"tags": []})
    assert len(tags) == 1
    assert tags.left_out == ("line 2 has no label (\"['b']\")", "line 3 has no text ('[]')")
    named = opened(
        {"text": "ab", "entities": [{"start": 0, "end": 2, "label": "X"}]}, {"text": "c"}
    )
    assert named.left_out == ("line 2 has no label ('c')",)
    chances = opened(
        {"text": "a", "p.x": 0.4, "p.y": 0.6},
        {"text": "b", "label": "x"},
        {"text": "c", "p.x": 0.5, "p.y": 0.5, "label": "y"},
        {"text": "d"},
    )
    assert chances.left_out == ("line 4 has no label ('d')",)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe on a random BERT, its tables, and the same with rows that lack something."""
    place = tmp_path_factory.mktemp("skip")
    texts(place)
    for name, count in (("train", 400), ("val", 200)):
        header, *lines = (place / f"{name}.csv").read_text().splitlines()[: count + 1]
        (place / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        bad = [",praise", "no label here,", ","]
        for at, line in zip((3, 32, 77), bad, strict=True):
            lines.insert(at, line)
        (place / f"{name}-bad.csv").write_text("\n".join([header, *lines]) + "\n")
    FAMILIES["BERT"].write(place / "random")
    data = str(place / "train.csv")
    hs.finetune(place / "random", recipe="probe", data=data, out=place / "probe", device="cpu")
    return place


def both(place: Path, command: Callable[[str, str, bool], Any]) -> tuple[Any, Any]:
    """A command on clean tables, and on those with bad rows."""
    clean = command(str(place / "train.csv"), str(place / "val.csv"), False)
    return clean, command(str(place / "train-bad.csv"), str(place / "val-bad.csv"), True)


@pytest.mark.parametrize("words", ["blend", "cascade", "auto"])
def test_words_are_those_of_clean_tables(place: Path, tmp_path: Path, words: str) -> None:
    def calibrated(train: str, val: str, skip: bool) -> Any:
        out = tmp_path / f"{skip}.safetensors"
        about: dict[str, Any] = {"ood_score": "msp", "words": words, "device": "cpu"}
        return hs.calibrate(
            place / "probe", data=val, fit_data=train, skip_bad=skip, out=out, **about
        )

    clean, skipped = both(place, calibrated)
    assert clean.skipped == ()
    assert [why.partition(",")[2] for why in skipped.skipped] == 2 * [
        " line 5 has no text ('praise')",
        " line 34 has no label ('no label here')",
        " line 79 has no text",
    ]
    assert skipped.decision.words is not None
    assert skipped.decision == clean.decision
    for name, values in load_file(clean.path).items():
        assert np.array_equal(values, load_file(skipped.path)[name])


def test_every_stage_takes_what_clean_tables_give(place: Path, tmp_path: Path) -> None:
    probe = place / "probe"

    def tuned(train: str, val: str, skip: bool) -> Any:
        out = tmp_path / f"t{skip}.safetensors"
        about: dict[str, Any] = {"recipe": "probe", "device": "cpu"}
        hs.finetune(place / "random", data=train, val=val, skip_bad=skip, out=out, **about)
        return load_file(out)

    def scores(train: str, val: str, skip: bool) -> Any:
        out = tmp_path / f"s{skip}.safetensors"
        about: dict[str, Any] = {"method": "taylor", "device": "cpu"}
        done = hs.score(probe, data=train, skip_bad=skip, out=out, **about)
        assert any("3 rows left out: line 5" in note for note in done.notes) == skip
        return done.result.values

    def figures(train: str, val: str, skip: bool) -> Any:
        return hs.evaluate(probe, data=val, skip_bad=skip, device="cpu").report.results[0].id

    weights, same = both(place, tuned)
    for name, values in weights.items():
        assert np.array_equal(values, same[name])
    for command in (scores, figures):
        one, other = both(place, command)
        assert one == other


def test_rows_are_counted_on_stderr(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", str(place / "probe"), "--data", str(place / "val-bad.csv")]) == 5
    assert "by --skip-bad" in capsys.readouterr().err
    command = ["eval", str(place / "probe"), "--data", str(place / "val-bad.csv"), "--skip-bad"]
    assert run(command) == 0
    said = capsys.readouterr().err.splitlines()
    at = said.index("skipped: 3 samples")
    assert said[at + 2] == "  val-bad.csv, line 34 has no label ('no label here')"
    many = [f"text {i}," for i in range(30)] + ["good film,praise", "bad plot,blame"]
    (tmp_path / "many.csv").write_text("\n".join(["text,label", *many]) + "\n")
    command[3] = str(tmp_path / "many.csv")
    assert run(command) == 0
    said = capsys.readouterr().err.splitlines()
    at = said.index("skipped: 30 samples")
    assert said[at + 21] == "  … and 10 more"


def test_labels_that_are_not_needed_may_lack(place: Path, tmp_path: Path) -> None:
    lines = (place / "test.csv").read_text().splitlines()
    some = [lines[0], *(line.partition(",")[0] + "," for line in lines[1:30]), *lines[30:60]]
    (tmp_path / "some.csv").write_text("\n".join(some) + "\n")
    rows = hs.predict(place / "probe", data=str(tmp_path / "some.csv"), device="cpu")
    assert len(rows) == 59
    done = hs.calibrate(
        place / "probe",
        data=str(place / "val.csv"),
        ood=[str(tmp_path / "some.csv")],
        words="off",
        out=tmp_path / "c.safetensors",
        device="cpu",
        force=True,
    )
    assert done.decision.ood.chosen_by != "default"


@pytest.mark.slow
def test_build_takes_what_clean_tables_give(place: Path, tmp_path: Path) -> None:
    """From a body on: probes, words, parts and calibrations."""

    def built(train: str, val: str, skip: bool) -> Any:
        home = tmp_path / str(skip)
        home.mkdir()
        about: dict[str, Any] = {"budget": "macs=0.6,1", "cache": home / "work", "device": "cpu"}
        return hs.build(
            place / "probe", data=train, val=val, skip_bad=skip, out=f"{home / 'front'}/", **about
        )

    clean, skipped = both(place, built)
    assert [row.worth for row in skipped.front] == [row.worth for row in clean.front]
    assert [row.name for row in skipped.rows] == [row.name for row in clean.rows]
    assert all("bag of words blended in" in row.name for row in skipped.front)
    assert skipped.summary.count("--skip-bad") == 2  # what is typed next needs it too
    assert "--skip-bad" not in clean.summary
    assert any("val-bad.csv: 3 rows left out: line 5" in note for note in skipped.notes)
