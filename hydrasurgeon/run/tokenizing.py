"""Texts → token ids by the tokenizers library, as transformers calls it.

A tokenizer's JSON includes padding and truncation, so one text holds all that reading needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hydrasurgeon.errors import CheckpointError, reason

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TYPES = "token_type_ids"
"""Input that holds the number of the text (0 or 1) of each token."""


@dataclass(frozen=True)
class Stored:
    """A tokenizer that a graph's file holds, in place of transformers' own."""

    backend_tokenizer: Tokenizer
    model_input_names: Sequence[str]
    is_fast = True


def stored(text: str, *, names: Sequence[str], where: str) -> Stored:
    """Return the tokenizer that `settled` wrote as JSON; `names` are the model's inputs."""
    from tokenizers import Tokenizer

    try:
        return Stored(Tokenizer.from_str(text), names)
    except Exception as error:  # it has no kind of its own
        hint = "Export the checkpoint again."
        raise CheckpointError(
            f"{where}: holds no tokenizer ({reason(error)})", hint=hint
        ) from error


def settled(tokenizer: Any, max_length: int) -> Tokenizer:
    """Return what transformers' tokenizer calls; it pads to the longest text of a batch and cuts the
    longer of two texts.

    It pads on the right, whatever the tokenizer's own side is. Positions count from the left:
    padding there would move a text's tokens by the length of the texts beside it. The mask hides
    padding on the right from encoders, and decoders do not look ahead.
    """
    if isinstance(tokenizer, Stored):
        inner = tokenizer.backend_tokenizer
        if inner.padding is not None:
            inner.enable_padding(**{**inner.padding, "direction": "right"})
        return inner
    from tokenizers import Tokenizer

    inner = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    inner.enable_truncation(max_length, direction=tokenizer.truncation_side)
    inner.enable_padding(
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
    )
    return inner


def overlapping(tokenizer: Tokenizer, stride: int) -> Tokenizer:
    """Return a copy that cuts long texts into windows with `stride` tokens in common."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_str(tokenizer.to_str())
    cut = dict(tokenizer.truncation or {})
    inner.enable_truncation(cut["max_length"], stride=stride, direction=cut["direction"])
    return inner


def encoded(tokenizer: Tokenizer, texts: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
    """Return ids, mask and types of the tokens of texts, or of pairs of texts."""
    encodings = tokenizer.encode_batch_fast(list(texts))
    return {
        "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
        "attention_mask": np.array(
            [encoding.attention_mask for encoding in encodings], dtype=np.int64
        ),
        TYPES: np.array([encoding.type_ids for encoding in encodings], dtype=np.int64),
    }
