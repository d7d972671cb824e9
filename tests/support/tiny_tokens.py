"""A tiny token classifier as its library writes it, and what the library itself finds with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny_families import FAMILIES, hf

TAGS = ("O", "B-A", "I-A")
_MADE = hf("BERT", "text", "BertForTokenClassification")
TAGGER = replace(FAMILIES["BERT"], make=_MADE.make, stock=_MADE.stock)
TEXTS = [
    "good bad dull fine film plot very not a the",
    "the  film, not  good",
    "plot",
    "very very fine a not dull film the bad plot good",
]


def write(folder: Path) -> Path:
    """Write a model of random weights that finds entities of kind A in most texts."""
    TAGGER.write(folder)
    config = folder / "config.json"
    named = {"id2label": {str(at): tag for at, tag in enumerate(TAGS)}}
    config.write_text(json.dumps(json.loads(config.read_text()) | named))
    model, tokenizer = _loaded(folder)
    with torch.inference_mode():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1] for text in TEXTS]
        mean = torch.cat(logits).mean(dim=0)
        # No tag is more frequent than the others because of the bias alone.
        model.classifier.bias -= mean
        model.classifier.weight *= 3
        model.classifier.bias *= 3
    model.save_pretrained(folder)
    return folder


def _loaded(folder: Path) -> Any:
    import transformers

    model = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def library_entities(folder: Path, text: str) -> list[dict[str, Any]]:
    """Return the entities by the library's own logits of words, one after another."""
    model, tokenizer = _loaded(folder)
    encoded = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    spans = encoded.pop("offset_mapping")[0].tolist()
    with torch.inference_mode():
        probs = model(**encoded).logits[0].double().softmax(dim=-1)
    entities: list[dict[str, Any]] = []
    before = 0
    for (start, end), p in zip(spans[1:-1], probs[1:-1], strict=True):
        chance, tag = float(p.max()), int(p.argmax())
        if tag == 1 or (tag == 2 and not before):
            entities.append({"start": start, "end": end, "probability": chance})
        elif tag == 2:
            entities[-1]["end"] = end
            entities[-1]["probability"] *= chance
        before = tag
    return [{**entity, "text": text[entity["start"] : entity["end"]]} for entity in entities]
