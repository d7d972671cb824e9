"""Classes whose names are numbers: names where all are the model's, else positions, else `--labels`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from row_files import write_lines, write_rows
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.data import fit_classes, open_data
from hydrasurgeon.data.matching import new_classes
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model

BERT = FAMILIES["BERT"]
STARS = ("1", "2", "3", "4", "5")
SHAPES = ("csv", "strings", "ints", "parquet", "many", "many ints")


def model(names: tuple[str, ...] | None, count: int = 5, many: bool = False) -> Model:
    task = "multi_label" if many else "single_label"
    return Model(family="timm", arch="vit", num_classes=count, labels=names, task=task)


def table(folder: Path, labels: list[str], shape: str = "csv") -> str:
    """Rows of these labels, in one of the shapes that tables have."""
    values: list[Any] = list(labels)
    if shape in ("ints", "many ints", "parquet"):
        values = [int(label) for label in labels]
    if shape.startswith("many"):
        values = [[value] for value in values]
    ending = shape if shape in ("csv", "parquet") else "jsonl"
    return write_rows(
        folder / f"d.{ending}", [{"text": "a text", "label": value} for value in values]
    )


def fitted(spec: str, to: Model) -> list[int]:
    labels = fit_classes(open_data(spec), to).labels
    assert labels is not None
    return (labels.argmax(axis=1) if labels.ndim == 2 else labels).tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("names", "labels", "positions"),
    [
        (STARS, ["2", "1", "4"], [1, 0, 3]),
        (("2", "0", "1", "3"), ["0", "1", "2", "3"], [1, 2, 0, 3]),
        (("01", "02", "03", "04"), ["04", "01"], [3, 0]),
        (("10", "2", "3", "1"), ["10", "1"], [0, 3]),
        (("-1", "0", "1"), ["1", "-1", "0"], [2, 0, 1]),
        (("20000101", "20000202"), ["20000202", "20000101"], [1, 0]),
    ],
)
def test_names_of_the_model_are_names(
    tmp_path: Path, shape: str, names: tuple[str, ...], labels: list[str], positions: list[int]
) -> None:
    to = model(names, len(names), many=shape.startswith("many"))
    assert fitted(table(tmp_path, labels, shape), to) == positions


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_are_positions_where_no_class_is_called_by_one(tmp_path: Path, shape: str) -> None:
    many = shape.startswith("many")
    words = model(("ant", "bee", "cat", "dog", "eel"), many=many)
    data = table(tmp_path, ["4", "0"], shape)
    assert fitted(data, words) == [4, 0]
    assert fitted(data, model(None, many=many)) == [4, 0]
    note = fit_classes(open_data(data), words).note
    assert note is not None
    assert "0 is ant" in note


@pytest.mark.parametrize("shape", SHAPES)
def test_what_may_be_both_is_said(tmp_path: Path, shape: str) -> None:
    stars = model(STARS, many=shape.startswith("many"))
    data = table(tmp_path, ["0", "4"], shape)
    with pytest.raises(DataError) as refused:
        fitted(data, stars)
    assert "as names, 0 is none of them; as positions, 0 is 1" in refused.value.message
    assert "--labels positions" in str(refused.value.hint)
    assert fitted(f"{data}#labels,positions", stars) == [0, 4]
    with pytest.raises(DataError, match="the model has no class 0"):
        fitted(f"{data}#labels,names", stars)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("labels", "count", "names"),
    [
        (["1", "5", "3", "2", "4"], 5, STARS),
        (["2", "0", "1"], 3, None),
        (["10", "2"], 2, ("2", "10")),
    ],
)
def test_a_new_classifier_has_the_names(
    tmp_path: Path, shape: str, labels: list[str], count: int, names: tuple[str, ...] | None
) -> None:
    column = open_data(table(tmp_path, labels, shape)).written
    assert column is not None
    assert new_classes("d", column) == (count, names)


def folders(place: Path, names: list[str]) -> str:
    for name in names:
        (place / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(place / name / "0.png")
    return str(place)


@pytest.mark.parametrize("labels", [None, tuple("abcdefghijk")])
def test_folders_of_numbers_need_an_order(tmp_path: Path, labels: tuple[str, ...] | None) -> None:
    data = folders(tmp_path / "f", [str(i) for i in range(11)])
    eleven = model(labels, 11)
    with pytest.raises(DataError) as refused:
        fitted(data, eleven)
    assert "by number 0, 1, 2, 3, 4, 5, …" in refused.value.message
    assert "as text 0, 1, 10, 2, 3, 4, …" in refused.value.message
    by_number = fit_classes(open_data(f"{data}#labels,positions"), eleven)
    # Files lie in the order of text: 0, 1, 10, 2, …
    assert by_number.labels is not None
    assert by_number.labels.tolist() == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]
    assert by_number.classes == (labels or tuple(str(i) for i in range(11)))
    assert fitted(f"{data}#labels,sorted", eleven) == list(range(11))
    names = tuple(str(i) for i in range(11))
    assert fitted(data, model(names, 11)) == [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]


def test_its_own_answers_are_all_right(tmp_path: Path) -> None:
    """What predict says is what eval and finetune read."""
    BERT.write(tmp_path / "star")
    place = tmp_path / "star" / "config.json"
    names = {"0": "1", "1": "2", "2": "3"}
    place.write_text(json.dumps(json.loads(place.read_text()) | {"id2label": names}))
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, 5)) for _ in range(60)]
    write_lines(tmp_path / "texts.jsonl", ({"text": t} for t in texts))
    hs.predict(tmp_path / "star", data=f"{tmp_path}/texts.jsonl", out=tmp_path / "a.jsonl")
    answers = (tmp_path / "a.jsonl").read_text().splitlines()
    labels = [json.loads(answer)["label"] for answer in answers]
    assert set(labels) <= {"1", "2", "3"}
    lines = "".join(f"{t},{label}\n" for t, label in zip(texts, labels, strict=True))
    data = str(tmp_path / "own.csv")
    Path(data).write_text(f"text,label\n{lines}")
    (row,) = hs.evaluate(tmp_path / "star", data=data).report.results
    assert row.id.accuracy == 1.0
