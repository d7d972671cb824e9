"""Labels that look wrong: the rule, the file that build writes, and what --without leaves out."""

from __future__ import annotations

import csv
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from row_files import write_lines
from word_tables import WORD, Row, texts, write, write_body

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.cli.app import run
from hydrasurgeon.data import open_data
from hydrasurgeon.errors import DataError
from hydrasurgeon.statistics.confident_learning import count_confident, find_label_issues
from hydrasurgeon.tuning import probe

HEADS = [
    "row",
    "text",
    "label",
    "proposed_label",
    "label_probability",
    "proposed_probability",
]


def pairs(*of_first: float) -> np.ndarray:
    """Return probabilities of two classes."""
    first = np.array(of_first)
    return np.stack([first, 1 - first], axis=1)


def test_a_row_above_the_mean_of_another_class_is_an_issue() -> None:
    """The means are .675 and .8. Row 6 is confident of neither class."""
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    probs = pairs(0.9, 0.8, 0.9, 0.1, 0.2, 0.1, 0.3, 0.2)
    assert count_confident(labels, probs).tolist() == [[3, 1], [0, 3]]
    assert find_label_issues(labels, probs).tolist() == [3]


def test_counts_are_scaled_to_the_rows_of_a_class() -> None:
    """Class 0 has 2 confident rows and 1 of class 1 among 5: 3.33 and 1.67, so two are issues. The one
    with the less probable label comes first.
    """
    labels = np.array([0, 0, 0, 0, 0, 1, 1])
    probs = pairs(0.95, 0.95, 0.2, 0.3, 0.35, 0.25, 0.25)
    assert count_confident(labels, probs).tolist() == [[2, 1], [0, 2]]
    assert find_label_issues(labels, probs).tolist() == [2, 3]


def test_of_several_confident_classes_the_most_probable_counts() -> None:
    """The means are .4, .3 and .3. Three rows exceed two of them, and the most probable class of the last
    two, as in cleanlab, is a third one.
    """
    labels = np.array([0, 0, 1, 2])
    probs = np.array([[0.5, 0.25, 0.25], [0.3, 0.38, 0.32], [0.36, 0.3, 0.34], [0.36, 0.34, 0.3]])
    assert count_confident(labels, probs).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 1]]


def test_a_class_keeps_a_row_and_its_most_probable_rows() -> None:
    both_wrong = find_label_issues(np.array([0, 0, 0, 1, 1]), pairs(0.9, 0.9, 0.9, 0.95, 0.97))
    assert both_wrong.tolist() == [4]
    right = find_label_issues(np.array([0, 0, 1, 1]), pairs(0.9, 0.6, 0.4, 0.1))
    assert right.tolist() == []
    assert find_label_issues(np.array([0, 0, 1]), pairs(0.9, 0.9, 0.9)).tolist() == []


def test_the_rule_is_that_of_cleanlab(monkeypatch: pytest.MonkeyPatch) -> None:
    """On random probabilities with rare classes and up to half of the labels wrong."""
    reason = "cleanlab is not installed: pip install --no-deps cleanlab termcolor"
    oracle = pytest.importorskip("cleanlab.filter", reason=reason)
    # Equal remainders are rounded in an order that depends on the processor, unless sorts are stable.
    stable = partial(np.argsort, kind="stable")
    monkeypatch.setattr(np, "argsort", lambda values, *axis, **_: stable(values, *axis))
    found = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        classes = int(random.integers(2, 30))
        count = int(random.integers(5 * classes, 600))
        truth = np.arange(count) % classes
        logits = random.uniform(0.3, 3) * random.normal(size=(count, classes))
        logits[np.arange(count), truth] += random.uniform(0, 6)
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        wrong = random.random(count) < random.uniform(0, 0.5)
        labels = np.where(wrong, random.integers(0, classes, count), truth)
        if seed % 3 == 0:
            labels[random.random(count) < 0.7] = 0
        if len(np.unique(labels)) < 2:
            continue
        settings: dict[str, Any] = {"return_indices_ranked_by": "self_confidence", "n_jobs": 1}
        with pytest.MonkeyPatch.context() as quiet:
            quiet.setattr("warnings.warn", lambda *_, **__: None)
            theirs = oracle.find_label_issues(labels, probs, **settings)
        assert find_label_issues(labels, probs).tolist() == theirs.tolist()
        found += len(theirs)
    assert found > 1000


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_body(tmp_path_factory.mktemp("tiny") / "body")


@pytest.fixture(autouse=True)
def _few_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit each probe with one penalty."""
    monkeypatch.setattr(probe, "PENALTIES", ())


WRONG = (4, 31, 62, 95)
"""Rows with another class's label."""


def mislabelled() -> list[Row]:
    """Return rows whose class even a tiny body tells, but for some."""
    rows = texts(150, 3)
    for at, row in enumerate(rows):
        row["text"] = f"{4 * (WORD[at % 3] + ' ')}{row['text']}"
        if at in WRONG:
            row["label"] = f"c{(at + 1) % 3}"
    return rows


def build(body: Path, table: Path, out: Path, **more: Any) -> Any:
    settings: dict[str, Any] = {"data": str(table), "device": "cpu", "out": out, "seeds": 1}
    return hs.build(body, **settings | more)


def listed(path: Path | str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(Path(path).read_text("utf-8")))]


@pytest.mark.slow
@pytest.mark.parametrize("val", ["cross", "0.2"])
def test_build_lists_wrong_labels(body: Path, tmp_path: Path, val: str) -> None:
    """Held-out rows are judged too."""
    table = write(tmp_path / "all.csv", mislabelled())
    built = build(body, table, tmp_path / "one.safetensors", val=val)
    path = tmp_path / "one.build" / "suspects.csv"
    assert built.suspects is not None
    assert (built.suspects.path, built.suspects.judged) == (str(path), 150)
    rows = listed(path)
    assert [*rows[0]] == HEADS
    assert built.suspects.rows == len(rows)
    assert {int(row["row"]) for row in rows} <= {*WRONG}
    assert len(rows) >= len(WRONG) / 2
    truth = mislabelled()
    for row in rows:
        number = int(row["row"])
        assert (row["text"], row["label"]) == (truth[number]["text"], truth[number]["label"])
        assert row["proposed_label"] == f"c{number % 3}"
        assert float(row["label_probability"]) < float(row["proposed_probability"])
    chances = [float(row["label_probability"]) for row in rows]
    assert chances == sorted(chances)
    assert any(f"{len(rows)} of 150 rows look mislabelled" in note for note in built.notes)
    assert built.to_json()["suspects"] == {"path": str(path), "rows": len(rows), "judged": 150}
    again = build(body, table, tmp_path / "two.safetensors", val=val)
    assert Path(again.suspects.path).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_rows_that_teach_nothing_still_give_a_file(body: Path, tmp_path: Path) -> None:
    """Labels are judged by nobody then, and a note says why."""
    rows = [row | {"label": f"c{at // 2 % 2}"} for at, row in enumerate(texts(16, 2))]
    table = write(tmp_path / "all.csv", rows)
    built = build(body, table, tmp_path / "one.safetensors", val="cross")
    assert listed(built.suspects.path) == []
    assert (built.suspects.rows, built.suspects.judged) == (0, 0)
    assert any("no better than by chance" in note for note in built.notes)


@pytest.mark.slow
def test_of_many_rows_the_same_are_judged_in_any_order(
    body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrasurgeon.building.suspects.MOST", 100)
    lists = []
    for name, rows in (("one", mislabelled()), ("two", mislabelled()[::-1])):
        (tmp_path / name).mkdir()
        table = write(tmp_path / name / "all.csv", rows)
        built = build(body, table, tmp_path / name / "m.safetensors", val="0.2")
        assert built.suspects.judged == 100
        lists.append({(row["text"], row["label"]) for row in listed(built.suspects.path)})
    assert lists[0] == lists[1]
    assert lists[0]


@pytest.mark.slow
def test_a_repeated_build_keeps_the_list_and_writes_a_missing_one(
    body: Path, tmp_path: Path
) -> None:
    table = write(tmp_path / "all.csv", mislabelled())
    first = build(body, table, tmp_path / "one.safetensors", val="cross")
    path = Path(first.suspects.path)
    before = path.read_bytes()
    path.write_text(path.read_text("utf-8") + "\n", "utf-8")  # somebody works on it
    again = build(body, table, tmp_path / "one.safetensors", val="cross", force=True)
    assert again.suspects == first.suspects
    assert path.read_bytes() == before + b"\n"
    path.unlink()
    build(body, table, tmp_path / "one.safetensors", val="cross", force=True)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_build_without_the_list_trains_on_the_rest(
    body: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are held out are the same."""
    monkeypatch.chdir(tmp_path)
    table = write(tmp_path / "all.csv", mislabelled())
    rows = [
        {"text": mislabelled()[at]["text"], "label": mislabelled()[at]["label"]} for at in WRONG
    ]
    list_file = write(tmp_path / "wrong.csv", rows)
    cross = build(body, table, tmp_path / "cross.safetensors", val="cross", without=list_file)
    records = [step.data for step in open_checkpoint(cross.path).manifest.history]
    assert [data[0].rows for data in records] == [146, 146]
    assert records[0][0].spec == "all.csv#without,wrong%2Ecsv"
    assert any("figures leave out" in note for note in cross.notes)
    everything = build(body, table, tmp_path / "all.safetensors", val="0.2")
    fewer = build(body, table, tmp_path / "few.safetensors", val="0.2", without="wrong.csv")
    sets = [open_checkpoint(built.path).manifest.history[0].data for built in (everything, fewer)]
    held_out = {str(row["text"]) for row in rows} & {
        str(samples.read(at))
        for samples in [open_data(f"{table}#split,80-100")]
        for at in range(len(samples))
    }
    assert sets[1][0].rows == sets[0][0].rows - len(WRONG) + len(held_out)
    assert sets[1][1].sha256 == sets[0][1].sha256
    assert not any("figures leave out" in note for note in fewer.notes)


@pytest.mark.slow
def test_wrong_answers_to_a_yes_or_no_question_are_listed(body: Path, tmp_path: Path) -> None:
    rows = texts(150, 2)
    for at, row in enumerate(rows):
        row["text"] = f"{4 * (WORD[at % 2] + ' ')}{row['text']}"
        row["label"] = ("no", "yes")[(at + (at in WRONG)) % 2]
    table = write(tmp_path / "all.csv", rows)
    settings: Row = {"recipe": "probe", "set": {"task": "binary"}, "data": str(table)}
    model = hs.finetune(body, device="cpu", out=tmp_path / "binary.safetensors", **settings).path
    val = write(tmp_path / "val.csv", [{**row, "text": f"the {row['text']}"} for row in rows])
    built = hs.build(
        model, data=str(table), val=str(val), device="cpu", out=tmp_path / "chosen.safetensors"
    )
    found = listed(built.suspects.path)
    assert {int(row["row"]) for row in found} == {*WRONG}
    assert all({row["label"], row["proposed_label"]} == {"no", "yes"} for row in found)


@pytest.mark.slow
def test_tasks_without_one_class_per_row_write_no_list(body: Path, tmp_path: Path) -> None:
    rows = [{**row, "label": 0.1 * int(row["label"][1:]) + 0.05} for row in texts(60, 3)]
    table = write(tmp_path / "all.csv", rows)
    settings: Row = {"recipe": "probe", "set": {"task": "regression"}, "data": str(table)}
    made = hs.finetune(body, device="cpu", out=tmp_path / "number.safetensors", **settings).path
    val = write(tmp_path / "val.csv", [{**row, "text": f"the {row['text']}"} for row in rows])
    built = hs.build(
        made, data=str(table), val=str(val), device="cpu", out=tmp_path / "chosen.safetensors"
    )
    assert built.suspects is None
    assert not (tmp_path / "chosen.build" / "suspects.csv").exists()


TEXTS = ['say "yes", or no', "two\nlines", "=1+1", "  blanks  ", "größe 東京", "a;b\tc", "-"]


def rows_of(spec: str) -> list[tuple[Any, str]]:
    samples = open_data(spec)
    assert samples.labels is not None
    assert samples.classes is not None
    return [(samples.read(at), samples.classes[samples.labels[at]]) for at in range(len(samples))]


@pytest.mark.parametrize(
    "form", [{}, {"delimiter": ";", "encoding": "utf-8-sig"}], ids=["", "excel"]
)
def test_rows_are_left_out_by_text_and_label_in_any_order(tmp_path: Path, form: Row) -> None:
    rows = [{"text": text, "label": label} for text in TEXTS for label in ("a", "b")]
    rows += rows[:1]  # a copy
    table = write(tmp_path / "all.csv", rows[::-1])
    wrong = [{"row": 99, **row, "proposed_label": "x"} for row in rows[:14:2]]
    list_file = write(tmp_path / "wrong.csv", wrong, **form)
    samples = open_data(f"{table}#without,{list_file}")
    assert rows_of(f"{table}#without,{list_file}") == [(text, "b") for text in TEXTS[::-1]]
    assert len(samples.left_out) == 8
    assert samples.left_out[0] == "row 0 is in wrong.csv ('say \"yes\", or no')"


def test_labels_match_as_they_are_written(tmp_path: Path) -> None:
    """01 is no 1."""
    rows = [{"text": f"t{at}", "label": label} for at, label in enumerate(("01", "2", "01", "2"))]
    table = write(tmp_path / "all.csv", rows)
    list_file = write(tmp_path / "wrong.csv", [rows[0], {"text": "t2", "label": "1"}])
    assert [text for text, _ in rows_of(f"{table}#without,{list_file}")] == ["t1", "t2", "t3"]


def test_images_are_left_out_by_name(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for at in range(3):
            Image.new("RGB", (4, 4), (40 * at, 0, 0)).save(
                tmp_path / "pictures" / name / f"{at}.png"
            )
    list_file = write(tmp_path / "wrong.csv", [{"name": "cat/1.png", "label": "cat"}])
    samples = open_data(f"{tmp_path / 'pictures'}#without,{list_file}")
    assert [samples.name(at) for at in range(len(samples))] == [
        "cat/0.png",
        "cat/2.png",
        *(f"dog/{at}.png" for at in range(3)),
    ]


def test_the_list_is_checked_against_the_whole_table(tmp_path: Path) -> None:
    """Its rows may all be held out."""
    rows = texts(50, 2)
    table = write(tmp_path / "all.csv", rows)
    held_out = rows_of(f"{table}#split,80-100")
    list_file = write(
        tmp_path / "wrong.csv", [{"text": text, "label": label} for text, label in held_out]
    )
    kept = rows_of(f"{table}#split,0-80")
    assert rows_of(f"{table}#split,0-80#without,{list_file}") == kept


LISTS: dict[str, tuple[list[Row], str]] = {
    "of other rows": ([{"text": "unheard of", "label": "c0"}], "lists none of the 40 rows"),
    "with other labels": (
        [{"text": row["text"], "label": "c9"} for row in texts(40, 2)],
        "lists none of the 40 rows",
    ),
    "of all rows": (texts(40, 2), "lists all of the 40 rows"),
    "without labels": ([{"text": "a"}], "has no column label"),
    "without texts": ([{"label": "a"}], "has no column text or name"),
}


@pytest.mark.parametrize(("rows", "says"), LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("command", ["build", "finetune"])
def test_lists_that_are_refused(
    body: Path,
    tmp_path: Path,
    rows: list[Row],
    says: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = write(tmp_path / "all.csv", texts(40, 2))
    list_file = write(tmp_path / "wrong.csv", rows)
    words = ["--data", str(table), "--without", str(list_file), "-o", str(tmp_path / "chosen")]
    assert run([command, str(body), *words]) == 5
    assert says in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"all.csv", "wrong.csv"}


@pytest.mark.parametrize("name", ["missing.csv", "."])
def test_lists_that_are_no_table(body: Path, tmp_path: Path, name: str) -> None:
    table = write(tmp_path / "all.csv", texts(40, 2))
    with pytest.raises(DataError):
        build(body, table, tmp_path / "chosen", without=tmp_path / name)


def test_an_empty_list_and_labels_that_are_no_classes(tmp_path: Path) -> None:
    table = write(tmp_path / "all.csv", texts(40, 2))
    (tmp_path / "empty.csv").write_text(",".join(HEADS) + "\n", "utf-8")
    with pytest.raises(DataError, match="lists no rows"):
        open_data(f"{table}#without,{tmp_path / 'empty.csv'}")
    write_lines(
        tmp_path / "many.jsonl",
        ({"text": f"t{at}", "labels": ["a", "b"][: at % 3]} for at in range(9)),
    )
    with pytest.raises(DataError, match="only of data with one label for each row"):
        open_data(f"{tmp_path / 'many.jsonl'}#without,{table}")


def test_finetune_without_a_list(body: Path, tmp_path: Path) -> None:
    """What is written depends neither on folders nor on the order of the list."""
    rows, written = mislabelled(), []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        table = write(folder / "all.csv", rows)
        wrong = [rows[4], rows[31]][:: 1 if name == "one" else -1]
        list_file = write(folder / "wrong.csv", wrong)
        settings: Row = {"data": str(table), "device": "cpu", "recipe": "probe"}
        made = hs.finetune(body, without=list_file, out=folder / "m.safetensors", **settings)
        assert made.manifest.history[-1].data[0].rows == 148
        written.append(made.path.read_bytes())
    assert written[0] == written[1]
    assert b"%2F" not in written[0]
