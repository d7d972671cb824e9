"""The tokenizer's files: read as transformers reads them, with what they may say, and refused in one sentence."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tiny_families import FAMILIES, VOCAB, WORDS

import hydrasurgeon as hs
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.data.texts import Tokenize
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.families.hf_encoder.companions import check_files, load_tokenizer

TEXTS = ["good film", "The plot was very DULL, not fine!", "a", ""]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert") / "b"
    FAMILIES["BERT"].write(folder)
    return folder


def files_of(folder: Path) -> dict[str, str]:
    return dict(open_checkpoint(folder).files)


def saying(files: dict[str, str], **config: Any) -> dict[str, str]:
    told = json.loads(files.get("tokenizer_config.json", "{}"))
    return {**files, "tokenizer_config.json": json.dumps({**told, **config})}


def vocabulary() -> dict[str, str]:
    """BERT's older layout: no tokenizer.json."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "!", ","]
    return {"vocab.txt": "\n".join(words)}


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.txt", "vocab.txt, cased"])
def test_texts_become_what_transformers_makes_of_them(
    bert: Path, tmp_path: Path, files: str
) -> None:
    from transformers import AutoTokenizer

    given = files_of(bert) if files == "tokenizer.json" else vocabulary()
    if files == "vocab.txt, cased":
        given = saying(given, tokenizer_class="BertTokenizer", do_lower_case=False)
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(given, "bert", 100)
    assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    assert ours.model_max_length == theirs.model_max_length
    assert ours.pad_token_id == theirs.pad_token_id


def test_the_transform_goes_to_worker_processes(bert: Path) -> None:
    transform: Any = hs.load(bert, device="cpu").transform
    twin = pickle.loads(pickle.dumps(transform))
    assert (
        twin.collate(TEXTS)["input_ids"].tolist() == transform.collate(TEXTS)["input_ids"].tolist()
    )


def test_only_what_a_config_may_say_reaches_transformers(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    stock, seen = transformers.AutoTokenizer.from_pretrained, {}

    def watched(folder: str, **options: Any) -> Any:
        seen.update(json.loads((Path(folder) / "tokenizer_config.json").read_text()))
        assert options == {"local_files_only": True, "trust_remote_code": False}
        return stock(folder, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", watched)
    hostile = saying(
        files_of(bert),
        vocab_file="/etc/passwd",
        tokenizer_file="/etc/passwd",
        init_inputs=["/etc/passwd"],
        name_or_path="owner/model",
        custom_object={"x": 1},
        chat_template="{{ x }}",
        backend="custom",
        tokenizer_class="EvilTokenizer",
        unk_token="[UNK]",
    )
    made = load_tokenizer(hostile, "bert", 100)
    assert (
        made(TEXTS)["input_ids"] == load_tokenizer(files_of(bert), "bert", 100)(TEXTS)["input_ids"]
    )
    assert set(seen) == {
        "cls_token",
        "model_max_length",
        "pad_token",
        "sep_token",
        "tokenizer_class",
        "unk_token",
    }


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "preprocessor_config.json"]
)
def test_code_that_comes_along_is_refused(bert: Path, tmp_path: Path, name: str) -> None:
    """Who loads what we write is told to trust its code: ours, not a tokenizer's."""
    for path in bert.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "heads.json").unlink(missing_ok=True)
    told = json.loads((tmp_path / name).read_text()) if (tmp_path / name).exists() else {}
    (tmp_path / name).write_text(
        json.dumps(told | {"auto_map": {"AutoTokenizer": ["owner/repo--evil.Evil", None]}})
    )
    with pytest.raises(CheckpointError, match=rf"{name}: runs code of its own") as refused:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in refused.value.message


def test_a_class_that_nothing_describes_is_refused() -> None:
    files = saying(vocabulary(), tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(
        CheckpointError, match=r"'BertJapaneseTokenizer' is not supported without tokenizer\.json"
    ):
        check_files(files, "here")


def test_words_that_the_model_has_no_row_for(bert: Path) -> None:
    files = {**files_of(bert), "added_tokens.json": json.dumps({"new": len(VOCAB)})}
    assert load_tokenizer(files_of(bert), "bert", len(VOCAB)) is not None
    with pytest.raises(CheckpointError, match=r"word number 13, the model has 13 words"):
        load_tokenizer(files_of(bert), "bert", len(VOCAB) - 1)
    far = json.loads(files["tokenizer.json"])
    far["model"]["vocab"]["plot"] = 10**9
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json has a word number 1000000000, the model"
    ):
        load_tokenizer({**files, "tokenizer.json": json.dumps(far)}, "bert", len(VOCAB) + 1)
    with pytest.raises(CheckpointError, match=r"has 14 words"):
        load_tokenizer(saying(files, added_tokens_decoder={"14": {"content": "new"}}), "bert", 14)


def replaced(pattern: dict[str, str], content: str, times: int = 1) -> dict[str, Any]:
    one = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [one] * times}


def test_texts_that_a_tokenizer_breaks_down_on(bert: Path) -> None:
    """Its expressions meet texts only when there are some, and a panic of Rust's is no Exception."""
    files = files_of(bert)
    whole = json.loads(files["tokenizer.json"]) | {"normalizer": replaced({"Regex": "(a+)+$"}, "b")}
    text = json.dumps(whole)
    transform = Tokenize(
        lambda: load_tokenizer({**files, "tokenizer.json": text}, "bert", 100), max_length=8
    )
    assert transform.collate(["good film"])["input_ids"].tolist() == [[0, 4, 8, 2]]
    with pytest.raises(CheckpointError, match=r"tokenizer cannot read these texts: .*[Rr]etry"):
        transform.collate(["a" * 30 + "!"])
