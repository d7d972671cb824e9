"""Pairs of texts through the whole of it, against the stock tokenizer and the stock model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from row_files import write_lines
from tiny_families import FAMILIES, WORDS

import hydrasurgeon as hs
from hydrasurgeon.data import Batches, open_data

TYPED = ("BERT", "ELECTRA", "DeBERTa-v2 with projected distances")
"""Families whose token types tell the two texts apart."""


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of texts of all lengths; some are longer together than a model reads."""
    random = np.random.default_rng(seed)

    def text() -> str:
        return " ".join(random.choice(WORDS, size=random.integers(1, 20)))

    return [
        {"text": text(), "text_pair": text(), "label": i % 3, "group": f"q{i // 4}"}
        for i in range(count)
    ]


def written(folder: Path, count: int = 24, seed: int = 0) -> str:
    path = folder / f"pairs-{seed}.jsonl"
    return write_lines(path, rows(count, seed))


def stock_logits(folder: Path, pairs: list[dict[str, Any]]) -> torch.Tensor:
    """What transformers makes of them, one batch."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    loader = transformers.AutoModelForSequenceClassification
    model = loader.from_pretrained(folder, trust_remote_code=True).eval()
    first, second = [row["text"] for row in pairs], [row["text_pair"] for row in pairs]
    read = tokenizer(
        first, second, padding=True, truncation=True, max_length=24, return_tensors="pt"
    )
    if "token_type_ids" in read and getattr(model.config, "type_vocab_size", 0) < 2:
        del read["token_type_ids"]
    with torch.no_grad():
        logits: torch.Tensor = model(**read).logits
    return logits


def our_logits(model: Any, spec: str) -> torch.Tensor:
    (batch,) = Batches(open_data(spec), model.transform, batch_size=64)
    with torch.no_grad():
        logits: torch.Tensor = model(batch.inputs)
    return logits


def made(folder: Path, name: str = "BERT") -> None:
    """A checkpoint; its tokenizer tells the two texts apart where the family's own does."""
    FAMILIES[name].write(folder)
    if name in TYPED:
        place = folder / "tokenizer_config.json"
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        place.write_text(json.dumps(json.loads(place.read_text()) | names))


@pytest.mark.parametrize(
    "name",
    ["BERT", "ELECTRA", "RoBERTa", "DistilBERT", "MPNet", "ModernBERT", "DeBERTa-v3", TYPED[-1]],
)
def test_pairs_are_read_as_transformers_reads_them(tmp_path: Path, name: str) -> None:
    made(tmp_path / "m", name)
    model = hs.load(tmp_path / "m")
    spec, pairs = written(tmp_path), rows(24)
    (batch,) = Batches(open_data(spec), model.transform, batch_size=64)
    assert ("token_type_ids" in batch.inputs) == (name in TYPED)
    assert batch.inputs["input_ids"].shape[1] == 24  # cut
    expected = stock_logits(tmp_path / "m", pairs)
    torch.testing.assert_close(our_logits(model, spec)[:, 0], expected, atol=1e-5, rtol=1e-5)
    answers = model.predict([(row["text"], row["text_pair"]) for row in pairs])
    assert [row["label"] for row in answers] == expected.argmax(dim=1).tolist()
    if name in TYPED:  # the types count
        untyped = {key: value for key, value in batch.inputs.items() if key != "token_type_ids"}
        assert (model(untyped)[:, 0] - expected).abs().max() > 0.05


def tuned(folder: Path, spec: str, *, members: int = 1, **options: Any) -> list[Path]:
    """Pruned members of a BERT, tuned on pairs."""
    made(folder / "m")
    outs = []
    for seed in range(members):
        hs.prune(folder / "m", method="random", keep=2, seed=seed, out=folder / f"cut-{seed}")
        out = folder / f"tuned-{seed}"
        hs.finetune(
            folder / f"cut-{seed}",
            data=spec,
            recipe="text",
            set={"epochs": "1"},
            out=out,
            **options,
        )
        outs.append(out.with_suffix(".safetensors"))
    return outs


def test_members_and_hydra_answer_as_stock_transformers(tmp_path: Path) -> None:
    spec, pairs = written(tmp_path), rows(24)
    members = tuned(tmp_path, spec, members=2, val=spec)
    hs.fuse(members, out=f"{tmp_path / 'hydra'}/", mlp="separate", check=spec)
    live = [hs.load(member) for member in members]
    alone = [our_logits(model, spec) for model in live]
    hydra = hs.load(tmp_path / "hydra")
    torch.testing.assert_close(
        our_logits(hydra, spec), torch.cat(alone, dim=1), atol=1e-5, rtol=1e-5
    )
    assert hydra.manifest.model.inputs == "text_pair"
    hs.prune(members[0], method="random", keep=1, out=f"{tmp_path / 'dir'}/")
    for place in ("hydra", "dir"):
        ours = our_logits(hs.load(tmp_path / place), spec).softmax(dim=-1).mean(dim=1)
        stock = stock_logits(tmp_path / place, pairs).softmax(dim=-1)
        torch.testing.assert_close(stock, ours, atol=1e-5, rtol=1e-5)
