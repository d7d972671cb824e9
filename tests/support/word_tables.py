"""Tables of texts of which the first word tells the class, and a tiny body that reads them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from tiny_families import TEXT, WORDS, tokenizer, transformers_model

Row = dict[str, Any]
WORD = [str(word) for word in WORDS[4:]]


def texts(count: int, classes: int, seed: int = 0) -> list[Row]:
    """Return texts of which the first word tells the class."""
    random = np.random.default_rng(seed)
    return [
        {
            "text": f"{WORD[at % classes]} {' '.join(random.choice(WORD, 6))}",
            "label": f"c{at % classes}",
        }
        for at in range(count)
    ]


def write(path: Path, rows: list[Row], **form: Any) -> Path:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding=form.pop("encoding", "utf-8")) as file:
        table = csv.DictWriter(file, [*rows[0]], **form)
        table.writeheader()
        table.writerows(rows)
    return path


def write_body(folder: Path) -> Path:
    """Write a tiny body without a classifier."""
    transformers_model("BertModel", TEXT).save_pretrained(folder)
    tokenizer(folder)
    return folder
