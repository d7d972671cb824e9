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
from exporting import exports, fed, onnx_writes
from taggers import TAGGERS
from tiny_families import HEADS, WORDS, Family
from tiny_members import RAGGED, member, members_of

import hydrasurgeon as hs
from hydrasurgeon.stages.export import export

pytestmark = [
    pytest.mark.usefixtures("own_module_cache"),
    # Of tokenizers that do not mark how words go on: there a word is what stands between spaces.
    pytest.mark.filterwarnings("ignore:Tokenizer does not support real words"),
]

TAGS = ("O", "B-A", "I-A", "B-C", "I-C")
PIECES = ("good", "bad", "film", "plot", "the", "not", "##s", "##ly", ",", ".")
Spans = list[list[tuple[int, int, str]]]


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


NAMES = ("BERT", "RoBERTa", "ELECTRA", "MPNet", "ModernBERT", "DeBERTa-v3")
ALL = [
    pytest.param(replace(TAGGERS[name], tags=TAGS), None if number else word_pieces, id=name)
    for number, name in enumerate(NAMES)
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
    return folder


def texts(pieces: Any) -> list[str]:
    rng = np.random.default_rng(0)
    if pieces is None:
        return [" ".join(rng.choice(WORDS, size=size)) for size in (1, 3, 5, 7, 9, 9, 9)]
    return [
        "films, goodly plot. The bads",
        "plot",
        "not the film,plots;  badly goods?",
        "the plot ,good. film\tthe nots bad.",
        "x films the y, bad",
    ]


def ours(path: Path, samples: list[str]) -> Spans:
    """What `predict` finds."""
    rows = hs.predict(path, text=samples, device="cpu")
    return [
        [(each["start"], each["end"], each["label"]) for each in row["entities"]] for row in rows
    ]


def theirs(classify: Any, samples: list[str]) -> Spans:
    return [
        [(each["start"], each["end"], each["entity_group"]) for each in classify(sample)]
        for sample in samples
    ]


def pipeline(folder: Path, *, trust: bool = False, **more: Any) -> Any:
    import transformers

    return transformers.pipeline(
        "token-classification",
        model=str(folder),
        aggregation_strategy="first",
        trust_remote_code=trust,
        device="cpu",
        **more,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "pieces"), ALL)
def test_pipelines_find_the_same_spans(
    family: Family, pieces: Any, source: Path, tmp_path: Path
) -> None:
    samples = texts(pieces)
    whole = hs.prune(source, method="magnitude", keep=HEADS, out=f"{tmp_path / 'whole'}/").path
    even = hs.prune(
        source, method="magnitude", keep=HEADS, neurons=0.5, even=True, out=f"{tmp_path / 'even'}/"
    ).path
    cut = member(source, family, RAGGED, f"{tmp_path / 'cut'}/")
    parts = members_of(source, family, tmp_path)
    hydra = hs.fuse(parts, out=f"{tmp_path / 'hydra'}/").path
    found = {}
    for folder in (whole, even, cut, hydra):
        trust = folder in (cut, hydra)
        assert ("auto_map" in json.loads((folder / "config.json").read_text())) == trust
        found[folder.name] = ours(folder, samples)
        assert theirs(pipeline(folder, trust=trust), samples) == found[folder.name]
    assert sum(len(spans) for row in found.values() for spans in row) > 20
    assert found["whole"] != found["cut"]
    stock = export(even, format="stock", out=f"{tmp_path / 'stock'}/").path
    assert theirs(pipeline(stock), samples) == found["even"]


@pytest.mark.slow
@exports
@onnx_writes
@pytest.mark.parametrize(("family", "pieces"), ALL)
def test_graphs_find_the_same_spans(
    family: Family, pieces: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipeline whose model answers with what the graph says."""
    import onnxruntime
    import transformers

    samples = texts(pieces)
    parts = members_of(source, family, tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors").path
    folder = export(hydra, out=f"{tmp_path / 'graph'}/").path
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    names = [each.name for each in session.get_inputs()]

    def answer(**inputs: Any) -> dict[str, torch.Tensor]:
        inputs.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
        (logits,) = session.run(["logits"], {name: fed(inputs)[name] for name in names})
        return {"logits": torch.from_numpy(logits)}

    auto = transformers.AutoModelForTokenClassification
    model = auto.from_config(transformers.AutoConfig.from_pretrained(folder))
    monkeypatch.setattr(model, "forward", answer)
    classify = transformers.pipeline(
        "token-classification",
        model=model,
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        aggregation_strategy="first",
        device="cpu",
    )
    spans = theirs(classify, samples)
    assert spans == ours(hydra, samples)
    assert sum(map(len, spans)) > 3
