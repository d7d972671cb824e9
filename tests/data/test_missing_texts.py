"""A missing text is an error that names its row, or a row of `id` and `error` with --skip-bad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from row_files import write_rows
from tiny_families import FAMILIES

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data
from hydrasurgeon.data.texts import Tokenize
from hydrasurgeon.errors import DataError

BERT = FAMILIES["BERT"]
TEXTS = tuple(None if i % 4 == 1 else f"good film {i}" for i in range(120))


def table(place: Path, missing: object, ending: str) -> str:
    rows = [{"text": text or missing, "label": i % 3} for i, text in enumerate(TEXTS)]
    return write_rows(place / f"d.{ending}", rows)


@pytest.mark.parametrize(
    ("missing", "ending"),
    [
        ("", "csv"),
        ("  ", "csv"),
        ("\u200b\ufeff\x07", "jsonl"),
        ("", "jsonl"),
        (None, "jsonl"),
        (None, "parquet"),
    ],
)
def test_the_row_is_named(tmp_path: Path, missing: object, ending: str) -> None:
    samples = open_data(table(tmp_path, missing, ending))
    with pytest.raises(DataError, match="row 1 has no text"):
        samples.read(1)
    with pytest.raises(DataError, match="row 1 has no text"):
        Batches(samples, Tokenize(lambda: None, max_length=8), batch_size=2)


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    BERT.write(tmp_path / "bert")
    return tmp_path / "bert"


STAGES: dict[str, Callable[[Path, str], object]] = {
    "eval": lambda bert, data: hs.evaluate(bert, data=data),
    "calibrate": lambda bert, data: hs.calibrate(
        bert, data=data, out=bert.parent / "c.safetensors"
    ),
    "finetune": lambda bert, data: hs.finetune(bert, data=data, out=bert.parent / "t.safetensors"),
    "score": lambda bert, data: hs.score(bert, method="taylor", data=data),
    "predict": lambda bert, data: hs.predict(bert, data=data),
    "Python": lambda bert, data: hs.load(bert).predict(["good", "", "bad"]),
}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_names_it(bert: Path, stage: str) -> None:
    with pytest.raises(DataError, match=r"row \d+ has no text") as refused:
        STAGES[stage](bert, table(bert.parent, "", "csv"))
    assert refused.value.exit_code == 5


def test_it_becomes_a_row(bert: Path) -> None:
    rows = hs.predict(bert, data=table(bert.parent, None, "jsonl"), skip_bad=True)
    missing = [i for i, text in enumerate(TEXTS) if text is None]
    assert [i for i, row in enumerate(rows) if "error" in row] == missing
    assert rows[1] == {"id": 1, "error": "d.jsonl: row 1 has no text"}


def test_a_text_without_tokens(tmp_path: Path) -> None:
    """A tokenizer that adds nothing, and a text of which it knows nothing."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = Tokenizer(models.WordLevel({"good": 0, "[PAD]": 1}, unk_token="good"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.normalizer = normalizers.Replace("\u200b", "")
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]")
    read = Tokenize(lambda: fast, max_length=8)
    for texts in (["\u200b"], ["good", "\u200b"]):
        with pytest.raises(DataError, match="has no tokens"):
            read.collate(texts)
    assert read.collate(["good"])["input_ids"].tolist() == [[0]]
