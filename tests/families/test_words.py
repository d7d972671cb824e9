"""Token classifiers of every family that has them: words of any text, by the library's own logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import FAMILIES, HEADS, LAYERS, Family, deberta, hf, modernbert
from tiny_members import KEPTS, RAGGED, logits, member, members_of, tuned_of

import hydrasurgeon as hs
from hydrasurgeon.anatomy.hooks import ablated
from hydrasurgeon.anatomy.word_logits import NOTHING, WORDS
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint
from hydrasurgeon.heads import all_heads

TAGS = ("O", "B-A", "I-A")
OF_WORDS = {
    name: replace(FAMILIES[name], make=made.make, stock=made.stock)
    for name, made in {
        "BERT": hf("BERT", "text", "BertForTokenClassification"),
        "RoBERTa": hf("RoBERTa", "text", "RobertaForTokenClassification", type_vocab_size=1),
        "XLM-RoBERTa": hf("X", "text", "XLMRobertaForTokenClassification", type_vocab_size=1),
        "CamemBERT": hf("C", "text", "CamembertForTokenClassification", type_vocab_size=1),
        "DistilBERT": hf(
            "D",
            "text",
            "DistilBertForTokenClassification",
            **{"dim": 32, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 48},
        ),
        "ELECTRA": hf("E", "text", "ElectraForTokenClassification", embedding_size=16),
        "MPNet": hf("M", "text", "MPNetForTokenClassification"),
        "ModernBERT": modernbert("ModernBERT", "Token"),
        "DeBERTa-v3": deberta(
            "DeBERTa-v3",
            "Token",
            share_att_key=True,
            norm_rel_ebd="layer_norm",
            position_buckets=6,
            type_vocab_size=0,
        ),
    }.items()
}
FEW = ("BERT", "ModernBERT")
ALL = [
    pytest.param(family, id=name, marks=() if name in FEW else pytest.mark.slow)
    for name, family in OF_WORDS.items()
]


@pytest.fixture
def source(family: Family, tmp_path: Path) -> Path:
    family.write(tmp_path / "source")
    config = tmp_path / "source" / "config.json"
    said = json.loads(config.read_text())
    said["id2label"] = {str(i): tag for i, tag in enumerate(TAGS)}
    config.write_text(json.dumps(said))
    return tmp_path / "source"


def places(inputs: dict[str, Any]) -> torch.Tensor:
    """Where up to four words of each text stand: every token but the first and the last."""
    length = inputs["input_ids"].shape[1]
    rows = []
    for row, count in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        at = [row * length + token for token in range(1, count - 1)][:4]
        rows.append(at + [-1] * (4 - len(at)))
    return torch.tensor(rows)


def said(inputs: dict[str, Any], stock: torch.Tensor) -> torch.Tensor:
    """The library's logits of those words, one by one."""
    out = torch.full((len(stock), 4, stock.shape[-1]), NOTHING, dtype=stock.dtype)
    for row, words in enumerate(places(inputs).tolist()):
        for word, at in enumerate(words):
            if at >= 0:
                out[row, word] = stock[row, at % stock.shape[1]]
    return out


@pytest.mark.parametrize("family", ALL)
def test_words_say_what_their_tokens_say(family: Family, source: Path) -> None:
    opened = open_checkpoint(source).manifest.model
    assert (opened.task, opened.num_classes, opened.labels) == ("token_classification", 3, TAGS)
    inputs = family.inputs()
    expected = said(inputs, family.stock(source)(inputs))
    found = logits(source, {**inputs, WORDS: places(inputs)})
    assert found.shape == (5, 1, 4, 3)
    assert expected[0].std() > 1e-2
    torch.testing.assert_close(found[:, 0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ALL)
def test_pruned_equals_masked(family: Family, source: Path, tmp_path: Path) -> None:
    pruned = member(source, family, RAGGED, tmp_path / "m.safetensors")
    model = hs.load(source, device="cpu", dtype="float64")
    inputs = family.inputs()
    inputs = {**inputs, WORDS: places(inputs)}
    full = family.in_each_tower(((0, 1, 2, 3),) * LAYERS)
    gone = [h for h in all_heads(full) if h.number not in RAGGED[h.layer]]
    with torch.inference_mode(), ablated(model.anatomy.sites, gone):
        expected = model(inputs)
    assert (model(inputs) - expected).abs().max() > 1e-2
    torch.testing.assert_close(logits(pruned, inputs, "float64"), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", ALL)
def test_fused_equals_members(family: Family, source: Path, tmp_path: Path) -> None:
    parts = members_of(source, family, tmp_path)
    tuned = tuned_of(parts, tmp_path)
    inputs = family.inputs()
    inputs = {**inputs, WORDS: places(inputs)}
    for members, mlp in ((parts, "auto"), (tuned, "separate")):
        out = tmp_path / f"{mlp}.safetensors"
        options = {} if mlp == "auto" else {"mlp": mlp}
        hydra = hs.fuse(members, out=out, **options).path
        expected = torch.cat([logits(part, inputs, "float64") for part in members], dim=1)
        assert expected.shape == (5, 3, 4, 3)
        torch.testing.assert_close(logits(hydra, inputs, "float64"), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL)
def test_directories_load_as_the_librarys_own(family: Family, source: Path, tmp_path: Path) -> None:
    """The whole model without code of ours, a cut one and a hydra with the file beside it."""
    import transformers

    auto = transformers.AutoModelForTokenClassification
    inputs = family.inputs()
    whole = hs.prune(source, method="magnitude", keep=HEADS, out=f"{tmp_path / 'whole'}/").path
    cut = member(source, family, KEPTS[1], f"{tmp_path / 'cut'}/")
    parts = members_of(source, family, tmp_path)
    hydra = hs.fuse(parts, out=f"{tmp_path / 'hydra'}/").path
    for folder, trust in ((whole, False), (cut, True), (hydra, True)):
        model = auto.from_pretrained(folder, trust_remote_code=trust).eval()
        with torch.inference_mode():
            found = model(**inputs).logits
        expected = logits(folder, {**inputs, WORDS: places(inputs)})
        probs = expected.softmax(dim=-1).mean(dim=1)
        there = expected[:, 0, :, 0] != NOTHING
        ours = said(inputs, found).softmax(dim=-1)
        torch.testing.assert_close(ours[there], probs[there], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [OF_WORDS[name] for name in (*FEW, "DeBERTa-v3")], ids=lambda family: family.name
)
def test_engines_answer_for_words(
    family: Family, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs answer for tokens; what comes back is of words, and batches of other widths join."""
    from hydrasurgeon.data.sources import in_memory
    from hydrasurgeon.engines import engine_of
    from hydrasurgeon.options.shared import Run
    from hydrasurgeon.runtime.answering import collected

    monkeypatch.setenv("HYDRASURGEON_CACHE", str(tmp_path / "cache"))
    parts = members_of(source, family, tmp_path)
    hydra = hs.fuse(parts, out=tmp_path / "hydra.safetensors").path
    texts = ["good film", "a very very bad film , not good", "plot", "fine a the not good"]
    samples = in_memory(texts, "text")
    for path, members in ((source, 1), (hydra, 3)):
        opened = open_checkpoint(path)
        by_torch, by_onnx = (
            collected(
                [engine_of(opened, engine=engine, device="cpu")],
                samples,
                Run(batch_size=2),
                features=True,
            )
            for engine in ("torch", "onnx")
        )
        assert by_torch.logits.shape == (4, members, 8, 3)
        counts = (by_torch.logits[:, 0] != NOTHING).any(axis=-1).sum(axis=1)
        assert counts.tolist() == [2, 8, 1, 5]
        for found, expected in (
            (by_onnx.logits, by_torch.logits),
            (by_onnx.features, by_torch.features),
        ):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
