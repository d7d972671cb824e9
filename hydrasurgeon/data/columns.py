"""The columns that samples are made of, and what a reader of tables gives."""

from __future__ import annotations

from typing import Any

__all__ = ["CAPTIONS", "COLUMNS", "IMAGES", "LABELS", "TEXTS", "Read"]

IMAGES, TEXTS, CAPTIONS = ("image", "img"), ("text", "sentence"), ("caption", "text")
LABELS = ("label", "labels", "fine_label")
COLUMNS = frozenset(IMAGES + TEXTS + CAPTIONS + LABELS)

Read = tuple[dict[str, list[Any]], dict[str, tuple[str, ...]], tuple[str, ...]]
"""Values of these columns by name, names of the classes of those that have them, and the names of all columns."""
