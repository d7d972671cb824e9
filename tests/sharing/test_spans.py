"""Token classifiers in files for other clients: pipelines of transformers find the spans that we find."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import FAMILIES, Family, deberta, hf, modernbert
from tiny_members import KEPTS, RAGGED, member

import hydrasurgeon as hs

pytestmark = [
    pytest.mark.usefixtures("own_module_cache"),
    # Of tokenizers that do not mark how words go on: there a word is what stands between spaces.
    pytest.mark.filterwarnings("ignore:Tokenizer does not support real words"),
]

TAGS = ("O", "B-A", "I-A", "B-C", "I-C")
PIECES = ("good", "bad", "film", "plot", "the", "not", "##s", "##ly", ",", ".")
Spans = list[list[tuple[int, int, str]]]


def of_words(name: str, made: Family) -> Family:
    return replace(FAMILIES[name], make=made.make, stock=made.stock)


def word_pieces(folder: Path) -> None:
    """A tokenizer that splits words, and knows punctuation."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = {"cls": "[CLS]", "pad": "[PAD]", "sep": "[SEP]", "unk": "[UNK]"}
    vocab = {word: at for at, word in enumerate((*names.values(), *PIECES))}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(end, vocab[end]) for end in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokens = {f"{name}_token": token for name, token in names.items()}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=24, **tokens).save_pretrained(
        folder
    )


BERT = of_words("BERT", hf("BERT", "text", "BertForTokenClassification"))
OTHERS = {
    "RoBERTa": hf("RoBERTa", "text", "RobertaForTokenClassification", type_vocab_size=1),
    "ELECTRA": hf("E", "text", "ElectraForTokenClassification", embedding_size=16),
    "MPNet": hf("M", "text", "MPNetForTokenClassification"),
    "ModernBERT": modernbert("ModernBERT", "Token"),
    "DeBERTa-v3": deberta("DeBERTa-v3", "Token", share_att_key=True, norm_rel_ebd="layer_norm"),
}
ALL = [
    pytest.param(BERT, word_pieces, id="BERT"),
    *(
        pytest.param(of_words(name, made), None, id=name, marks=pytest.mark.slow)
        for name, made in OTHERS.items()
    ),
]


@pytest.fixture
def source(
    family: Family, pieces: Callable[[Path], None] | None, monkeypatch: Any, tmp_path: Path
) -> Path:
    monkeypatch.setattr("tiny_families.CLASSES", len(TAGS))
    folder = tmp_path / "source"
    family.write(folder)
    if pieces is not None:
        pieces(folder)
    config = folder / "config.json"
    named = {"id2label": {str(at): tag for at, tag in enumerate(TAGS)}}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    return folder


@pytest.mark.parametrize(("family", "pieces"), ALL[:1])
@pytest.mark.parametrize("kind", ["cut", "hydra"])
def test_saved_again_with_a_loss(
    kind: str, family: Family, pieces: Any, source: Path, tmp_path: Path
) -> None:
    """The library's own class loads what it saved; places labelled −100 count nothing in the loss."""
    import transformers

    if kind == "cut":
        folder = member(source, family, RAGGED, f"{tmp_path / 'cut'}/")
    else:
        parts = [
            member(source, family, rows, tmp_path / f"m{i}.safetensors")
            for i, rows in enumerate(KEPTS)
        ]
        folder = hs.fuse(parts, out=f"{tmp_path / 'hydra'}/").path
    auto = transformers.AutoModelForTokenClassification
    model = auto.from_pretrained(folder, trust_remote_code=True).eval()
    model.save_pretrained(tmp_path / "saved")
    again = auto.from_pretrained(tmp_path / "saved", trust_remote_code=True).eval()
    inputs = family.inputs()
    labels = torch.randint(0, len(TAGS), inputs["input_ids"].shape)
    labels[inputs["attention_mask"] == 0] = -100
    labels[:, 0] = -100
    with torch.inference_mode():
        expected, found = model(**inputs).logits, again(**inputs, labels=labels)
    torch.testing.assert_close(found.logits, expected, rtol=0, atol=0)
    logs = expected.log_softmax(dim=-1)
    one_by_one = [
        -float(logs[row, token, labels[row, token]])
        for row, token in (labels >= 0).nonzero().tolist()
    ]
    assert float(found.loss) == pytest.approx(np.mean(one_by_one), rel=1e-5)
