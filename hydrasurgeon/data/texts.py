"""Texts → token ids, with the checkpoint's own tokenizer and padding to the longest text of a
batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import CheckpointError, DataError, HydraError
from hydrasurgeon.run.texts import TYPES, encoded, settled

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

    from hydrasurgeon.files.manifest import Inputs


IDS = ("input_ids", "attention_mask")
"""Inputs of every model of texts."""


class Tokenize:
    """A transform for texts and pairs of them, which pass unchanged: a batch becomes input ids and
    attention mask, and of pairs the types of tokens, where the model has them. Of a pair that is
    too long the longer text is cut.
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
        """What the model was tuned on; None where it takes texts and pairs."""
        self.typed = typed
        """Whether the model tells two texts apart by the types of tokens."""

    def __call__(self, text: str | tuple[str, str]) -> str | tuple[str, str]:
        return text

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs of a model of this kind."""
        return (*IDS, *((TYPES,) if self.inputs == "text_pair" and self.types else ()))

    @property
    def types(self) -> bool:
        """Whether the tokenizer gives them, as transformers calls it, and the model reads them."""
        return self.typed and TYPES in self.tokenizer.model_input_names

    def arrays(self, texts: Sequence[str | tuple[str, str]]) -> dict[str, NDArray[np.int64]]:
        """A batch of texts, or of pairs."""
        typed = any(isinstance(text, tuple) for text in texts) and self.types
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            made = encoded(self.backend, texts)
        empty = np.flatnonzero(~made["attention_mask"].any(axis=1))
        if len(empty):
            raise DataError(
                f"the text {texts[empty[0]]!r} has no tokens",
                hint="Leave it out, or give it words.",
            )
        return {name: made[name] for name in (*IDS, *((TYPES,) if typed else ()))}

    def too_long(self, texts: Sequence[str | tuple[str, str]]) -> list[bool]:
        """Return for each text, or pair, whether it has more tokens than the model reads."""
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encodings = self.unbounded.encode_batch_fast(list(texts))
        return [len(encoding) > self.max_length for encoding in encodings]

    def collate(self, texts: Sequence[str | tuple[str, str]]) -> dict[str, Tensor]:
        """The same as tensors."""
        import torch

        return {name: torch.from_numpy(values) for name, values in self.arrays(texts).items()}

    @cached_property
    def tokenizer(self) -> Any:
        """transformers' own, or the one that a graph's file holds."""
        return self.load()

    @cached_property
    def backend(self) -> Tokenizer:
        """What it calls."""
        if not getattr(self.tokenizer, "is_fast", False):
            raise CheckpointError(
                "the checkpoint's tokenizer does not say where its tokens stand in a text",
                hint="Bring its tokenizer.json, as transformers' fast tokenizers write it.",
            )
        return settled(self.tokenizer, self.max_length)

    @cached_property
    def unbounded(self) -> Tokenizer:
        """The same without cutting and padding."""
        from tokenizers import Tokenizer

        inner = Tokenizer.from_str(self.backend.to_str())
        inner.no_truncation()
        inner.no_padding()
        return inner


@contextlib.contextmanager
def blamed(what: str, *, hide: str = "") -> Iterator[None]:
    """Whatever the tokenizers library raises here is laid to the tokenizer's files."""
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
            f"{what}: {why}", hint="Bring back the files as transformers wrote them."
        ) from error
