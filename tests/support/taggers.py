"""Tiny token classifiers of every family that has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_families import Family, deberta, hf, modernbert

from hydrasurgeon.anatomy.word_logits import NOTHING, WORDS

COUNT = 4
"""Number of words that inputs point at in each text."""


@dataclass(frozen=True)
class Tagger(Family):
    """A token classifier; its library answers at the first words of each text."""

    tags: tuple[str, ...] = ("O", "B-A", "I-A")

    def write(self, folder: Path) -> None:
        super().write(folder)
        config = folder / "config.json"
        names = {"id2label": {str(at): tag for at, tag in enumerate(self.tags)}}
        config.write_text(json.dumps(json.loads(config.read_text()) | names))

    def inputs(self, rows: int = 5, dtype: torch.dtype = torch.float32) -> Any:
        inputs = super().inputs(rows, dtype)
        return {**inputs, WORDS: places(inputs)}


def places(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return where the first words stand: at every token but the first and the last."""
    length = inputs["input_ids"].shape[1]
    rows = []
    for row, count in enumerate(inputs["attention_mask"].sum(dim=1).tolist()):
        at = [row * length + token for token in range(1, count - 1)][:COUNT]
        rows.append(at + [-1] * (COUNT - len(at)))
    return torch.tensor(rows)


def at_words(inputs: dict[str, torch.Tensor], logits: torch.Tensor) -> torch.Tensor:
    """Return the logits of those words, one by one."""
    out = torch.full((len(logits), COUNT, logits.shape[-1]), NOTHING, dtype=logits.dtype)
    for row, words in enumerate(places(inputs).tolist()):
        for word, at in enumerate(words):
            if at >= 0:
                out[row, word] = logits[row, at % logits.shape[1]]
    return out


def tagger(name: str, family: Family) -> Tagger:
    """Return a token classifier of a family whose library answers for tokens."""

    def stock(folder: Path) -> Any:
        run = family.stock(folder)
        return lambda inputs: at_words(
            inputs, run({key: value for key, value in inputs.items() if key != WORDS})
        )

    return Tagger(name, "text", family.make, stock)


TAGGERS = {
    name: tagger(f"{name} for tokens", family)
    for name, family in {
        "BERT": hf("BERT", "text", "BertForTokenClassification"),
        "RoBERTa": hf("RoBERTa", "text", "RobertaForTokenClassification", type_vocab_size=1),
        "XLM-RoBERTa": hf("X", "text", "XLMRobertaForTokenClassification", type_vocab_size=1),
        "CamemBERT": hf("C", "text", "CamembertForTokenClassification", type_vocab_size=1),
        "DistilBERT": hf(
            "D",
            "text",
            "DistilBertForTokenClassification",
            **{"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
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
