"""`hs.Predictor`: the answers of `predict`, for tables of every form, in other processes too."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hydrasurgeon as hs
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.rows import read_rows

pd = pytest.importorskip("pandas")
TEXTS = ["tiny words", "a longer text of words", "short", "words and more words of them", "end"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with three classes."""
    from tiny_families import FAMILIES

    folder = tmp_path_factory.mktemp("predictor") / "bert"
    FAMILIES["BERT"].write(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows that `predict` writes of the same texts."""
    out = tmp_path_factory.mktemp("expected") / "answers.parquet"
    table = out.with_name("texts.parquet")
    pd.DataFrame({"id": [*range(5)], "text": TEXTS}).to_parquet(table)
    hs.predict(model, data=str(table), device="cpu", out=out)
    return [row for _, row in read_rows(out)]


def columns() -> dict[str, Any]:
    return {"id": [0, 1, 2, 3, 4], "text": TEXTS}


def alike(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert {*row} == {*wanted}
        assert (row["id"], row["label"]) == (wanted["id"], wanted["label"])
        assert row["probability"] == pytest.approx(wanted["probability"], abs=1e-5)


FORMS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dict": dict,
    "numpy": lambda table: {name: np.array(values) for name, values in table.items()},
    "pandas": pd.DataFrame,
    "table": pa.table,
    "batch": lambda table: pa.RecordBatch.from_pydict(table),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_table_comes_back_with_predicts_rows(
    form: str, model: Path, expected: list[dict[str, Any]]
) -> None:
    table = FORMS[form](columns())
    answers = hs.Predictor(model, device="cpu", batch_size=2)(table)
    assert type(answers) is type(table)
    if form in ("dict", "numpy"):
        assert {type(values) for values in answers.values()} == {type(table["text"])}
        rows = [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]
    elif form == "pandas":
        rows = answers.to_dict("records")
    else:
        rows = answers.to_pylist()
    alike(rows, expected)


def test_a_frame_keeps_its_index_and_other_names_of_columns(model: Path) -> None:
    frame = pd.DataFrame({"question": TEXTS}, index=[9, 4, 7, 1, 2])
    answers = hs.Predictor(model, columns={"text": "question"}, device="cpu")(frame)
    assert answers.index.tolist() == [9, 4, 7, 1, 2]
    assert "id" not in answers.columns


def test_a_list_gives_rows_and_sets_are_lists(model: Path, tmp_path: Path) -> None:
    predictor = hs.Predictor(model, device="cpu", top=2)
    rows = predictor(TEXTS)
    assert [row["id"] for row in rows] == [*range(5)]
    for table in (columns(), pd.DataFrame(columns())):
        answers = predictor(table)
        assert [*answers["top"]] == [row["top"] for row in rows]
        assert isinstance(answers["top"][0], list)


@pytest.mark.slow
def test_what_is_pickled_is_small_and_answers_elsewhere(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    predictor = hs.Predictor("bert", device="cpu")
    predictor(columns())  # what is loaded stays here
    content = pickle.dumps(predictor)
    assert len(content) < 4000
    (tmp_path / "p.pickle").write_bytes(content)
    code = (
        "import pickle, sys; p = pickle.load(open(sys.argv[1], 'rb')); "
        "print(p({'text': sys.argv[2:]})['probability'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "p.pickle"), *TEXTS],
        cwd=Path(hs.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [float(word) for word in done.stdout.strip("[]\n").split(",")]
    assert told == pytest.approx(predictor(columns())["probability"], abs=1e-6)


def test_threads_load_it_once(model: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    predictor = hs.Predictor(model, device="cpu")
    with ThreadPoolExecutor(4) as pool:
        told = [*pool.map(predictor, [columns()] * 8)]
    assert all(each == told[0] for each in told)


@pytest.mark.slow
def test_onnx_answers_as_torch_does(model: Path, expected: list[dict[str, Any]]) -> None:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    answers = hs.Predictor(model, engine="onnx")(pd.DataFrame(columns()))
    alike(answers.to_dict("records"), expected)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": [1]}, "the table: needs a column image or text"),
        ({"text": [1.5]}, "row 0"),
        ({"text": ["a", "b"], "id": [1]}, "columns are not equally long"),
        (3, "the table: is not a table"),
    ],
)
def test_mistakes(model: Path, table: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hs.Predictor(model, device="cpu")(table)
