"""The columns that samples are made of, and what a reader of tables gives."""

from __future__ import annotations

from typing import Any

IMAGES = ("image", "img")
"""Columns that may hold images, the first that is there."""
TEXTS = ("text", "sentence")
"""Columns that may hold texts."""
CAPTIONS = ("caption", "text")
"""Columns that may hold the captions of images."""
LABELS = ("label", "labels", "fine_label")
"""Columns that may hold labels."""
PAIRS = (
    "text_pair",
    "text_b",
    "text2",
    "sentence1",
    "sentence2",
    "sentence_b",
    "premise",
    "hypothesis",
    "query",
    "passage",
    "question",
    "question1",
    "question2",
    "document",
    "context",
)
"""Columns that hold one of two texts, which models read together."""
COLUMNS = frozenset(IMAGES + TEXTS + CAPTIONS + LABELS)
"""All columns that are read."""

Read = tuple[dict[str, list[Any]], dict[str, tuple[str, ...]], tuple[str, ...]]
"""Values of these columns by name, names of the classes of those that have them, and the names of all columns."""
