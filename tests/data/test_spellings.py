"""Labels in two spellings: refused for a new classifier, named where a known class is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hydrasurgeon.data import fit_classes, open_data
from hydrasurgeon.data.matching import new_task
from hydrasurgeon.errors import DataError
from hydrasurgeon.files.manifest import Model

CARDS = Model(family="timm", arch="vit", num_classes=3, labels=("card", "cash", "zebra"))


def table(path: Path, labels: list[Any]) -> str:
    rows = (json.dumps({"text": "a the film", "label": label}) for label in labels)
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def new(spec: str) -> Any:
    column = open_data(spec).written
    assert column is not None
    return new_task(spec, column, None)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["card", "Card", "card", "x"], "'Card' (1 rows) and 'card' (2 rows) differ only in case"),
        (["new  york", "new york"], "differ only in blanks"),
        (["\ufb01t", "fit"], "differ only in Unicode form"),
        (["cafe\u0301", "caf\u00e9"], "differ only in Unicode form"),
        (["card.", "card"], "differ only in punctuation at the ends"),
        (["Card!", "card"], "differ only in spelling"),
        ([["a", "Card"], ["card"]], "'Card' (1 rows) and 'card' (1 rows)"),
    ],
)
def test_a_new_classifier_gets_no_class_twice(tmp_path: Path, labels: list[Any], says: str) -> None:
    spec = table(tmp_path / "d.jsonl", labels)
    with pytest.raises(DataError) as refused:
        new(spec)
    assert says in refused.value.message
    assert "--labels exact" in str(refused.value.hint)
    kept = {each for label in labels for each in (label if isinstance(label, list) else [label])}
    assert new(f"{spec}#labels,exact")[1:] == (len(kept), tuple(sorted(kept)))


def test_the_first_wrong_row_is_named(tmp_path: Path) -> None:
    names = ["card", "Zebra", *(f"{'a' * 100} {i}" for i in range(20))]
    samples = open_data(table(tmp_path / "d.jsonl", names))
    with pytest.raises(DataError) as refused:
        fit_classes(samples, CARDS)
    message = refused.value.message
    assert "row 1: the model has no class Zebra" in message
    assert "differs only in case from 'zebra'" in message
    assert len(message) < 500
