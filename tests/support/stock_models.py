"""Tiny calibrated models that every library has a class for: texts whose labels were drawn by what the
model says, only surer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tiny_families
from row_files import write_lines
from tiny_families import WORDS, Family

import hydrasurgeon as hs

TRUE_TEMPERATURE, TRUE_BIAS = 0.2, 0.4
"""Temperature and bias that labels are drawn by."""


def name_tokenizer(place: Path) -> None:
    """Add the tokenizer's class and the types of tokens, which files on the hub have and older
    transformers read.
    """
    config = json.loads(place.read_text())
    names = ["input_ids", "token_type_ids", "attention_mask"]
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
    place.write_text(json.dumps(config))


def texts(rows: int, *, pairs: bool = False, seed: int = 0) -> list[dict[str, str]]:
    """Draw texts of some words, or pairs of such texts."""
    rng = np.random.default_rng(seed)
    names = ("text", "text_pair")[: 1 + pairs]
    return [
        {name: " ".join(rng.choice(WORDS, size=rng.integers(1, 7))) for name in names}
        for _ in range(rows)
    ]


def labelled(model: Path, place: Path, samples: list[dict[str, str]]) -> str:
    """Write the samples with labels that a surer model would give."""
    write_lines(place, samples)
    rng = np.random.default_rng(5)
    lines = []
    rows = hs.predict(model, data=str(place), device="cpu", top=tiny_families.CLASSES)
    for sample, row in zip(samples, rows, strict=True):
        if "logit" in row:
            chance = 1 / (1 + np.exp(-(row["logit"] / TRUE_TEMPERATURE + TRUE_BIAS)))
            label = int(rng.random() < chance)
        else:
            chances = np.array([p for _, p in row["top"]]) ** (1 / TRUE_TEMPERATURE)
            label = int(row["top"][rng.choice(len(chances), p=chances / chances.sum())][0])
        lines.append({**sample, "label": label})
    return write_lines(place, lines)


def ready(
    family: Family,
    folder: Path,
    *,
    classes: int = 3,
    pairs: bool = False,
    neurons: float | None = 0.5,
) -> tuple[Path, str]:
    """Return a calibrated model with half of its neurons, and its data."""
    before = tiny_families.CLASSES
    tiny_families.CLASSES = classes
    try:
        family.write(folder / "source")
        path = folder / "source"
        if family.is_text:
            name_tokenizer(path / "tokenizer_config.json")
        if neurons is not None:
            path = hs.prune(
                path, method="magnitude", neurons=neurons, out=folder / "m.safetensors"
            ).path
        data = labelled(path, folder / "data.jsonl", texts(400, pairs=pairs))
        calibrated = hs.calibrate(
            path, data=data, ood_score="msp", out=folder / "ready.safetensors"
        )
    finally:
        tiny_families.CLASSES = before
    return calibrated.path, data
