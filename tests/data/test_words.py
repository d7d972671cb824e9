"""Texts by their words: what data say of them, and where a tokenizer's tokens stand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
from row_files import write_lines
from transformers import PreTrainedTokenizerFast

from hydrasurgeon.data import open_data
from hydrasurgeon.data.matching import new_task
from hydrasurgeon.data.samples import Joined, fit_classes
from hydrasurgeon.data.sources import in_memory
from hydrasurgeon.data.word_tokens import SplitText, TokenizeWords, words_of
from hydrasurgeon.errors import CheckpointError, DataError
from hydrasurgeon.files.manifest import OF_WORDS, Model

TOKENS = [["Anna", "met", "New", "York", "."], ["nobody"]]
TAGS = [["B-PER", "O", "B-LOC", "I-LOC", "O"], ["O"]]
NAMES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
POSITIONS = [[3, 0, 1, 2, 0], [0, -1, -1, -1, -1]]


def lines(place: Path, rows: list[dict[str, Any]]) -> str:
    return write_lines(place, rows)


def model(labels: tuple[str, ...] = NAMES) -> Model:
    return Model(
        family="transformers",
        arch="BertForTokenClassification",
        num_classes=len(labels),
        labels=labels,
        task="token_classification",
        pooling=OF_WORDS,
    )


def forms(folder: Path) -> dict[str, str]:
    """The same two texts in every form."""
    import pyarrow as pa
    from datasets import ClassLabel, Dataset, Features, List, Value
    from pyarrow import parquet

    table = pa.table({"tokens": TOKENS, "tags": TAGS})
    parquet.write_table(table, folder / "it.parquet")
    order = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    features = Features(
        {"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=order))}
    )
    numbers = [[order.index(tag) for tag in row] for row in TAGS]
    Dataset.from_dict({"tokens": TOKENS, "ner_tags": numbers}, features).to_parquet(
        str(folder / "numbers.parquet")
    )
    (folder / "it.conll").write_text(
        "-DOCSTART- -X- O O\n\n"
        + "\n\n".join(
            "\n".join(f"{token} _ _ {tag}" for token, tag in zip(tokens, tags, strict=True))
            for tokens, tags in zip(TOKENS, TAGS, strict=True)
        )
        + "\n"
    )
    entities = [
        {"start": 9, "end": 17, "label": "LOC"},
        {"start": 0, "end": 4, "label": "PER"},
    ]
    rows: list[dict[str, Any]] = [
        {"text": "Anna met New York.", "entities": entities},
        {"text": "nobody", "entities": []},
    ]
    pairs = zip(TOKENS, TAGS, strict=True)
    return {
        "jsonl": lines(folder / "it.jsonl", [{"tokens": a, "tags": b} for a, b in pairs]),
        "parquet": str(folder / "it.parquet"),
        "numbers": str(folder / "numbers.parquet"),
        "conll": str(folder / "it.conll"),
        "entities": lines(folder / "entities.jsonl", rows),
    }


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    for name, spec in forms(tmp_path).items():
        samples = open_data(spec)
        column = samples.written
        assert column is not None
        assert (name, column.names, column.labels.tolist()) == (name, NAMES, POSITIONS)
        assert new_task(spec, column, None) == ("token_classification", 5, NAMES)
        text = samples.read(0)
        assert isinstance(text, SplitText)
        assert [text[start:end] for start, end in text.spans] == TOKENS[0]
        again = pickle.loads(pickle.dumps(text))
        assert (again, again.spans) == (text, text.spans)


def test_tags_become_the_models_by_name(tmp_path: Path) -> None:
    spec = forms(tmp_path)["jsonl"]
    other = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-X", "I-X")
    fitted = fit_classes(open_data(spec), model(other)).labels
    assert fitted is not None
    assert fitted.tolist() == [[1, 0, 3, 4, 0], [0, -1, -1, -1, -1]]
    with pytest.raises(DataError, match="row 0: the model has no class B-LOC"):
        fit_classes(open_data(spec), model(("O", "B-PER", "I-PER")))
    single = open_data(lines(tmp_path / "one.jsonl", [{"text": "a", "label": "b"}]))
    with pytest.raises(DataError, match="expected a tag for each word"):
        fit_classes(single, model())
    many = model().model_copy(update={"task": "multi_label", "pooling": None})
    with pytest.raises(DataError, match="row 0 has a tag for each word, expected a list of labels"):
        fit_classes(open_data(spec), many)


def test_an_inside_that_continues_nothing_begins(tmp_path: Path) -> None:
    rows = [{"tokens": list("abcd"), "tags": ["I-A", "I-A", "I-B", "O"]}]
    samples = open_data(lines(tmp_path / "it.jsonl", rows))
    assert samples.classes == ("O", "B-A", "I-A", "B-B", "I-B")
    assert np.asarray(samples.labels).tolist() == [[1, 2, 3, 0]]
    assert "2 I- tags continue nothing" in (samples.note or "")


def test_entities_take_whole_words(tmp_path: Path) -> None:
    entities = [{"start": 3, "end": 8, "label": "LOC"}]
    samples = open_data(
        lines(tmp_path / "it.jsonl", [{"text": "in Londons fog", "entities": entities}])
    )
    assert np.asarray(samples.labels).tolist() == [[0, 1, 0]]
    assert "1 entities begin or end within a word" in (samples.note or "")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "row 1 has 2 tokens and 1 tags"),
        ({"tokens": ["a"], "tags": "O"}, "row 1 has 1 tokens and no list of tags"),
        ({"tokens": ["a"], "tags": ["PER"]}, "row 1 has the tag 'PER'"),
        ({"tokens": "ab", "tags": ["O"]}, "row 1 holds ab, which is not a list of words"),
    ],
)
def test_tags_that_do_not_fit_name_their_row(
    row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    spec = lines(tmp_path / "it.jsonl", [{"tokens": ["a"], "tags": ["O"]}, row])
    with pytest.raises(DataError, match=message):
        open_data(spec)


@pytest.mark.parametrize(
    ("text", "entities", "message"),
    [
        ("Ange\u0301 la", [(0, 4)], "4 lies within a character"),
        ("\U0001f469\u200d\U0001f680 x", [(0, 1)], "1 lies within a character"),
        ("ab\u0939\u093f", [(3, 4)], "3 lies within a character"),
        ("abcd\U0001f44d\U0001f3fd", [(5, 6)], "5 lies within a character"),
        ("Anna", [(2, 9)], "from 2 to 9, but the text has 4 characters"),
        ("Anna", [(2, 2)], "from 2 to 2"),
        ("Anna Bell", [(0, 6), (5, 9)], "overlap"),
        ("Anna", [("0", 4)], "is not an entity"),
    ],
)
def test_entities_that_cannot_be_name_their_row(
    text: str, entities: list[Any], message: str, tmp_path: Path
) -> None:
    listed = [{"start": start, "end": end, "label": "X"} for start, end in entities]
    rows: list[dict[str, Any]] = [{"text": "fine", "entities": []}]
    rows.append({"text": text, "entities": listed})
    with pytest.raises(DataError, match=f"row 1.*{message}"):
        open_data(lines(tmp_path / "it.jsonl", rows))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    tiny_families.tokenizer(tmp_path)
    return PreTrainedTokenizerFast.from_pretrained(tmp_path)


def test_the_first_token_of_each_word_speaks_for_it(tokenizer: Any) -> None:
    """The places are those of the library's own `word_ids`."""
    rows = [["good", "film"], ["a", "very", "dull-plot", "the"], ["the"]]
    samples = [SplitText(" ".join(row), spans(row)) for row in rows]
    batch = TokenizeWords(lambda: tokenizer, max_length=24).collate(samples)
    made = tokenizer(rows, is_split_into_words=True, padding=True)
    length = batch["input_ids"].shape[1]
    assert batch["input_ids"].tolist() == made["input_ids"]
    for row, words in enumerate(rows):
        ids = made.word_ids(row)
        expected = [row * length + ids.index(word) for word in range(len(words))]
        assert batch["words"][row].tolist() == expected + [-1] * (4 - len(words))


def spans(words: list[str]) -> list[tuple[int, int]]:
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]


def test_a_long_text_is_looked_through_once(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each of its windows."""
    looked: list[int] = []
    searchsorted = np.searchsorted

    def counting(places: Any, values: Any, *more: Any, **options: Any) -> Any:
        looked.append(np.size(values))
        return searchsorted(places, values, *more, **options)

    monkeypatch.setattr(np, "searchsorted", counting)
    batch = TokenizeWords(lambda: tokenizer, max_length=24).collate(["good film " * 2000])
    assert (batch["words"] >= 0).sum() == 4000
    assert sum(looked) < 4 * 4000


def test_plain_texts_are_split(tokenizer: Any) -> None:
    assert [text[a:b] for text in ["Don't, Ünal_1!"] for a, b in words_of(text)] == [
        *("Don", "'", "t", ",", "Ünal_1", "!")
    ]
    read = TokenizeWords(lambda: tokenizer, max_length=24)
    batch = read.collate([in_memory(["good, film"], "text").read(0), " ... "])
    assert (batch["words"] >= 0).sum(dim=1).tolist() == [3, 3]


def test_a_tokenizer_without_places_is_refused() -> None:
    slow = type("Slow", (), {"is_fast": False})()
    with pytest.raises(CheckpointError, match="where its tokens stand") as caught:
        TokenizeWords(lambda: slow, max_length=8).collate(["a"])
    assert caught.value.exit_code == 3


def test_numbers_are_tags_of_the_model(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"tokens": ["a", "b"], "ner_tags": [3, 0]}]
    rows.append({"tokens": ["c"], "ner_tags": [4]})
    spec = lines(tmp_path / "it.jsonl", rows)
    samples = open_data(spec)
    assert samples.written is not None
    with pytest.raises(DataError, match="numbers without names"):
        new_task(spec, samples.written, None)
    fitted = fit_classes(samples, model())
    assert (np.asarray(fitted.labels).tolist(), fitted.classes) == ([[3, 0], [4, -1]], NAMES)
    assert "classes: 0 is O, 4 is I-PER" in (fitted.note or "")
    with pytest.raises(DataError, match="row 1 has label 4, but the data has classes 0-3"):
        fit_classes(samples, model(NAMES[:4]))


def test_data_without_tags(tmp_path: Path) -> None:
    """It is read for predict and as OOD data; tags that no model knows do no harm there."""
    forms = [
        lines(tmp_path / "a.jsonl", [{"tokens": ["a", "b"]}]),
        lines(tmp_path / "b.jsonl", [{"tokens": ["a", "b"], "tags": None}]),
        lines(tmp_path / "c.jsonl", [{"text": "a b", "entities": None}]),
        lines(tmp_path / "d.jsonl", [{"text": "a b", "entities": {"hashtags": []}}]),
        str(tmp_path / "e.conll"),
    ]
    (tmp_path / "e.conll").write_text("a\nb\n\n")
    for spec in forms:
        samples = open_data(spec)
        assert (samples.read(0), samples.written) == ("a b", None)


def test_parts_of_data_keep_their_tags(tmp_path: Path) -> None:
    rows = [{"tokens": ["w"] * (1 + i), "tags": ["B-X"] + ["I-X"] * i} for i in range(9)]
    samples = open_data(lines(tmp_path / "it.jsonl", rows))
    few = open_data(lines(tmp_path / "it.jsonl", rows), limit=3, seed=1)
    for i in range(len(few)):
        text = few.read(i)
        assert isinstance(text, SplitText)
        assert (np.asarray(few.labels)[i] >= 0).sum() == len(text.spans)
    plain = open_data(lines(tmp_path / "plain.jsonl", [{"text": "a b"}]))
    both = Joined(samples, plain)
    assert both.read(9) == "a b"
    assert (np.asarray(both.labels)[9] == -1).all()
    assert both.fingerprint()["rows"] == 10
    other = [{"tokens": ["w", "w"], "tags": ["O", "O"]}, {"tokens": ["ww"], "tags": ["O"]}]
    assert open_data(lines(tmp_path / "other.jsonl", other)).shared_with(samples) == 1


def test_very_long_rows_are_refused(tmp_path: Path) -> None:
    rows = [{"tokens": ["word" * 50] * 5_000, "tags": ["O"] * 5_000}]
    samples = open_data(lines(tmp_path / "it.jsonl", rows))
    with pytest.raises(DataError, match="row 0 holds 1,004,999 characters"):
        samples.read(0)


@pytest.fixture
def spaced() -> Any:
    """A tokenizer as sentencepiece makes them: a token's place holds the space before it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    pieces = ["<s>", "</s>", "<pad>", "<unk>", "▁", "▁good", "good", "ly", "▁film", "!", "▁a"]
    made = Tokenizer(models.Unigram([(piece, -1.0 - len(piece) % 2) for piece in pieces], 3, False))
    made.normalizer = normalizers.Replace("\u200b", "")
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
    )


def test_windows_by_hand(spaced: Any) -> None:
    """Of all windows in which a word's first token stands, the one where fewer tokens lie beyond it."""
    text = " ".join(["goodly film! a good"] * 400)
    batch = TokenizeWords(lambda: spaced, max_length=20).collate([text])
    made = spaced(
        text,
        truncation=True,
        max_length=20,
        stride=5,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding=True,
        padding_side="right",
    )
    best: dict[int, tuple[float, int]] = {}
    windows = made["offset_mapping"]
    word_at = {start: word for word, (start, _) in enumerate(words_of(text))}
    for window, offsets in enumerate(windows):
        real = [at for at in range(20) if offsets[at][1] > offsets[at][0]]
        for at in real:
            before = np.inf if window == 0 else at - real[0]
            behind = np.inf if window == len(windows) - 1 else real[-1] - at
            context = min(before, behind)
            for word in {word_at[i] for i in range(*offsets[at]) if i in word_at}:
                if context > best.get(word, (-1, 0))[0]:
                    best[word] = (context, 20 * window + at)
    assert batch["words"][0].tolist() == [best[word][1] for word in range(2000)]
    assert min(context for context, _ in best.values()) >= 2
