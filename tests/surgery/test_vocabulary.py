"""Tokens that no text uses go, and stock transformers answers the texts whose tokens stay as
before, with every kind of tokenizer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exporting import exports, onnx_writes
from remade import remade
from tiny_families import TEXT, transformers_model
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import hydrasurgeon as hs
from hydrasurgeon.cli.app import run
from hydrasurgeon.errors import DataError, SurgeryError
from hydrasurgeon.stages.export import export

MAKE = Callable[..., Path]
RNG = random.Random(0)
SYLLABLES = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er", "é")]
NAMES = ["".join(RNG.choices(SYLLABLES, k=RNG.randint(1, 4))) for _ in range(300)]
TEXTS = [" ".join(RNG.choices(NAMES, k=RNG.randint(1, 9))) for _ in range(400)]
SEEN, NEW = TEXTS[:40], [*TEXTS[40:], "Zürich, 東京 & 🙂!", "x", "ba ba, ba?"]
ROLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def trained(model: Any, trainer: type[Any], split: Any, **how: Any) -> Tokenizer:
    """A tokenizer of all texts, with roles in front."""
    made = Tokenizer(model)
    made.normalizer, made.pre_tokenizer = normalizers.NFC(), split
    made.train_from_iterator(
        TEXTS, trainer(vocab_size=500, special_tokens=ROLES, show_progress=False, **how)
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def wordpiece() -> Tokenizer:
    made = trained(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
    )
    made.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    return made


def of_bytes() -> Tokenizer:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = trained(models.BPE(), trainers.BpeTrainer, split, initial_alphabet=alphabet)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def with_ends() -> Tokenizer:
    """BPE whose tokens say where words end, as CLIP's."""
    model = models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    split = pre_tokenizers.Whitespace()
    return trained(model, trainers.BpeTrainer, split, end_of_word_suffix="</w>")


def falling_to_bytes() -> Tokenizer:
    """As Llama's, with a token for padding that was added behind all others."""
    made = trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer, pre_tokenizers.Metaspace())
    raw = json.loads(made.to_str())
    for byte in range(256):
        raw["model"]["vocab"][f"<0x{byte:02X}>"] = len(raw["model"]["vocab"])
    raw["model"]["byte_fallback"] = True
    made = Tokenizer.from_str(json.dumps(raw))
    made.add_special_tokens([AddedToken("<last>", special=True)])
    return made


def unigram() -> Tokenizer:
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return trained(models.Unigram(), trainers.UnigramTrainer, split, unk_token="<unk>")


def words() -> Tokenizer:
    model = models.WordLevel(unk_token="<unk>")
    return trained(model, trainers.WordLevelTrainer, pre_tokenizers.Whitespace())


KINDS: dict[str, tuple[Callable[[], Tokenizer], str, dict[str, Any]]] = {
    "WordPiece": (wordpiece, "BertForSequenceClassification", {}),
    "BPE of bytes": (of_bytes, "RobertaForSequenceClassification", {}),
    "BPE with ends of words": (with_ends, "DistilBertForSequenceClassification", {}),
    "BPE that falls to bytes": (
        falling_to_bytes,
        "LlamaForSequenceClassification",
        {"num_key_value_heads": 2, "pad_token": "<last>"},
    ),
    "BPE, padding behind": (
        of_bytes,
        "ModernBertForSequenceClassification",
        {"reference_compile": False, "pad_token": "<end>"},
    ),
    "Unigram": (
        unigram,
        "XLMRobertaForSequenceClassification",
        {"tokenizer_class": "XLMRobertaTokenizer"},
    ),
    "words": (words, "ElectraForSequenceClassification", {"embedding_size": 16}),
}


def made(folder: Path, name: str = "WordPiece") -> Path:
    """A checkpoint as transformers writes it."""
    from transformers import PreTrainedTokenizerFast

    make, cls, more = KINDS[name]
    pad = more.get("pad_token", "<pad>")
    tokenizer = make()
    tokenizer.add_special_tokens([AddedToken(pad, special=True)])
    how = {role: f"<{role}>" for role in ("unk", "mask")} | {"bos": "<s>", "eos": "</s>"}
    tokens = {f"{role}_token": token for role, token in how.items()}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, model_max_length=24, **tokens
    )
    fast.save_pretrained(folder)
    if "tokenizer_class" in more:
        said = json.loads((folder / "tokenizer_config.json").read_text())
        said["tokenizer_class"] = more["tokenizer_class"]
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
    extra = {k: v for k, v in more.items() if k not in ("pad_token", "tokenizer_class")}
    # Rows that belong to no token, as libraries leave them.
    sizes = {"vocab_size": len(fast) + 3, "pad_token_id": fast.pad_token_id}
    config = {**TEXT, "max_position_embeddings": 64, **sizes, **extra}
    if cls.startswith("ModernBert"):
        config |= {"cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2}
    transformers_model(cls, config).save_pretrained(folder)
    return folder


def table(folder: Path, texts: list[str], name: str = "texts") -> str:
    path = folder / f"{name}.jsonl"
    rows = [json.dumps({"text": text, "label": at % 3}) + "\n" for at, text in enumerate(texts)]
    path.write_text("".join(rows))
    return str(path)


def stock(folder: Path) -> tuple[Callable[[str], list[str]], Callable[[str], torch.Tensor], Any]:
    """The tokens and the logits of a text, by transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    for tensor in model.parameters():  # sums depend on where tensors of a file lie in memory
        tensor.data = tensor.data.clone()

    def logits(text: str) -> torch.Tensor:
        ids = tokenizer([text, "ba"], padding=True, return_tensors="pt")
        inputs = {name: ids[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            return model(**inputs).logits[0]

    return lambda text: tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"]), logits, model


@pytest.mark.parametrize("name", KINDS)
def test_what_stays_is_answered_as_before(name: str, tmp_path: Path) -> None:
    source = made(tmp_path / "source", name)
    done = hs.prune(source, vocabulary=table(tmp_path, SEEN), out=f"{tmp_path}/small/")
    split, logits, model = stock(source)
    split_after, logits_after, after = stock(done.path)
    kept = {*after_vocabulary(done.path)}
    rows = after.get_input_embeddings().num_embeddings
    assert rows == len(kept) == done.vocabulary.tokens[1]
    assert rows < model.get_input_embeddings().num_embeddings == done.vocabulary.tokens[0]
    assert {token for text in SEEN for token in split(text)} <= kept
    same = [text for text in TEXTS if {*split(text)} <= kept]
    assert {*SEEN} <= {*same} < {*TEXTS}
    for text in same:
        assert split_after(text) == split(text)
    for text in same[:60]:
        # Sums may end otherwise where tensors lie elsewhere in memory.
        torch.testing.assert_close(logits_after(text), logits(text), rtol=0, atol=1e-5)
    for text in NEW:
        assert (split_after(text) == split(text)) == ({*split(text)} <= kept)
    few = table(tmp_path, same[:60], "same")
    ours = [[*hs.predict(path, data=few, engine="torch")] for path in (source, done.path)]
    assert len(ours[0]) == 60
    for before, row in zip(*ours, strict=True):
        assert row["label"] == before["label"]
        assert dict(row["top"]) == pytest.approx(dict(before["top"]), abs=1e-6)


def after_vocabulary(folder: Path) -> dict[str, int]:
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(folder).get_vocab())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["WordPiece", "Unigram"])
def test_the_most_frequent_tokens_of_several_sets(name: str, tmp_path: Path) -> None:
    """Counted again from transformers' tokens; what lost a token is what is split otherwise."""
    source = made(tmp_path / "source", name)
    sets = f"{table(tmp_path, SEEN)},{table(tmp_path, NEW, 'new')}"
    done = hs.prune(source, vocabulary=sets, keep_tokens=150, out=f"{tmp_path}/small/")
    split, split_after = stock(source)[0], stock(done.path)[0]
    texts, ids = [*SEEN, *NEW], after_vocabulary(source)
    counts: dict[str, int] = {}
    for text in texts:
        for token in split(text):
            counts[token] = counts.get(token, 0) + 1
    often = sorted(counts, key=lambda token: (-counts[token], ids[token]))[:150]
    kept = after_vocabulary(done.path)
    assert {*often} <= {*kept}
    few = {t for t in {*kept} - {*often} if len(t.removeprefix("##")) > 1 and ids[t] > 7}
    assert len(few) < 3  # beside characters and roles
    order = sorted(kept, key=lambda token: kept[token])
    assert order == sorted(kept, key=lambda token: ids[token])
    changed = [text for text in texts if split(text) != split_after(text)]
    assert 0 < len(changed) == done.vocabulary.changed < done.vocabulary.texts == len(texts)
    alone = [
        text
        for at, text in enumerate(SEEN)
        if not {*split(text)}
        <= {*kept} & {t for i, other in enumerate(texts) if i != at for t in split(other)}
    ]
    assert done.vocabulary.rare == len(alone) / len(SEEN)


@exports
@onnx_writes
@pytest.mark.slow
def test_heads_too_then_a_hydra_a_graph_and_the_history(tmp_path: Path) -> None:
    source, data = made(tmp_path / "source"), table(tmp_path, TEXTS[:90])
    few, cut = table(tmp_path, SEEN, "few"), {"method": "random", "keep": 2}
    members = []
    for seed in (0, 1):
        at_once = hs.prune(source, vocabulary=few, seed=seed, **cut, out=f"{tmp_path}/a{seed}/")
        done = hs.prune(source, vocabulary=few, seed=seed, out=tmp_path / f"v{seed}.safetensors")
        assert (done.manifest.kind, done.removed) == ("backbone", 0)
        apart = hs.prune(done.path, seed=seed, **cut, out=tmp_path / f"m{seed}.safetensors")
        assert apart.manifest.weights_sha256 == at_once.manifest.weights_sha256
        assert apart.manifest.model == at_once.manifest.model
        members.append(apart.path)
    again = remade(members[0], [source, Path(few)], tmp_path / "again")
    assert again.read_bytes() == members[0].read_bytes()
    assert all(check.holds is not False for check in hs.verify(members[0]).checks)
    hydra = hs.fuse(members, out=tmp_path / "hydra.safetensors", check=data, tolerance=1)
    files = [export(path, out=tmp_path / f"{path.stem}.onnx").path for path in (source, *members)]
    whole, *smaller = (file.stat().st_size for file in files)
    before, after = done.vocabulary.tokens
    assert whole - max(smaller) > 4 * 32 * (before - after)
    live = hs.predict(members[0], data=few, engine="torch")
    for mine, theirs in zip(hs.predict(files[1], data=few), live, strict=True):
        assert mine["probability"] == pytest.approx(theirs["probability"], abs=1e-5)
    assert hs.predict(hydra.path, data=few, engine="torch").rows == len(SEEN)


def test_older_files_of_words_do_not_speak_beside_the_new_one(tmp_path: Path) -> None:
    """Stock loading would prefer neither: tokenizer.json is all there is."""
    source = made(tmp_path / "source")
    vocab = sorted(after_vocabulary(source).items(), key=lambda item: item[1])
    names = {
        "<s>": "[CLS]",
        "</s>": "[SEP]",
        "<pad>": "[PAD]",
        "<unk>": "[UNK]",
        "<mask>": "[MASK]",
    }
    for path in source.glob("*token*"):
        path.unlink()
    (source / "vocab.txt").write_text("\n".join(names.get(token, token) for token, _ in vocab))
    done = hs.prune(source, vocabulary=table(tmp_path, SEEN), out=f"{tmp_path}/small/")
    names = sorted(path.name for path in done.path.iterdir())
    assert {"tokenizer.json", "vocab.txt"} & {*names} == {"tokenizer.json"}
    split, logits, _ = stock(source)
    split_after, logits_after, _ = stock(done.path)
    for text in SEEN:
        assert split_after(text) == split(text)
        # Sums may end otherwise where tensors lie elsewhere in memory.
        torch.testing.assert_close(logits_after(text), logits(text), rtol=0, atol=1e-5)


def test_what_has_no_vocabulary_and_what_is_no_text(
    tiny: MAKE, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = table(tmp_path, SEEN)
    with pytest.raises(SurgeryError, match="reads no texts, so it has no vocabulary to trim"):
        hs.prune(tiny(), vocabulary=texts, out=tmp_path / "x.safetensors")
    source = made(tmp_path / "source")
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 8, 8), np.uint8))
    with pytest.raises(DataError, match="holds no texts"):
        hs.prune(source, vocabulary=tmp_path / "images.npz", out=tmp_path / "x.safetensors")
    for words, said in (
        (["--keep-tokens", "9"], "--keep-tokens requires --vocabulary"),
        (["--vocabulary", texts, "--keep-tokens", "0"], "--keep-tokens 0: expected N|all-seen"),
        ([], "--vocabulary D"),
        (["--vocabulary", f"{texts},"], "--vocabulary: a name in the list is empty"),
    ):
        assert run(["prune", str(source), *words, "-o", str(tmp_path / "x.safetensors")]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_positions_that_count_from_padding_stay(tmp_path: Path) -> None:
    """RoBERTa's first position is behind the id of its padding."""
    source = made(tmp_path / "source", "Unigram")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pad_token_id": 30}))
    with pytest.raises(SurgeryError, match="positions count from its pad token's id"):
        hs.prune(source, vocabulary=table(tmp_path, ["ba"]), out=f"{tmp_path}/small/")


@pytest.mark.parametrize("kind", ["WordPiece", "words"])
def test_a_tokenizer_without_an_unknown_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The library raises an exception without a kind of its own for a word that it does not know."""
    place = made(tmp_path / "m", kind)
    tokenizer = json.loads((place / "tokenizer.json").read_text())
    tokenizer["model"]["unk_token"] = "gone"
    (place / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = ["prune", str(place), "--vocabulary", table(tmp_path, ["ba \u6771\u4eac"])]
    assert run([*line, "-o", str(tmp_path / "out.safetensors")]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "the checkpoint's tokenizer cannot read these texts" in said
    assert not (tmp_path / "out.safetensors").exists()
