"""Tables that a caller holds are read by their columns, as `--data` is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from PIL import Image
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data.sources import in_memory
from hydrasurgeon.errors import DataError
from hydrasurgeon.runtime.classifier import Classifier

BERT, VIT = FAMILIES["BERT"], FAMILIES["timm ViT"]
TEXTS = ["good film", "bad plot", "a very dull film", "fine"]
COLUMNS = {"ticket": [5, 6, 7, 8], "text": TEXTS, "label": ["x", None, "y", "x"]}


class Polars:
    """A frame as polars has it: `columns` are names, a column has `to_list`."""

    columns = tuple(COLUMNS)

    def __getitem__(self, name: str) -> Any:
        class Series:
            def to_list(self) -> list[Any]:
                return list(COLUMNS[name])

        return Series()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    place = tmp_path_factory.mktemp("bert")
    BERT.write(place / "bert")
    return hs.load(place / "bert", device="cpu")


@pytest.mark.parametrize(
    "table",
    [
        pandas.DataFrame(COLUMNS),
        pandas.DataFrame(COLUMNS).convert_dtypes(),
        pyarrow.table(COLUMNS),
        pyarrow.RecordBatch.from_pydict(COLUMNS),
        Polars(),
        COLUMNS,
        {"text": np.array(TEXTS)},
        {"text": pandas.Series(TEXTS)},
    ],
    ids=lambda table: type(table).__name__,
)
def test_a_table_is_its_texts(model: Classifier, table: Any) -> None:
    expected = model.predict(TEXTS)
    assert len(expected) == len(TEXTS)
    assert [*model.predict(table)] == [*expected]


def test_pairs_and_ids() -> None:
    frame = pandas.DataFrame({"id": ["a", "b"], "text": ["one", "two"], "text_pair": ["1", "2"]})
    samples = in_memory(frame, "text")
    assert [samples.read(i) for i in range(2)] == [("one", "1"), ("two", "2")]
    assert [samples.name(i) for i in range(2)] == ["a", "b"]


def test_pictures_of_a_table(tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((8, 8, 3), 9, np.uint8))
    picture.save(tmp_path / "a.png")
    for column in ([picture], [str(tmp_path / "a.png")], [(tmp_path / "a.png").read_bytes()]):
        samples = in_memory(pandas.DataFrame({"image": column, "score": [1]}), "image")
        assert np.asarray(samples.read(0)).tolist() == np.asarray(picture).tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (pandas.DataFrame({"question": TEXTS}), "needs a column image or text"),
        ({"input_ids": [[1, 2]]}, "needs a column image or text"),
        ({"text": "one"}, "the column text is not a list"),
        ({"text": ["a", "b"], "ticket": [1]}, "not equally long"),
        (pandas.DataFrame(TEXTS), "their names are not texts"),
        (pandas.DataFrame({"text": ["a", None]}), "row 1 has no text"),
        (pandas.DataFrame({"text": ["a", pandas.NA]}), "row 1 has no text"),
        (pandas.DataFrame({"text": TEXTS}).to_numpy(), "row 0 holds ndarray, not text"),
        ([{"text": "a"}], "row 0 holds dict, not text"),
        ({}, "holds no samples"),
        (5, "row 0 holds int, not text"),
        (None, "row 0 has no text"),
    ],
)
def test_anything_else_is_our_own_error(model: Classifier, inputs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        model.predict(inputs)
