"""Token classifiers of every family that has them: words of any text, by the library's own logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from taggers import TAGGERS, Tagger, at_words
from tiny_families import HEADS
from tiny_members import KEPTS, logits, member, members_of

import hydrasurgeon as hs
from hydrasurgeon.anatomy.word_logits import NOTHING
from hydrasurgeon.checkpoints.checkpoint import open_checkpoint

ALL = [pytest.param(family, id=name) for name, family in TAGGERS.items()]


@pytest.fixture
def source(family: Tagger, tmp_path: Path) -> Path:
    family.write(tmp_path / "source")
    return tmp_path / "source"


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL)
def test_directories_load_as_the_librarys_own(family: Tagger, source: Path, tmp_path: Path) -> None:
    """The whole model without code of ours, a cut one and a hydra with the file beside it."""
    import transformers

    record = open_checkpoint(source).manifest.model
    assert (record.task, record.labels) == ("token_classification", family.tags)
    auto = transformers.AutoModelForTokenClassification
    inputs = family.inputs()
    whole = hs.prune(source, method="magnitude", keep=HEADS, out=f"{tmp_path / 'whole'}/").path
    cut = member(source, family, KEPTS[1], f"{tmp_path / 'cut'}/")
    parts = members_of(source, family, tmp_path)
    hydra = hs.fuse(parts, out=f"{tmp_path / 'hydra'}/").path
    for folder, trust in ((whole, False), (cut, True), (hydra, True)):
        model = auto.from_pretrained(folder, trust_remote_code=trust).eval()
        with torch.inference_mode():
            found = model(**{key: inputs[key] for key in ("input_ids", "attention_mask")}).logits
        expected = logits(folder, inputs)
        probs = expected.softmax(dim=-1).mean(dim=1)
        there = expected[:, 0, :, 0] != NOTHING
        ours = at_words(inputs, found).softmax(dim=-1)
        torch.testing.assert_close(ours[there], probs[there], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [TAGGERS[name] for name in ("BERT", "ModernBERT", "DeBERTa-v3")],
    ids=lambda family: family.name,
)
def test_engines_answer_for_words(
    family: Tagger, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
