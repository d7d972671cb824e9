"""What a reader of words or pixels sees of samples, beside what the model reads of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrasurgeon.data.texts import blamed
from hydrasurgeon.run.pixels import Pixels, features_of
from hydrasurgeon.run.words import Floats, Ids, Words

if TYPE_CHECKING:
    import torch

READ = "hydrasurgeon.read"
"""The input that holds a reader's outputs, and in its last column how novel each sample is."""


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
            encoded = self.inner.encode_batch(list(texts), add_special_tokens=False)
        return [np.array(text.ids, dtype=np.int64) for text in encoded]


def pixels_of(image: Any) -> Floats:
    """What the reader of pixels sees of a picture as it was decoded."""
    return features_of(np.asarray(image.convert("RGB")))


class Beside:
    """A transform whose batches hold a reader's outputs too."""

    def __init__(self, inner: Any, reader: Words | Pixels) -> None:
        self.inner, self.reader = inner, reader
        self.kind = getattr(inner, "kind", "image")
        self.inputs = getattr(inner, "inputs", None)
        if isinstance(reader, Words):
            self.tokens = Tokens(inner.tokenizer)

    def __call__(self, sample: Any) -> Any:
        if isinstance(self.reader, Words):
            return self.inner(sample)
        return self.inner(sample), pixels_of(sample)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def collate(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        if isinstance(self.reader, Words):
            return {**self.inner.collate(samples), READ: self._read(self.tokens(samples))}
        images = _collate_of(self.inner)([image for image, _ in samples])
        inputs = images if isinstance(images, Mapping) else {"pixel_values": images}
        return {**inputs, READ: self._read(np.stack([seen for _, seen in samples]))}

    def _read(self, seen: Any) -> torch.Tensor:
        import torch

        columns = [self.reader.outputs(seen), self.reader.novelty(seen)[:, None]]
        return torch.from_numpy(np.concatenate(columns, axis=1))


def _collate_of(transform: Any) -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    return getattr(transform, "collate", None) or default_collate


def with_reader(transform: Any, reader: Words | Pixels | None) -> Any:
    """A transform, beside which a reader reads if there is one."""
    return transform if reader is None else Beside(transform, reader)


def parted(inputs: Any) -> tuple[Any, torch.Tensor | None]:
    """What the model reads, and what a reader has read; None where there was none."""
    if not isinstance(inputs, Mapping) or READ not in inputs:
        return inputs, None
    rest = {name: values for name, values in inputs.items() if name != READ}
    plain = rest["pixel_values"] if [*rest] == ["pixel_values"] else rest
    return plain, inputs[READ]


def reader_of(kind: str, parts: Mapping[str, Any]) -> Words | Pixels:
    """A reader, of the tensors that a file stores."""
    values = {name: np.asarray(part, dtype=np.float64) for name, part in parts.items()}
    if kind == "pixels":
        return Pixels(**values)
    return Words(**{**values, "ids": values["ids"].astype(np.int64)})
