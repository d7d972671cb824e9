"""Texts → token ids, with the checkpoint's tokenizer and padding to the longest text of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import CheckpointError, DataError, HydraError
from hydrasurgeon.run.tokenizing import TYPES, encoded, settled

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from hydrasurgeon.files.manifest import Inputs


IDS = ("input_ids", "attention_mask")
"""Inputs of every model of texts."""


class Tokenize:
    """Transform of texts and pairs, which are tokenized by the batch.

    A batch becomes input ids and attention mask, and for pairs token types, if the model has them.
    If a pair is too long, its longer text is cut.
    """

    kind = "text"

    def __init__(
        self,
        load: Callable[[], Any],
        *,
        max_length: int,
        inputs: Inputs | None = None,
        typed: bool = False,
    ) -> None:
        self.load = load
        self.max_length = max_length
        self.inputs = inputs
        """Kind of texts that the model was tuned on; None if it takes texts and pairs."""
        self.typed = typed
        """True if the model distinguishes two texts by token types."""

    def __call__(self, text: str | tuple[str, str]) -> str | tuple[str, str]:
        return text

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model's inputs."""
        return (*IDS, *((TYPES,) if self.inputs == "text_pair" and self.types else ()))

    @property
    def types(self) -> bool:
        """True if the tokenizer returns token types and the model reads them."""
        return self.typed and TYPES in self.tokenizer.model_input_names

    def arrays(self, texts: Sequence[str | tuple[str, str]]) -> dict[str, NDArray[np.int64]]:
        """Tokenize a batch of texts, or of pairs, as arrays."""
        typed = any(isinstance(text, tuple) for text in texts) and self.types
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encodings = encoded(self.backend, texts)
        empty = np.flatnonzero(~encodings["attention_mask"].any(axis=1))
        if len(empty):
            raise DataError(
                f"the text {texts[empty[0]]!r} has no tokens",
                hint="Leave it out, or give it words.",
            )
        return {name: encodings[name] for name in (*IDS, *((TYPES,) if typed else ()))}

    def too_long(self, texts: Sequence[str | tuple[str, str]]) -> list[bool]:
        """Return for each text, or pair, whether it has more tokens than the model reads."""
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encodings = self.unbounded.encode_batch_fast(list(texts))
        return [len(encoding) > self.max_length for encoding in encodings]

    def collate(self, texts: Sequence[str | tuple[str, str]]) -> dict[str, Tensor]:
        """Tokenize a batch of texts, or of pairs, as tensors."""
        import torch

        return {name: torch.from_numpy(values) for name, values in self.arrays(texts).items()}

    @cached_property
    def tokenizer(self) -> Any:
        """transformers' own, or the one that a graph's file holds."""
        return self.load()

    @cached_property
    def backend(self) -> Tokenizer:
        """Tokenizer of the tokenizers library, with the model's cutting and padding."""
        if not getattr(self.tokenizer, "is_fast", False):
            raise CheckpointError(
                "the checkpoint's tokenizer does not say where its tokens stand in a text",
                hint="Bring its tokenizer.json, as transformers' fast tokenizers write it.",
            )
        return settled(self.tokenizer, self.max_length)

    @cached_property
    def unbounded(self) -> Tokenizer:
        """Tokenizer of the tokenizers library without cutting and padding."""
        from tokenizers import Tokenizer

        inner = Tokenizer.from_str(self.backend.to_str())
        inner.no_truncation()
        inner.no_padding()
        return inner


@contextlib.contextmanager
def blamed(problem: str, *, hide: str = "") -> Iterator[None]:
    """Raise CheckpointError about the tokenizer's files for anything that the tokenizers library
    raises.
    """
    try:
        yield
    except HydraError:
        raise
    # For a file that it cannot read it raises Exception itself, or a panic that is none.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).replace(hide, "").splitlines() if hide else str(error).splitlines()
        why = lines[0][:200] if lines else type(error).__name__
        raise CheckpointError(
            f"{problem}: {why}", hint="Bring back the files as transformers wrote them."
        ) from error
