"""Texts → token ids, with the checkpoint's own tokenizer and padding to the longest text of a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hydrasurgeon.errors import CheckpointError

__all__ = ["FILES", "Tokenize"]

FILES = frozenset({
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "vocab.json", "merges.txt",
})  # fmt: skip
"""What a tokenizer may be made of: no other name becomes a path."""


class Tokenize:
    """A transform for texts: single texts pass unchanged, a batch of them becomes input ids and attention mask."""

    kind = "text"

    def __init__(self, files: Mapping[str, str], *, model_type: str, max_length: int) -> None:
        self.files = dict(files)
        self.model_type = model_type
        self.max_length = max_length

    def __call__(self, text: str) -> str:
        return text

    def collate(self, texts: Sequence[str]) -> dict[str, Tensor]:
        made = self.tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=True,
            return_token_type_ids=False,
            return_tensors="pt",
        )
        return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]}

    @cached_property
    def tokenizer(self) -> Any:
        if not any(name in self.files for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
            raise CheckpointError(
                "the checkpoint has no tokenizer, so it cannot read texts",
                hint="Put tokenizer.json (or vocab.txt) beside its config.json.",
            )
        from transformers import AutoTokenizer

        with tempfile.TemporaryDirectory() as folder:
            for name in FILES.intersection(self.files):
                (Path(folder) / name).write_text(self.files[name], encoding="utf-8")
            (Path(folder) / "config.json").write_text(f'{{"model_type": "{self.model_type}"}}')
            return AutoTokenizer.from_pretrained(folder)
