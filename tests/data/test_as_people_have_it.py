"""The same samples in every shape that people have them in: fingerprints, labels and messages agree."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from row_files import write_lines
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data import Samples, fit_classes, open_data
from hydrasurgeon.data import tables as limits
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model
from hydrasurgeon.options.measuring import EvaluateOptions

TEXTS = ["a fine film", 'he said "no", twice', "tabs\tand\nlines", "ünï"]
STARS = ["bad", "good", "good", "bad"]


def _table(
    path: Path,
    between: str,
    *,
    rows: slice = slice(None),
    names: tuple[str, str] = ("text", "label"),
) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=between)
        writer.writerows([names, *list(zip(TEXTS, STARS, strict=True))[rows]])
    return path


def _content(samples: Samples) -> tuple[str, list[int], object]:
    assert samples.labels is not None
    return samples.fingerprint()["sha256"], samples.labels.tolist(), samples.classes


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_table_is_the_same_in_every_format(there: Path) -> None:
    expected = _content(open_data(str(_table(there / "a.csv", ","))))
    assert expected[1] == [0, 1, 1, 0]
    records = [{"text": text, "label": star} for text, star in zip(TEXTS, STARS, strict=True)]
    _table(there / "a.tsv", "\t")
    (there / "a.json").write_text(json.dumps(records))
    write_lines(there / "a.jsonl", records)
    _table(there / "part-1.csv", ",", rows=slice(2))
    _table(there / "part-2.csv", ",", rows=slice(2, None))
    _table(there / "other.csv", ",", names=("film.review", "the stars"))
    for spec in ("a.tsv", "a.json", "a.jsonl", "part-*.csv"):
        assert _content(open_data(spec)) == expected, spec
    (spec,) = EvaluateOptions.of(
        "m", data="other.csv", columns="text=film.review,label=the stars"
    ).data
    assert spec == "other.csv#text,film%2Ereview#label,the%20stars"
    assert _content(open_data(spec)) == expected


def test_one_picture(there: Path) -> None:
    Image.fromarray(np.full((3, 3), 7, np.uint8)).save(there / "one.PNG")
    Image.fromarray(np.full((3, 3), 9, np.uint8)).save(there / "two.png")
    assert np.asarray(open_data("one.PNG").read(0)).max() == 7
    both = open_data("*.[pP][nN][gG]")
    assert [both.name(i) for i in range(len(both))] == ["one.PNG", "two.png"]


def test_messages_name_what_is_there(there: Path) -> None:
    _table(there / "other.csv", ",", names=("review", "stars"))
    _table(there / "third.csv", ",", names=("text", "stars"))
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(there / "one.png")
    for spec, says in {
        "other.csv": "needs a column image or text (found: review, stars)",
        "other.csv#text,reviw": "--columns text=reviw: other.csv#text,reviw has no such column (did you mean review?)",
        "*r*.csv": "its files have other columns (found: review, stars; found: text, stars)",
        "o*.*": "several files must be either all tables or all images",
        "x*.csv": "no file matches",
    }.items():
        with pytest.raises(DataError) as caught:
            open_data(spec)
        assert says in str(caught.value)
    with pytest.raises(DataError, match=r"third.csv: has no labels \(columns: text, stars\)"):
        fit_classes(open_data("third.csv"), Model(family="timm", arch="x", num_classes=2))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("text|label\nfine|good\nno, not at all|bad\n", "Fields are separated by a comma"),
        ('text,label\n"fine,good\nbad,bad\n', "Is a double quote not closed?"),
        ("text,label\nfine,good\n", "Columns of one table alone stand behind it: d.csv#text,NAME."),
    ],
)
def test_hints_for_tables_say_what_to_do(there: Path, content: str, hint: str) -> None:
    (there / "d.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        open_data("d.csv#text,review" if "alone" in hint else "d.csv")
    assert hint in str(caught.value.hint)


def test_a_limit_stops_reading(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the rows that are drawn from is not read, and may be anything."""
    monkeypatch.setattr(limits, "DRAWN_FROM", 4)
    for name, content in (
        ("a.csv", 'text,label\na,0\nb,0\nc,1\nd,1\n"broken'),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n{"text": "c"}\n{"text": "d"}\nbroken'),
    ):
        (there / name).write_text(content)
        samples = open_data(name, limit=2)
        assert {samples.read(i) for i in range(2)} < {"a", "b", "c", "d"}
        with pytest.raises(DataError):
            open_data(name)


def test_rows_and_values_are_bounded(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_ROWS", 3)
    (there / "a.csv").write_text("text\na\nb\nc\n")
    assert len(open_data("a.csv")) == 3
    (there / "a.csv").write_text("text\na\nb\nc\nd\n")
    with pytest.raises(DataError, match="more than 3 rows"):
        open_data("a.csv")


@pytest.mark.parametrize("between", [";", "\t"])
def test_the_first_line_says_what_separates_fields(there: Path, between: str) -> None:
    expected = _content(open_data(str(_table(there / "a.csv", ","))))
    assert _content(open_data(str(_table(there / "b.csv", between)))) == expected
    (there / "c.csv").write_text("text\none; two\n")
    assert open_data("c.csv").read(0) == "one; two"


def test_ids_and_columns_of_answers(there: Path) -> None:
    FAMILIES["BERT"].write(there / "bert")
    write_lines(
        there / "a.jsonl",
        ({"id": i // 2, "text": "film", "\uff1dcmd": "\uff1d1+1"} for i in range(4)),
    )
    options = {"data": "a.jsonl", "keep_columns": "\uff1dcmd"}
    done = hs.predict("bert", **options, out="o.csv")
    assert "2 of 4 rows share an id with another row" in done.notes
    head, row, *_ = csv.reader((there / "o.csv").read_text(encoding="utf-8").splitlines())
    assert "'\uff1dcmd" in head
    assert "'\uff1d1+1" in row
