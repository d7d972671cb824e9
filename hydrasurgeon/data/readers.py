"""Inputs of a bag-of-words model, beside the inputs of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.data.texts import blamed
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.run.bag_of_words import BagOfWords, Ids

if TYPE_CHECKING:
    import torch

READ = "hydrasurgeon.read"
"""Input that holds a reader's outputs, and in its last column the novelty of each sample."""
TEXTS = "hydrasurgeon.texts"
"""Input that holds texts which the model has not read yet."""


class TokenIds:
    """Token ids of complete texts, or of pairs: without a window or special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Copy the tokenizers-library tokenizer inside a transformers tokenizer."""
        from tokenizers import Tokenizer

        self.inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self.inner.no_truncation()
        self.inner.no_padding()

    def __call__(self, texts: Sequence[str | tuple[str, str]]) -> list[Ids]:
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(text.ids, dtype=np.int64) for text in encoded]


class Beside:
    """Transform whose batches hold a reader's outputs too."""

    def __init__(self, inner: Any, reader: BagOfWords) -> None:
        self.inner, self.reader = inner, reader
        self.kind, self.inputs = inner.kind, inner.inputs
        self.tokens = TokenIds(inner.tokenizer)
        self._check_ids(reader.ids)

    def _check_ids(self, ids: Ids) -> None:
        """Refuse a bag-of-words model with columns for tokens that the tokenizer does not have."""
        tokenizer = self.tokens.inner
        highest = int(ids.max(initial=0))
        # Ids may have gaps, so that the highest exceeds their number.
        if highest >= tokenizer.get_vocab_size() and highest > max(tokenizer.get_vocab().values()):
            raise CheckpointError(
                f"the checkpoint's bag-of-words model has a column for token {highest}, which its "
                "tokenizer does not have",
                hint="Run calibrate again.",
            )

    def __call__(self, sample: Any) -> Any:
        return self.inner(sample)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def collate(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return a batch as tensors."""
        import torch

        read = self.reader.read(self.tokens(samples))
        return {**self.inner.collate([*samples]), READ: torch.from_numpy(read)}

    def arrays(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return a batch as arrays, with the texts themselves: the model reads only some of
        them.
        """
        read = self.reader.read(self.tokens(samples))
        return {TEXTS: np.fromiter(samples, object, len(samples)), READ: read}


def with_reader(transform: Any, reader: BagOfWords | None) -> Any:
    """Return a transform that adds a reader's outputs, if there is a reader."""
    return transform if reader is None else Beside(transform, reader)


def parted(inputs: Any) -> tuple[Any, Any]:
    """Split a batch into the model's inputs and the reader's outputs; None without a reader."""
    if not isinstance(inputs, Mapping) or READ not in inputs:
        return inputs, None
    plain = {name: values for name, values in inputs.items() if name != READ}
    return plain, inputs[READ]


def reader_of(parts: Mapping[str, Any]) -> BagOfWords:
    """Return a reader from the tensors that a file stores."""
    values: dict[str, Any] = {
        name: np.asarray(part, dtype=np.float64) for name, part in parts.items()
    }
    return BagOfWords(**{**values, "ids": values["ids"].astype(np.int64)})
