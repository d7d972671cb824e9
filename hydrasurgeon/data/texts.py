"""Texts → token ids, with the checkpoint's own tokenizer and padding to the longest text of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

__all__ = ["Tokenize"]


class Tokenize:
    """A transform for texts: single texts pass unchanged, a batch of them becomes input ids and attention mask."""

    kind = "text"

    def __init__(self, load: Callable[[], Any], *, max_length: int) -> None:
        self.load = load
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
        return self.load()
