"""What a reader of words sees of samples, beside what the model reads of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.data.texts import blamed
from hydrasurgeon.errors import CheckpointError
from hydrasurgeon.run.words import Ids, Words

if TYPE_CHECKING:
    import torch

READ = "hydrasurgeon.read"
"""The input that holds a reader's outputs, and in its last column how novel each sample is."""
TEXTS = "hydrasurgeon.texts"
"""The input that holds texts which the model has yet to read."""


class Tokens:
    """Texts, or pairs of them, as all their ids: no window, no special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        """Of transformers, with a tokenizer of the tokenizers library inside."""
        from tokenizers import Tokenizer

        self.inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self.inner.no_truncation()
        self.inner.no_padding()

    def __call__(self, texts: Sequence[str | tuple[str, str]]) -> list[Ids]:
        with blamed("the checkpoint's tokenizer cannot read these texts"):
            encoded = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(text.ids, dtype=np.int64) for text in encoded]


class Beside:
    """A transform whose batches hold a reader's outputs too."""

    def __init__(self, inner: Any, reader: Words) -> None:
        self.inner, self.reader = inner, reader
        self.kind, self.inputs = inner.kind, inner.inputs
        self.tokens = Tokens(inner.tokenizer)
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
        """A batch as tensors."""
        import torch

        read = self.reader.read(self.tokens(samples))
        return {**self.inner.collate([*samples]), READ: torch.from_numpy(read)}

    def arrays(self, samples: Sequence[Any]) -> dict[str, Any]:
        """The same as arrays; texts as they are, of which the model reads those that go on."""
        read = self.reader.read(self.tokens(samples))
        return {TEXTS: np.fromiter(samples, object, len(samples)), READ: read}


def with_reader(transform: Any, reader: Words | None) -> Any:
    """A transform, beside which a reader reads if there is one."""
    return transform if reader is None else Beside(transform, reader)


def parted(inputs: Any) -> tuple[Any, Any]:
    """What the model reads, and what a reader has read; None where there was none."""
    if not isinstance(inputs, Mapping) or READ not in inputs:
        return inputs, None
    plain = {name: values for name, values in inputs.items() if name != READ}
    return plain, inputs[READ]


def reader_of(parts: Mapping[str, Any]) -> Words:
    """A reader, of the tensors that a file stores."""
    values: dict[str, Any] = {
        name: np.asarray(part, dtype=np.float64) for name, part in parts.items()
    }
    return Words(**{**values, "ids": values["ids"].astype(np.int64)})
