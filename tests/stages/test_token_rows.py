"""Rows of entities: in every file, from Python and over HTTP, against the library's own logits."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from row_files import read_lines, write_lines
from tiny_tokens import TEXTS, library_entities, write

import hydrasurgeon as hs
from hydrasurgeon.errors import UsageError

FIELDS = ["start", "end", "text", "label", "probability", "answer"]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tags") / "tagger")


@pytest.fixture(scope="module")
def expected(tagger: Path) -> list[list[dict[str, Any]]]:
    entities = [library_entities(tagger, text) for text in TEXTS]
    assert sum(map(len, entities)) > 3
    assert any(" " in each["text"] for row in entities for each in row)
    return entities


def same(rows: Any, expected: list[list[dict[str, Any]]]) -> bool:
    """Whether rows hold these entities."""
    for row, wanted in zip(rows, expected, strict=True):
        for entity, right in zip(row["entities"], wanted, strict=True):
            assert [*entity] == FIELDS
            assert {name: entity[name] for name in ("start", "end", "text")} == {
                name: right[name] for name in ("start", "end", "text")
            }
            assert entity["probability"] == pytest.approx(right["probability"], abs=1e-5)
            assert entity["label"] == entity["answer"] == "A"
    return True


def test_entities_stand_in_their_text(
    tagger: Path, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"t{at}", "text": text, "x": at} for at, text in enumerate(TEXTS)]
    data = write_lines(tmp_path / "texts.jsonl", rows)
    answers = hs.predict(tagger, data=data, device="cpu", keep_columns="x")
    assert same(answers, expected)
    assert [*answers[0]] == ["id", "x", "entities", "ood_score", "unfamiliar"]
    assert [row["id"] for row in answers] == ["t0", "t1", "t2", "t3"]
    with pytest.raises(UsageError, match="--embeddings is only for models that choose one class"):
        hs.predict(tagger, data=data, device="cpu", embeddings=tmp_path / "read.npz")
    assert answers.answers == {"answered": 4}
    first = expected[0][0]["text"]
    assert f"{first} A" in repr(answers)
    assert same(hs.predict(tagger, text=TEXTS, device="cpu"), expected)
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{text}\n" for text in TEXTS)))
    assert same(hs.predict(tagger, data="-", device="cpu"), expected)
    loaded = hs.load(tagger, device="cpu").predict(TEXTS)
    assert same(loaded, expected)
    assert f"{first} A" in repr(loaded)


def test_every_file_holds_them(tagger: Path, expected: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    tokens = [text.replace(",", " ,").split() for text in TEXTS]
    data = write_lines(tmp_path / "tokens.jsonl", [{"tokens": each} for each in tokens])
    wanted = [library_entities(tagger, " ".join(each)) for each in tokens]
    for ending in ("jsonl", "csv", "parquet"):
        hs.predict(tagger, data=data, out=tmp_path / f"o.{ending}", device="cpu")
    rows = read_lines(tmp_path / "o.jsonl")
    assert same(rows, wanted)
    table = pq.read_table(tmp_path / "o.parquet").to_pylist()
    sheet = [*csv.DictReader((tmp_path / "o.csv").read_text().splitlines())]
    assert [*table[0]] == [*sheet[0]] == ["id", "entities", "ood_score", "unfamiliar"]
    for written in (table, sheet):
        assert [json.loads(row["entities"]) for row in written] == [r["entities"] for r in rows]
    made = hs.Predictor(tagger, device="cpu")({"id": [*"abcd"], "text": TEXTS})
    assert made["id"] == [*"abcd"]
    assert same([{"entities": cell} for cell in made["entities"]], expected)


@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="needs the extra serve")
def test_entities_that_are_not_answered_are_counted() -> None:
    from hydrasurgeon.serving.service import RequestCounts
    from hydrasurgeon.stages.predict import _outcome
    from hydrasurgeon.tasks import TASKS
    from hydrasurgeon.tasks.base import abstained

    tokens = TASKS["token_classification"]
    sure = {"start": 0, "end": 3, "text": "Ada", "label": "A", "probability": 0.9, "answer": "A"}
    unsure = {**sure, "start": 4, "end": 7, "text": "Bob", "probability": 0.3, "answer": "abstain"}
    row = {"id": 0, "entities": [unsure, sure], "ood_score": 0.1, "unfamiliar": False}
    strange, calm = {**row, "unfamiliar": True}, {**row, "entities": [sure]}
    rows = [row, strange, calm, {**row, "error": "damaged"}]
    assert [_outcome(each) for each in rows] == [
        "abstain",
        "unfamiliar",
        "answered",
        "error",
    ]
    assert abstained({**row, "entities": json.dumps(row["entities"])})
    counts = RequestCounts()
    counts.add([row, strange, calm], 1, tokens)
    said = counts.text().decode()
    for name, value in (("abstained_total", 1), ("unfamiliar_total", 1), ("inputs_total", 3)):
        assert f"hydrasurgeon_{name} {value}.0" in said
    assert 'hydrasurgeon_predicted_total{label="A"} 3.0' in said
    doubt = counts.registry.get_sample_value("hydrasurgeon_uncertainty_sum")
    assert doubt == pytest.approx(0.8 + 0.8 + 0.1)
