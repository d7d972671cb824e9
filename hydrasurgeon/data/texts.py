"""Texts → token ids, with the checkpoint's own tokenizer and padding to the longest text of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hydrasurgeon.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


class Tokenize:
    """A transform for texts: single texts pass unchanged, a batch of them becomes input ids and attention mask."""

    kind = "text"

    def __init__(self, load: Callable[[], Any], *, max_length: int) -> None:
        self.load = load
        self.max_length = max_length

    def __call__(self, text: str) -> str:
        return text

    def collate(self, texts: Sequence[str]) -> dict[str, Tensor]:
        tokenizer = self.tokenizer
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            made = tokenizer(
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


@contextlib.contextmanager
def blamed(what: str, *, hide: str = "") -> Iterator[None]:
    """Whatever the tokenizers library raises here is laid to the tokenizer's files."""
    try:
        yield
    # For a file that it cannot read it raises Exception itself, or a panic that is none.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).replace(hide, "").splitlines() if hide else str(error).splitlines()
        why = lines[0][:200] if lines else type(error).__name__
        raise CheckpointError(f"{what}: {why}", hint="Bring back the files as transformers wrote them.") from error
